"""Passes of the graph level are looked at while they run: each rule where it is applied, each pass when it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilewright.compilation import STAGES, Compilation
from tilewright.graph.match import is_constant
from tilewright.ir.core import Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.optional_steps import Part
from tilewright.ir.text import print_module
from tilewright.program.memory.places import broken_plan
from tilewright.validation.cases import Case, cases_of, dims_of_inputs, refuse_call
from tilewright.validation.closeness import Deviation, as_exact, deviation
from tilewright.validation.extract import cut_out, input_names, program_of
from tilewright.validation.findings import Fault
from tilewright.validation.values import (
    EVALUATION,
    ExactValues,
    ReplayedValues,
    RoundingValues,
    TooLong,
    is_short,
    moved_results,
    widened,
)

if TYPE_CHECKING:
    from tilewright.validation.validate import Validation

PLAN = "share-memory"
"""The step that puts values into one arena."""

PLANNED_SIZES = (1, 2, 3, 5, 16, 17, 64, 65, 200, 1000, 5000)
"""Of dims that a call chooses, for which it is looked at where values lie."""

ROUNDED_WAYS = 3
"""Ways to round short floats from which it is told how far results may be off."""


@dataclass
class FusedReplay:
    """The regions of a program, with what each value is in each call."""

    compilation: Compilation
    module: Module
    values: list[ReplayedValues]


@dataclass
class _Snapshot:
    """An op as it was when it was looked at."""

    operands: tuple[Value, ...]
    attrs: Mapping[str, object]


@dataclass
class PassWatch:
    """Looks at what the passes of one program do. `values` are those of each call that it is replayed on."""

    compilation: Compilation
    validation: Validation
    values: list[ReplayedValues]
    fused: FusedReplay | None = None
    applied: int = 0
    original: Module | None = None
    """The program before its passes."""
    cases: list[Case] = field(default_factory=list)
    """The calls that it is replayed on."""
    wanted: list[list[np.ndarray]] = field(default_factory=list)
    """What each of these calls gives."""
    _moves: dict[ReplayedValues, list[np.ndarray | None]] = field(default_factory=dict)
    _rounded: dict[ReplayedValues, list[list[np.ndarray]]] = field(default_factory=dict)
    _seen: dict[Op, _Snapshot] = field(default_factory=dict)
    _wrote: dict[Op, str] = field(default_factory=dict)
    _copied: dict[Value, Value] = field(default_factory=dict)

    def begin(self) -> bool:
        """Compute the program as it is; whether there is a call for which that can be done."""
        module = self.compilation.module
        kept = []
        for values in self.values:
            try:
                refuse_call(values.case, self.compilation.assumed)
                if all(values.compute(op) for op in module.main.body.ops[:-1]):
                    kept.append(values)
            except TooLong:
                self.validation.skip(self.compilation, "the interpreter takes too long for it")
                break
            except EVALUATION as error:
                self.validation.note_refused(values.case, error)
        self.values, self.cases = kept, [values.case for values in kept]
        self.wanted = [[v.known[r] for r in module.main.returns] for v in kept]
        self.original = module.copy()
        self._note(module)
        return bool(kept)

    def _note(self, module: Module) -> None:
        """Remember the program as it is before the next pass."""
        self._seen = {op: _Snapshot(op.operands, dict(op.attrs)) for op in module.main.body.ops}
        self._copied = {}
        self._before = module.copy(self._copied)

    # Rules

    def replaced(self, stage: str, rule: str, op: Op, values: Sequence[Value], emitted: Sequence[Op]) -> None:
        """Compute what takes the place of the op's results, and compare."""
        self._survive(lambda: self._replaced(stage, rule, op, values, emitted))

    def _survive(self, look: Callable[[], None]) -> None:
        """A look that fails as none should ends the looking, not the compilation."""

        def end(error: Exception) -> None:
            self.values = []
            self.validation.note_failure(self.compilation, error)

        self.compilation.setting.optional.survive(look, end)

    def _replaced(self, stage: str, rule: str, op: Op, values: Sequence[Value], emitted: Sequence[Op]) -> None:
        self.applied += 1
        for fresh in emitted:
            self._wrote.setdefault(fresh, f"'{rule}'")
        for known in self.values:
            if any(v not in known.known for v in op.results):
                return  # it is inside of a region or a branch
            try:
                if not all(known.compute(fresh) for fresh in emitted):
                    return
            except TooLong:
                return self._stop(stage)
            except EVALUATION:
                return  # perhaps nobody reads it; the program is looked at when the pass is done
            for number, (old, new) in enumerate(zip(op.results, values, strict=True)):
                if new not in known.known:
                    return
                wanted, found = known.known[old], known.known[new]
                try:
                    wrong = known.deviation(op, number, wanted, found)
                except TooLong:
                    return self._stop(stage)
                if wrong is not None:
                    self._blame_rule(stage, rule, op, values, emitted, known, wrong)
                known.known[new] = wanted  # what follows is looked at by itself
        for fresh in emitted:
            self._seen[fresh] = _Snapshot(fresh.operands, dict(fresh.attrs))
        return None

    def _stop(self, name: str) -> None:
        """Look at nothing from here on."""
        self.validation.skip(self.compilation, f"the interpreter takes too long from '{name}' on")
        self.values = []

    def _blame_rule(
        self, stage: str, rule: str, op: Op, values: Sequence[Value], emitted: Sequence[Op], known: ReplayedValues,
        wrong: Deviation,
    ) -> None:  # fmt: skip
        own = set(emitted)
        reads = {v for fresh in emitted for v in fresh.operands if v.op not in own} | {
            v for v in values if v.op not in own
        }
        reads = {v for v in reads if not is_constant(v)}
        ops, inputs = cut_out(op.results, self.compilation.module, reads)
        others = sorted({self._wrote[o] for o in ops if o in self._wrote} - {f"'{rule}'"})
        before, after, given = self._programs(op.results, values, ops, inputs, emitted, known)
        instead = f"the rule '{rule}' is not applied"
        part = Part(stage, rule, f"the rule '{rule}'", instead)
        self.validation.fail(
            self.compilation,
            Fault(stage, rule, f"{op.name} of {op.loc}", str(wrong), str(known.case), (part,), before, after, given,
                    " and ".join(others), places=op.loc.sources),
        )  # fmt: skip

    def _programs(
        self, old: Sequence[Value], new: Sequence[Value], ops: Sequence[Op], inputs: Sequence[Value],
        emitted: Sequence[Op], known: ReplayedValues,
    ) -> tuple[Module | None, str, Mapping[str, np.ndarray]]:  # fmt: skip
        """What a rule saw and what it wrote, each as a program of its own."""
        module = self.compilation.module
        try:
            names = input_names(inputs)
            before = program_of(ops, inputs, old, module, names)
            after_ops, reads = cut_out(new, module, set(inputs), emitted)
            after = program_of(after_ops, list(dict.fromkeys([*inputs, *reads])), new, module)
            return before, print_module(after), {names[v]: known.known[v] for v in inputs}
        except (TilewrightError, KeyError, AssertionError):
            return None, "", {}

    # Passes

    def passed(self, name: str, module: Module) -> None:
        """Compute what is new, and compare the results of the program."""
        self._survive(lambda: self._passed(name, module))

    def _passed(self, name: str, module: Module) -> None:
        if not self.values or name in STAGES:
            if name == "fused" and self.values:
                copies: dict[Value, Value] = {}
                copy = module.copy(copies)
                self.fused = FusedReplay(self.compilation, copy, [v.fork(copy, copies) for v in self.values])
                self.values = []
            elif name == "planned" and self.fused is not None:
                self._look_at_plan(module, self.fused)
            return None
        try:
            for known, wanted in zip(self.values, self.wanted, strict=True):
                self._look(name, module, known, wanted)
                known.keep(module)
        except TooLong:
            return self._stop(name)
        self._note(module)
        self.validation.passes += 1
        return None

    def _look_at_plan(self, module: Module, fused: FusedReplay) -> None:
        """Look at where values lie at sizes that no call is replayed at: kernels run with memory for each value."""
        for sizes in _sizes_of_plans(dims_of_inputs(fused.module.main)):
            try:
                refuse_call(Case("planned", (), sizes), self.compilation.assumed)
            except EVALUATION:
                continue
            if (found := broken_plan(module, sizes)) is not None:
                wrong, op = found
                self._blame_plan(f"the kernel {op.attrs['kernel']} {wrong}" if "kernel" in op.attrs else wrong, sizes)

    def _blame_plan(self, wrong: str, sizes: Mapping[str, int]) -> None:
        """The plan, with inputs of such a size."""
        assert self.fused is not None
        before = self.fused.module
        case = next(cases_of(before.main, sizes, ("random",)), None)
        given = {} if case is None else dict(zip(before.main.attrs["inputs"], case.arrays, strict=False))
        part = Part(PLAN, label=f"the step '{PLAN}'")
        at = "any inputs" if case is None else str(case)
        finding = Fault(PLAN, "", "the program", wrong, at, (part,), before if given else None, "", given)
        self.validation.fail(self.compilation, finding)

    def _look(self, name: str, module: Module, known: ReplayedValues, wanted: Sequence[np.ndarray]) -> None:
        suspects: list[tuple[Value, Deviation]] = []
        others: set[Value] = set()  # what is not what it was
        by_name = values_by_name(known)
        for op in module.main.body.ops[:-1]:
            if self._is_the_same(op, known) and others.isdisjoint(op.operands):
                continue
            old = [known.known.get(v) for v in op.results]
            try:
                if not known.compute(op):
                    continue
            except MemoryError as error:
                raise TooLong from error
            except EVALUATION as error:
                self._blame_pass(name, suspects, known, f"{op.name} of {op.loc} cannot be computed: {error}", 0)
            for number, (value, before) in enumerate(zip(op.results, old, strict=True)):
                found = known.known[value]
                before = by_name.get(value.name) if before is None else before
                if before is None or (before.shape, before.dtype) != (found.shape, found.dtype):
                    continue
                wrong = None if before is found else known.deviation(op, number, before, found)
                if wrong is None:
                    known.known[value] = before
                else:
                    others.add(value)
                    suspects.append((value, wrong))
        for number, (value, expected) in enumerate(zip(module.main.returns, wanted, strict=True)):
            result = known.known.get(value)
            if result is None or result is expected:
                continue
            if result.dtype != expected.dtype or result.shape != expected.shape:
                continue  # they are of other types on purpose, which the report tells
            wrong = deviation(expected, result, moved=partial(self._moved, known, number), of_floats=True)
            if wrong is not None and not self._is_as_exact(known, number, expected, result):
                self._blame_pass(name, suspects, known, wrong, number)

    def _moved(self, known: ReplayedValues, number: int) -> np.ndarray | None:
        """By how much a result of the program moves where its inputs do by their last bits."""
        assert self.original is not None
        if known not in self._moves:
            original = ReplayedValues(self.original, known.case, known.deadline, known.numerics, known.shared)
            self._moves[known] = moved_results(original, self.wanted[self.values.index(known)])
        return self._moves[known][number]

    def _is_as_exact(self, known: ReplayedValues, number: int, wanted: np.ndarray, found: np.ndarray) -> bool:
        """Whether a result is as near to that of the program in float64 as roundings of short floats leave it: they may
        be fewer than the program has, or none (`WidenFloats`)."""
        assert self.original is not None
        if not any(is_short(v) for op in self.original.main.body.ops for v in (*op.operands, *op.results)):
            return False
        if known not in self._rounded:
            self._rounded[known] = _with_roundings(self.original, known)
        exact, *others = (results[number] for results in self._rounded[known] or [[found] * (number + 1)])
        return bool(others) and as_exact(exact, [widened(wanted), *others], widened(found), wanted.dtype)

    def _is_the_same(self, op: Op, known: ReplayedValues) -> bool:
        """Whether an op computes what it computed before the pass, for all that its own words say."""
        before = self._seen.get(op)
        if before is None or before.attrs != op.attrs or any(not _fits(v, known) for v in op.results):
            return False
        if before.operands == op.operands:
            return True
        pairs = zip(before.operands, op.operands, strict=False)
        return len(before.operands) == len(op.operands) and all(
            a is b or (a in known.known and known.known[a] is known.known.get(b)) for a, b in pairs
        )

    def _blame_pass(
        self, name: str, suspects: Sequence[tuple[Value, Deviation]], known: ReplayedValues, wrong: Deviation | str,
        number: int,
    ) -> None:  # fmt: skip
        value, own = suspects[0] if suspects else (None, wrong)
        op = None if value is None else value.op
        subject = f"result {number} of the program" if op is None else f"{op.name} of {op.loc}"
        before, given = self._as_it_was(value, known)
        part = Part(name, label=f"the pass '{name}'")
        after = print_module(self.compilation.module)
        places = () if op is None else op.loc.sources
        finding = Fault(name, "", subject, str(own), str(known.case), (part,), before, after, given, places=places)
        self.validation.fail(self.compilation, finding)

    def _as_it_was(self, value: Value | None, known: ReplayedValues) -> tuple[Module | None, Mapping[str, np.ndarray]]:
        """The program before the pass, or what gives the one value in it."""
        module = self._before
        if value is None or value not in self._copied:
            names = module.main.attrs.get("inputs", tuple(v.name for v in module.main.args))
            return module, dict(zip(names, known.case.arrays, strict=True))
        original = {copy: old for old, copy in self._copied.items()}
        ops, inputs = cut_out([self._copied[value]], module, ())
        names = input_names(inputs)
        if any(original.get(v) not in known.known for v in inputs):
            return None, {}
        program = program_of(ops, inputs, [self._copied[value]], module, names)
        return program, {names[v]: known.known[original[v]] for v in inputs}


def _sizes_of_plans(names: Sequence[str]) -> Iterator[dict[str, int]]:
    """Sizes of the dims that a call chooses, equal ones and such as are as different as they get."""
    if not names:
        yield {}
        return
    yield from (dict.fromkeys(names, n) for n in PLANNED_SIZES)
    for large in names if len(names) > 1 else ():
        yield {name: PLANNED_SIZES[-1] if name == large else 1 for name in names}


def values_by_name(known: ReplayedValues) -> dict[str, np.ndarray]:
    """What values are by their names, of which passes keep those that mean the same; only for telling where it is.
    Names that several have, as in steps of a loop that is written out, tell nothing."""
    count = Counter(value.name for value in known.known)
    return {value.name: array for value, array in known.known.items() if value.name and count[value.name] == 1}


def _fits(value: Value, known: ReplayedValues) -> bool:
    """Whether what is known of a value is what its type says."""
    array = known.known.get(value)
    return array is not None and array.dtype == value.tensor.dtype.storage and array.ndim == value.tensor.rank


def _with_roundings(module: Module, known: ReplayedValues) -> list[list[np.ndarray]]:
    """The results of a program in float64, and those where short floats are rounded, or not, in a few ways; none where
    that takes too long or cannot be computed."""
    exact = ExactValues(module, known.case, known.deadline)
    ways = [exact, *(RoundingValues(module, known.case, known.deadline, seed) for seed in range(ROUNDED_WAYS))]
    try:
        done = all(values.compute(op) for values in ways for op in module.main.body.ops[:-1])
    except (TooLong, *EVALUATION):
        return []
    return [[values.known[v] for v in module.main.returns] for values in ways] if done else []


def regions_of(module: Module) -> Iterator[Op]:
    """The regions of a fused program, in order."""
    yield from (op for op in module.main.body.ops if op.name == "fused")
