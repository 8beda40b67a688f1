"""`tilewright diff MODEL`: a compiled model beside its graph in float64, kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.comparison.errors import Difference, LayerDifference, Measured
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_request
from tilewright.graph.match import is_constant
from tilewright.ir.core import Module, Op, Value
from tilewright.options import OnProgress, Options, Request
from tilewright.runtime import Artifact
from tilewright.runtime.errors import InputError
from tilewright.session import Session
from tilewright.validation.cases import Feed
from tilewright.validation.findings import Fault
from tilewright.validation.kernels import KernelCheck, written_of
from tilewright.validation.validate import Validation
from tilewright.validation.values import (
    EVALUATION,
    ExactValues,
    ReplayedValues,
    TooLong,
    is_repeatable,
    widened,
)

BOUNDS = {"float64": 1e-12, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Relative errors (root mean square) that a kernel may make by itself: those of sums in another order, some hundred
roundings of the type."""


@dataclass(frozen=True)
class CompiledDifference:
    """The layers are kernels. `first` is the first one whose own error is beyond the bound of its type, `cause` what
    probably makes it, and `path` the layers before it, by which the error grew to that. `rounded` names operators that
    the reference, which is in float64, computes in their own types."""

    difference: Difference
    first: LayerDifference | None
    cause: str
    path: Sequence[LayerDifference]
    rounded: Sequence[str] = ()


def diff_compiled(
    request: Request, options: Options, session: Session, feeds: Sequence[Feed] = (), progress: OnProgress | None = None
) -> CompiledDifference:
    """Run the model natively and by the interpreter in float64 on recorded feeds, or where there are none on noise, and
    measure the error of the result of each kernel: all of it, and by itself where it reads what the kernels before
    gave. Outputs are compared with the graph as it was before its passes. InputError where the model cannot be
    replayed."""
    measuring = _Measuring(feeds)
    compile_request(request, options, progress, session=session, checks=measuring)
    if not measuring.layers:
        why = "; ".join(measuring.skipped) or "it has no kernels"
        raise InputError(f"the model cannot be run beside its interpreter: {why}")
    layers = [layer.difference() for layer in measuring.layers]
    about = "recorded inputs" if measuring.recorded else "noise and values at the edges of types"
    outputs = {name: layers[place] for name, place in measuring.outputs.items()}
    found = Difference(tuple(layers), outputs, measuring.calls, about)
    beyond = next((k for k, layer in enumerate(measuring.layers) if layer.is_beyond), None)
    rounded = tuple(sorted(measuring.rounded))
    if beyond is None:
        return CompiledDifference(found, None, "", (), rounded)
    path = [layers[k] for k in measuring.layers[beyond].path(measuring.layers)]
    return CompiledDifference(found, layers[beyond], measuring.layers[beyond].cause, path, rounded)


@dataclass
class _Layer:
    """The result of a kernel while it is measured; `reads` are the numbers of the results that it reads."""

    op: Op
    value: Value
    reads: Sequence[int]
    error: Measured = field(default_factory=Measured)
    own: Measured = field(default_factory=Measured)
    before: float = 0.0

    @property
    def is_beyond(self) -> bool:
        return self.own.relative > BOUNDS.get(self.value.tensor.dtype.storage.name, 0.0)

    @property
    def cause(self) -> str:
        """What probably makes the error, by what the kernel does."""
        names = {o.name for o in self.op.blocks[0].ops}
        types = {v.tensor.dtype.storage.name for v in (*self.op.operands, *self.op.results)}
        if any("winograd" in name for name in names):
            return "algorithm: Winograd's, whose transforms round (numerics='strict' does without)"
        if any("quantize" in name for name in names):
            return "quantisation: a value near the middle between two integers goes to the other one"
        if short := types & {"float16", "bfloat16"}:
            return f"precision: values are {', '.join(sorted(short))}"
        count = sum(not is_constant(v) for o in self.op.blocks[0].ops for v in o.results[:1])
        return f"fusion: {count} operators are one kernel" if count > 1 else "the kernel's order of sums, or a defect"

    def path(self, layers: Sequence[_Layer]) -> list[int]:
        """Back along the operands with the largest errors, the earliest first."""
        found: list[int] = []
        reads = self.reads
        while reads:
            worst = max(reads, key=lambda k: layers[k].error.relative)
            found.insert(0, worst)
            reads = layers[worst].reads
        return found

    def difference(self) -> LayerDifference:
        loc = self.op.loc
        name = loc.node or self.value.name or self.op.attrs["name"]
        tensor = self.value.name or name
        return LayerDifference(
            name, loc.op or self.op.attrs["name"], (tensor, tensor), self.error.relative, self.before,
            self.own.relative, self.error.largest,
        )  # fmt: skip


@dataclass
class _Measuring(Validation):
    """Measures, and switches nothing off."""

    layers: list[_Layer] = field(default_factory=list)
    outputs: dict[str, int] = field(default_factory=dict)
    rounded: dict[str, None] = field(default_factory=dict)

    def begin_attempt(self) -> None:
        super().begin_attempt()
        self.layers, self.outputs = [], {}

    def fail(self, compilation: Compilation, finding: Fault, *others: Fault) -> None:
        self.findings += [finding, *others]

    def finish(self, artifact: Artifact, setting: Setting) -> Artifact:
        self.check_feeds(artifact)
        for watch in self.watches:
            why = self._why_not_native(watch.compilation, artifact)
            if why or watch.fused is None:
                self.skip(watch.compilation, why or "its passes could not be replayed")
                continue
            before, self.calls = self.calls, 0
            _LayerErrors(self, watch.fused, setting, original=watch.original).run(None)
            self.calls = max(before, self.calls)
        if artifact.program is not None:  # what parts give is not what the model gives
            self.outputs = {}
        return artifact


@dataclass
class _LayerErrors(KernelCheck):
    """Measures the result of each region, of the model or one of its parts, instead of looking for faults. `original`
    is the graph before its passes."""

    original: Module | None = None
    numbers: dict[Value, _Layer] = field(default_factory=dict)

    def _look_for_races(self, makers: Mapping[Op, str], compilation: Compilation) -> None:
        """They are no errors of a layer."""

    def _compare_results(
        self, known: ReplayedValues, found: Mapping[Value, np.ndarray], makers: Mapping[Op, str],
        compilation: Compilation,
    ) -> None:  # fmt: skip
        measuring = self.validation
        assert isinstance(measuring, _Measuring)
        if not self.numbers:
            found_layers, outputs = self._layers(len(measuring.layers))
            self.numbers = {layer.value: layer for layer in found_layers}
            measuring.layers += found_layers
            measuring.outputs |= outputs
        whole = _computed(ExactValues(known.module, known.case, known.deadline))
        wanted = {v: widened(a) for v, a in known.known.items()} | whole.known | self._outputs(known)
        native = ExactValues(known.module, known.case, known.deadline)
        for op in known.module.main.body.ops[:-1]:
            if op.name != "fused":
                try:
                    native.compute(op)
                except EVALUATION:
                    return  # what rounding decided leaves it no result
                continue
            if not is_repeatable(op):
                native.known.update((value, widened(found[value])) for value in op.results)
                continue
            try:
                exact = native.results(op)
            except (TooLong, *EVALUATION):
                exact = None
            for k, value in enumerate(op.results):
                layer, own = self.numbers[value], known.known[value]
                written = written_of(op, own, found[value])
                layer.error.add(_where_finite(own, wanted[value]), written)
                if exact is not None:
                    layer.own.add(_where_finite(own, exact[k]), written)
                layer.before = max((measuring.layers[n].error.relative for n in layer.reads), default=0.0)
                native.known[value] = widened(written)
        measuring.rounded |= whole.rounded | native.rounded

    def _outputs(self, known: ReplayedValues) -> dict[Value, np.ndarray]:
        """What the graph before its passes gives, in float64, for what a call returns."""
        if self.original is None or len(self.original.main.returns) != len(known.module.main.returns):
            return {}
        before = _computed(ExactValues(self.original, known.case, known.deadline))
        pairs = zip(known.module.main.returns, self.original.main.returns, strict=True)
        found = {v: before.known[old] for v, old in pairs if old in before.known}
        return {v: array for v, array in found.items() if array.shape == known.known[v].shape}

    def _layers(self, before: int) -> tuple[list[_Layer], dict[str, int]]:
        """The regions' results, which come behind `before` of other parts, and which of them are outputs."""
        main = self.fused.module.main
        places: dict[Value, int] = {}
        found: list[_Layer] = []
        for op in main.body.ops[:-1]:
            reads = sorted({places[v] for v in op.operands if v in places})
            if op.name != "fused":
                places.update((v, reads[-1]) for v in op.results if reads)
                continue
            for value in op.results:
                found.append(_Layer(op, value, reads))
            first = before + len(found) - len(op.results)
            places.update((v, first + k) for k, v in enumerate(op.results))
        names = main.attrs.get("outputs", ())
        return found, {n: places[v] for n, v in zip(names, main.returns, strict=True) if v in places}


def _computed(values: ExactValues) -> ExactValues:
    """With all values that can be computed in time."""
    for op in values.module.main.body.ops[:-1]:
        try:
            values.compute(op)
        except TooLong:
            break
        except EVALUATION:
            continue  # what reads it is not computed either
    return values


def _where_finite(own: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The elements in float64 where the type of a value has them, too; those of its own type that are not finite."""
    if own.shape != exact.shape or exact.dtype != np.float64:
        return exact
    wide = widened(own)
    return np.where(np.isfinite(wide), exact, wide)
