"""`tilewright.diff`: two forms of one model, layer by layer on the same inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import with_examples
from tilewright.comparison.errors import Difference, LayerDifference, Measured
from tilewright.comparison.graph import CoreGraph, Segment
from tilewright.comparison.pairs import TensorPair, pair_tensors
from tilewright.comparison.taps import Arrays, Tapped, info_of, layered, tapped
from tilewright.ir.core import Value
from tilewright.ir.types import TensorType, Type
from tilewright.options import OnProgress, Progress, check_progress
from tilewright.quantization.data import Feed, open_data
from tilewright.requested import import_graph
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import InputError, OptionError, TilewrightError, short_name
from tilewright.runtime.values.dtypes import numpy_dtype

MOST_BYTES = 1 << 30
"""Of tensors that are held at once; models with more are run in several groups of tensors."""

RANDOM = 4
"""Random samples where there is no data."""

FEW = 8
"""Tensors of a model that may have nothing but its outputs in common with another one."""

MAX_INTEGER = 10
"""Random integers are below this: most are ids into tables."""


def diff(
    a: Any,
    b: Any,
    data: Any = None,
    *,
    example_inputs: Any = None,
    random: int = RANDOM,
    samples: int = 16,
    batch: int | None = None,
    threads: int | None = None,
    progress: OnProgress | None = None,
) -> Difference:
    """Compare the model `b` (a quantised one, say) with `a` (what it was made of): run both on the same inputs with all
    tensors that they have in common as outputs, and measure the error of each layer. Both are of any format that
    `compile` takes. docs/quantize.md says how tensors are paired and what the errors are.

    data: as for `quantize`: a .npz file, a folder of such files, or an iterable of feeds; at most `samples` of them are
        taken. Without data there are `random` samples of noise.
    example_inputs: what models that are torch.nn.Modules are traced with, as for `compile`.
    batch: samples in a call, where an array holds single samples and the models have a symbolic first dim.

    Raises InputError where the models have other inputs, or nothing in common, and for data that does not fit.
    """
    for name, number in (("random", random), ("samples", samples), ("batch", 1 if batch is None else batch)):
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise OptionError(f"{name}={number!r:.80} is not allowed: give a number from 1 on")
    check_progress(progress)
    first, second = (_Side(_traced(model, example_inputs)) for model in (a, b))
    _check_inputs(first, second)
    pairs = pair_tensors(first.core, second.core)
    _check_pairs(first, second, pairs)
    return _Comparison(first, second, pairs, threads, progress).result(data, random, samples, batch)


def _traced(model: Any, examples: Any) -> Any:
    """The model, with the examples where it is none that is a program already."""
    is_program = isinstance(model, str | Path | bytes) or not callable(model)
    return model if is_program else with_examples(model, examples, None, None)


class _Side:
    """One of the models."""

    def __init__(self, source: Any) -> None:
        self.name = str(source) if isinstance(source, str | Path) else "the given model"
        if isinstance(source, str | Path) and Path(source).suffix == ".tw":
            raise InputError(
                "a compiled model has no intermediate tensors",
                where=self.name,
                hint="give the file that it was made of",
            )
        self.core = CoreGraph.of(import_graph(source))
        self.inputs = tuple(self.core.inputs.values())


def _check_inputs(first: _Side, second: _Side) -> None:
    """InputError unless one call fits both: by the names of inputs, or where these differ by their order."""
    said = [side.core.inputs for side in (first, second)]
    if said[0].keys() == said[1].keys():
        second.inputs = tuple(said[1][name] for name in said[0])
    types = [[value.type for value in side.inputs] for side in (first, second)]
    if len(types[0]) != len(types[1]) or not all(map(_may_be_one, *types)):
        texts = [", ".join(f"{name}: {value.type}" for name, value in found.items()) or "none" for found in said]
        raise InputError(
            f"the models have different inputs: {first.name} has {texts[0]}, {second.name} has {texts[1]}",
            hint="only models that take the same inputs can be compared",
        )


def _check_pairs(first: _Side, second: _Side, pairs: Sequence[TensorPair]) -> None:
    """InputError where two models have no layer in common, before they are compiled: outputs alone say nothing of
    where models differ, and those of unrelated models may have the same names and shapes."""
    computed = [p for p in pairs if p.first not in first.inputs or p.second not in second.inputs]
    outputs = second.core.outputs.values()
    inner = [p for p in computed if p.second not in outputs and _may_have_one_shape(p.first.type, p.second.type)]
    tensors = len(second.core.members) - len(second.inputs)
    if not computed or (not inner and tensors > FEW):
        what = "tensor" if not computed else f"layer of the {tensors}"
        raise InputError(
            f"no {what} of {second.name} is one of {first.name}: nothing can be compared",
            hint="names are compared first, then operators in their order; are these forms of one model?",
        )


def _may_be_one(a: Type, b: Type) -> bool:
    """Whether there are values of both types."""
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    return a.dtype == b.dtype and _may_be_equal(a.shape, b.shape)


def _may_have_one_shape(a: Type, b: Type) -> bool:
    """Whether there are tensors of both types, but for what their elements are: integers stand for floats."""
    return isinstance(a, TensorType) and isinstance(b, TensorType) and _may_be_equal(a.shape, b.shape)


def _may_be_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether there are arrays of both shapes."""
    return len(a) == len(b) and all(
        x == y or not all(isinstance(d, int) or getattr(d, "is_const", False) for d in (x, y))
        for x, y in zip(a, b, strict=True)
    )


@dataclass
class _Layer:
    """A layer of the second model while it is measured."""

    pair: TensorPair
    segment: Segment
    error: Measured
    own: Measured | None


class _Comparison:
    """One comparison of two models."""

    def __init__(
        self, first: _Side, second: _Side, pairs: Sequence[TensorPair], threads: int | None, progress: OnProgress | None
    ) -> None:
        self.first, self.second, self.threads, self._report = first, second, threads, progress
        self.pairs = pairs
        self.partner = {pair.second: pair for pair in pairs}
        roots = second.core.roots
        self.ends = {roots[pair.second]: pair.second for pair in pairs}
        self.dropped: set[Value] = set()
        self.layers: list[_Layer] = []

    def result(self, data: Any, random: int, samples: int, batch: int | None) -> Difference:
        wanted = self._of_equal_forms([p for p in self.pairs if p.second not in self.second.inputs])
        core = self.first.core
        infos = [info_of(core, value, name) for name, value in core.inputs.items()]
        if data is None:
            data = [random_feed(infos, seed, batch or 1) for seed in range(random)]
            about = "noise"
        else:
            about = ""
        dataset = open_data(data, infos, batch=batch)
        numbers = range(min(dataset.count, samples))
        groups = self._groups(wanted, infos, dataset.read(0).feed)
        for place, group in enumerate(groups):
            feeds = (dataset.read(i).feed for i in numbers)
            runs = self._runs([*group, *self._read(self._layers(group))])
            self._measure(group, feeds, runs, f"{place + 1} of {len(groups)}: " if len(groups) > 1 else "")
        return self._difference(len(numbers), about or dataset.about)

    def _runs(self, pairs: Sequence[TensorPair]) -> tuple[Tapped, Tapped]:
        """Both models with these tensors as their outputs."""
        return self._tap(self.first, [p.first for p in pairs]), self._tap(self.second, [p.second for p in pairs])

    def _of_equal_forms(self, pairs: Sequence[TensorPair]) -> list[TensorPair]:
        """Pairs that are both floats of one shape, as far as that is known before a call; sizes and positions are not
        compared, except for outputs. The others are no pairs any more."""
        kept: list[TensorPair] = []
        for pair in pairs:
            x, y = info_of(self.first.core, pair.first), info_of(self.second.core, pair.second)
            if not _may_be_equal(x.shape, y.shape):
                self.dropped.add(pair.second)
            elif pair.second in self.second.core.outputs.values() or (_is_float(x) and _is_float(y)):
                kept.append(pair)
        ends = {pair.second for pair in kept} | set(self.second.inputs)
        self.ends = {root: value for root, value in self.ends.items() if value in ends}
        return kept

    def _groups(self, pairs: Sequence[TensorPair], inputs: Sequence[TensorInfo], feed: Feed) -> list[list[TensorPair]]:
        """Pairs whose tensors fit the memory together."""
        dims: dict[str, int] = {}
        for info in inputs:
            shape = feed[info.name].shape
            dims.update((d, n) for d, n in zip(info.shape, shape, strict=True) if isinstance(d, str))
        groups: list[list[TensorPair]] = [[]]
        total = 0
        for pair in pairs:
            # of both models, what the layer reads, and what it gives by itself
            size = 4 * _bytes(info_of(self.first.core, pair.first), dims)
            if groups[-1] and total + size > MOST_BYTES:
                groups.append([])
                total = 0
            groups[-1].append(pair)
            total += size
        return groups

    def _layers(self, pairs: Sequence[TensorPair]) -> list[_Layer]:
        return [_Layer(p, self.second.core.segment(p.second, self.ends), Measured(), None) for p in pairs]

    def _read(self, layers: Sequence[_Layer]) -> list[TensorPair]:
        """What layers read, as pairs."""
        return [self.partner[value] for value in dict.fromkeys(v for layer in layers for v in layer.segment.inputs)]

    def _tap(self, side: _Side, values: Sequence[Value]) -> Tapped:
        self._step(f"compiling {side.name}")
        return tapped(side.core, [v for v in dict.fromkeys(values) if v not in side.inputs], self.threads)

    def _step(self, stage: str) -> None:
        if self._report is not None:
            self._report(Progress(stage, 0, 1))

    def _measure(
        self, group: Sequence[TensorPair], feeds: Iterator[Feed], runs: Sequence[Tapped], about: str
    ) -> None:
        layers = self._layers(group)
        run_first, run_second = runs
        names = list(self.first.core.inputs)
        alone: Tapped | None = None
        shapes: list[tuple[int, ...]] = []
        for number, feed in enumerate(feeds):
            self._step(f"{about}sample {number + 1}")
            given = [feed[name] for name in names]
            wanted = run_first(dict(zip(self.first.inputs, given, strict=True)))
            inputs = dict(zip(self.second.inputs, given, strict=True))
            found = run_second(inputs)
            if not number:
                layers = [layer for layer in layers if self._is_comparable(layer, wanted, found)]
                alone = self._layered(layers, self._given(layers, wanted, found))
            for layer in layers:
                layer.error.add(wanted[layer.pair.first], found[layer.pair.second])
            exact = self._given(layers, wanted, found)
            if not number:
                shapes = [array.shape for array in exact.values()]
            if alone is not None and shapes == [array.shape for array in exact.values()]:
                del found
                by_itself = alone({**inputs, **exact})
                for layer in layers:
                    layer.own = layer.own or Measured()
                    layer.own.add(wanted[layer.pair.first], by_itself[layer.pair.second])
        self.layers += layers

    def _is_comparable(self, layer: _Layer, wanted: Arrays, found: Arrays) -> bool:
        """Whether both have one shape in the call."""
        x, y = wanted[layer.pair.first], found[layer.pair.second]
        if x.shape != y.shape:
            self.dropped.add(layer.pair.second)
        return x.shape == y.shape and x.dtype != object

    def _given(self, layers: Sequence[_Layer], wanted: Arrays, found: Arrays) -> dict[Value, np.ndarray]:
        """What layers read, as the first model has it, in the types of the second."""
        core = self.second.core
        return {
            pair.second: wanted[pair.first].astype(found[pair.second].dtype, copy=False)
            for pair in self._read(layers)
            if pair.second not in self.second.inputs
            and core.may_be_given(pair.second)
            and wanted[pair.first].shape == found[pair.second].shape
        }

    def _layered(self, layers: Sequence[_Layer], given: Arrays) -> Tapped | None:
        """The second model cut into its layers; None where that cannot be compiled."""
        self._step(f"compiling the layers of {self.second.name}")
        try:
            return layered(self.second.core, [layer.pair.second for layer in layers], list(given), self.threads)
        except TilewrightError:
            return None  # growth is measured all the same

    def _difference(self, count: int, about: str) -> Difference:
        errors = {layer.pair.second: layer.error.relative for layer in self.layers}
        found = {
            layer.pair.second: LayerDifference(
                layer.segment.node,
                layer.segment.operator,
                layer.pair.names,
                layer.error.relative,
                max((errors.get(value, 0.0) for value in layer.segment.inputs), default=0.0),
                None if layer.own is None else layer.own.relative,
                layer.error.largest,
            )
            for layer in self.layers
        }
        core = self.second.core
        paired = {core.roots[p.second] for p in self.pairs if p.second not in self.dropped}
        unpaired = [core.names(root) for root in core.members if root not in paired and root not in self.second.inputs]
        outputs = {name: found[value] for name, value in core.outputs.items() if value in found}
        if not found:
            raise InputError(
                f"no tensor of {self.second.name} has the shape of its partner in {self.first.name}",
                hint="are these forms of one model?",
            )
        names_of_unpaired = tuple(names[0] for names in unpaired if names)
        return Difference(
            tuple(found.values()), outputs, count, about, names_of_unpaired, self._uncompared(set(outputs))
        )

    def _uncompared(self, compared: AbstractSet[str]) -> dict[str, str]:
        """Outputs of the second model that are not compared, and why."""
        firsts = self.first.core.outputs
        found: dict[str, str] = {}
        for name, value in self.second.core.outputs.items():
            partner = self.partner.get(value)
            other = firsts.get(name) if partner is None else partner.first
            if name in compared or value in self.second.inputs:
                continue
            if other is None:
                said = ", ".join(short_name(n) for n in firsts)
                found[name] = f"{self.first.name} has no such output (its outputs: {said})"
            else:
                found[name] = f"{other.type} in {self.first.name}, {value.type} in {self.second.name}"
        return found


def _is_float(info: TensorInfo) -> bool:
    return info.kind == "tensor" and "float" in info.dtype


def _bytes(info: TensorInfo, dims: Mapping[str, int]) -> int:
    size = numpy_dtype(info.dtype).itemsize if info.kind == "tensor" else 8
    return size * prod(d if isinstance(d, int) else dims.get(d, 1) for d in info.shape)


def random_feed(inputs: Sequence[TensorInfo], seed: int, batch: int) -> dict[str, np.ndarray]:
    """Noise for each input; symbolic dims are 1, and `batch` where they come first."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    for info in inputs:
        dtype = numpy_dtype(info.dtype)
        shape = tuple(d if isinstance(d, int) else 1 if axis else batch for axis, d in enumerate(info.shape))
        if info.kind != "tensor" or dtype == np.dtype(object):
            raise InputError(f"there is no noise for the input {info}", hint="give data")
        if dtype.kind in "iu":
            found[info.name] = rng.integers(0, MAX_INTEGER, shape).astype(dtype)
        elif dtype.kind == "b":
            found[info.name] = rng.random(shape) < 0.5
        else:
            found[info.name] = rng.standard_normal(shape).astype(dtype)
    return found


