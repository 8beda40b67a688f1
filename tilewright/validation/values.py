"""The values of a program while passes change it: each op is computed once by the interpreter, on one call. And those
of a program in float64 throughout, where no result is rounded to a shorter type on the way."""

from __future__ import annotations

import time
from collections.abc import Container, Hashable, Mapping, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
from ml_dtypes import finfo

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate_op
from tilewright.ops.define.views import view_of
from tilewright.ops.traits.derive import is_view, traits_of
from tilewright.ops.traits.work import terms_of
from tilewright.validation.cases import Case
from tilewright.validation.closeness import Deviation, deviation, is_float, nudged, steps

MOST_SHARED = 1 << 30
"""Bytes of what constants alone decide that calls share; the rest is computed by each."""

DEFAULT = "default"
"""Numerics of compilations that say nothing else."""

Arrays = tuple[np.ndarray, ...]

EVALUATION = (TilewrightError, MemoryError, ArithmeticError, ValueError, IndexError, TypeError)
"""What the interpreter raises for a call that a program refuses, or that it cannot compute."""


class TooLong(Exception):
    """The interpreter takes longer than it may."""


class SharedValues:
    """What is computed of constants alone, and so is the same in each call. What does not fit is not kept: programs are
    computed from beginning to end, so that what was used last would be what is used last again."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[Arrays, Arrays]] = {}
        self._arrays: dict[int, np.ndarray] = {}
        self._bytes = 0

    def get(self, key: Hashable) -> Arrays | None:
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def has(self, arrays: Arrays) -> bool:
        return all(id(a) in self._arrays for a in arrays)

    def note(self, constant: np.ndarray) -> None:
        """Take an array as the same in each call."""
        self._arrays[id(constant)] = constant

    def keep(self, op: Op, key: Hashable, operands: Sequence[np.ndarray], results: Arrays) -> bool:
        """Whether results of an op are the same in each call; they are kept then, if there is room."""
        if not self.has(tuple(operands)) or not is_of_no_call(op):
            return False
        size = sum(a.nbytes for a in results if a.base is None)
        if self._bytes + size > MOST_SHARED:
            return False
        self._bytes += size
        self._entries[key] = (tuple(operands), results)
        self._arrays.update((id(a), a) for a in results)
        return True

    def forget(self, held: Container[int]) -> None:
        """Keep only what is held elsewhere, by the numbers of arrays."""
        self._entries = {k: entry for k, entry in self._entries.items() if any(id(a) in held for a in entry[1])}
        operands = {id(a) for entry in self._entries.values() for a in entry[0]}
        results = {id(a): a for entry in self._entries.values() for a in entry[1]}
        self._arrays = {n: a for n, a in self._arrays.items() if n in held or n in operands or n in results}
        self._bytes = sum(a.nbytes for a in results.values() if a.base is None)


class ReplayedValues:
    """What the values of a main function are in one call.

    Ops that compute the same of the same arrays, as those do that a pass wrote anew, are computed once. The deadline
    is one of the processor time of this thread (`time.thread_time`), so that what is replayed is the same on a busy
    machine. `numerics` are those of the compilation: some let products round their operands (`closeness`), and
    with all but "strict" ones denormal numbers are zeros. `shared` is what other calls of the program have computed of
    constants.
    """

    def __init__(
        self, module: Module, case: Case, deadline: float, numerics: str = DEFAULT, shared: SharedValues | None = None
    ) -> None:
        self.module = module
        self.case = case
        self.deadline = deadline
        self.numerics = numerics
        self.shared = SharedValues() if shared is None else shared
        self.known: dict[Value, np.ndarray] = dict(zip(module.main.args, case.arrays, strict=True))
        self._memo: dict[Hashable, tuple[Arrays, Arrays]] = {}

    def results(self, op: Op) -> Arrays | None:
        """What an op gives; None where an operand is not known."""
        operands = [self.known.get(v) for v in op.operands]
        if any(a is None for a in operands):
            return None
        return self.of(op, [a for a in operands if a is not None])

    def hurry(self) -> None:
        """TooLong where the interpreter has no time left."""
        if time.thread_time() > self.deadline:
            raise TooLong

    def of(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        """What an op gives for these operands."""
        self.hurry()
        if op.name == "fused":
            return self._region(op, arrays)
        if op.name == "constant":
            constant = self.module.constants[op.attrs["name"]]
            self.shared.note(constant)
            return (constant,)
        key = _key(op, arrays)
        if key is not None and (same := self.shared.get(key)) is not None:
            return same
        if key is not None and (found := self._memo.get(key)) is not None:
            return found[1]
        results = self._computed(op, arrays)
        if key is not None and not self.shared.keep(op, key, arrays, results):
            self._memo[key] = (tuple(arrays), results)  # the operands live as long, so that no other has their number
        return results

    def _computed(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        if is_view(op) and (view := view_of(op, arrays[0], self.case.env)) is not None:
            return (view,)
        flush = self.numerics != "strict"
        return evaluate_op(op, arrays, self.case.env, self.module, flush=flush, pace=self.hurry)

    def _region(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        body = op.blocks[0]
        inside: dict[Value, np.ndarray] = dict(zip(body.args, arrays, strict=True))
        for inner in body.ops[:-1]:
            found = self.of(inner, [inside[v] for v in inner.operands])
            inside.update(zip(inner.results, found, strict=True))
        return tuple(inside[v] for v in body.ops[-1].operands)

    def compute(self, op: Op) -> bool:
        """Compute an op of the main function; whether it could be."""
        results = self.results(op)
        if results is None:
            return False
        self.known.update(zip(op.results, results, strict=True))
        return True

    def keep(self, module: Module) -> None:
        """Forget values that are not in the module any more, and what was computed for them."""
        here = {*module.main.args, *(v for op in module.main.body.ops for v in op.results)}
        self.known = {value: array for value, array in self.known.items() if value in here}
        held = {id(a) for a in self.known.values()}
        self._memo = {k: entry for k, entry in self._memo.items() if any(id(a) in held for a in entry[1])}
        self.shared.forget(held)

    def fork(self, module: Module, values: Mapping[Value, Value]) -> ReplayedValues:
        """The same of a copy of the module, whose `values` are given by those of the original."""
        made = ReplayedValues(module, self.case, self.deadline, self.numerics, self.shared)
        made.known.update((values[v], array) for v, array in self.known.items() if v in values)
        return made

    def deviation(self, op: Op, number: int, wanted: np.ndarray, found: np.ndarray) -> Deviation | None:
        """How what takes the place of a result of `op` differs from it; None where rounding explains that."""
        return deviation(wanted, found, moved=lambda: self._moved(op, number), of_floats=reads_floats(op))

    def moved(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """The arrays, moved by about what rounding does to them."""
        return tuple(nudged(a, k, rounding=self.numerics) for k, a in enumerate(arrays))

    def moved_case(self) -> Case:
        """The call with its inputs moved."""
        return Case(self.case.kind, self.moved(self.case.arrays), self.case.env)

    def compute_all(self) -> list[np.ndarray]:
        """Compute the whole program; what it gives. Raises what the interpreter raises."""
        main = self.module.main
        for op in main.body.ops[:-1]:
            self.compute(op)
        return [self.known[v] for v in main.returns]

    def _moved(self, op: Op, number: int) -> np.ndarray | None:
        """By how much a result moves where operands do by their last bits."""
        operands = [a for v in op.operands if (a := self.known.get(v)) is not None]
        if len(operands) != len(op.operands):
            return None
        try:
            after = self.of(op, self.moved(operands))[number]
            return steps(self.of(op, operands)[number], after)
        except TilewrightError:
            return None


class NudgedValues(ReplayedValues):
    """The same where each float that an operator gives is moved by its last bits, times the square root of the number
    of terms where it is a sum: as much may become of rounding in other places, where what is nearly equal is subtracted
    (mean(x * x) - mean(x) * mean(x) of equal elements). Higham and Mary, "A new approach to probabilistic rounding
    error analysis", 2019, have the bound. With a `sign` of -1 all move to the other side: what is cut off below zero
    moves on one of them. What constants alone decide stays as it is: it is computed once."""

    def __init__(self, of: ReplayedValues, case: Case, sign: int) -> None:
        """The same program as of others, in another call."""
        super().__init__(of.module, case, of.deadline, of.numerics, of.shared)
        self._made = len(self.case.arrays)
        self._sign = sign

    def of(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        found = super().of(op, arrays)
        if op.name in ("fused", "constant") or self.shared.has(found) or traits_of(op).moves:
            return found
        self._made += 1
        return tuple(nudged(a, self._made, times=self._sign * self._terms(op) ** 0.5) for a in found)

    def _terms(self, op: Op) -> int:
        """How many numbers are added up for an element of what an operator gives."""
        extents = terms_of(op)
        known = all(v.name in self.case.env for extent in extents for v in extent.vars)
        return max(1, prod(int(extent.evaluate(self.case.env)) for extent in extents)) if known else 1


def moved_results(values: ReplayedValues, wanted: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """By how much what a program gives moves where its inputs do by their last bits, or what each operator gives where
    no input is a float: ids have no last bits, and layers amplify those of others. None of what has another shape then,
    or takes too long."""
    if not any(is_float(a.dtype) for a in values.case.arrays):
        return _distances(wanted, [NudgedValues(values, values.case, 1)])
    case = values.moved_case()
    moved = ReplayedValues(values.module, case, values.deadline, values.numerics, values.shared)
    return _distances(wanted, [moved])


def moved_everywhere(values: ReplayedValues, wanted: Sequence[np.ndarray]) -> list[np.ndarray | None]:
    """The same where the inputs move, and what each operator gives, to either side."""
    return _distances(wanted, [NudgedValues(values, values.moved_case(), sign) for sign in (1, -1)])


def _distances(wanted: Sequence[np.ndarray], ways: Sequence[ReplayedValues]) -> list[np.ndarray | None]:
    """The largest distance of each element of what a program gives from what it gives in other ways."""
    try:
        found = [way.compute_all() for way in ways]
    except (TooLong, *EVALUATION):
        return [None] * len(wanted)
    return [largest_step(before, after) for before, *after in zip(wanted, *found, strict=True)]


def largest_step(before: Any, after: Sequence[Any]) -> np.ndarray | None:
    """By how much each element of a result moves at most; None of what is no tensor, or one of another shape, or where
    no other results are known."""
    if not after or not all(isinstance(a, np.ndarray) and a.shape == np.shape(before) for a in (before, *after)):
        return None
    return np.asarray(np.maximum.reduce([steps(before, a) for a in after]))


def is_of_no_call(op: Op) -> bool:
    """Whether nothing but its operands decides what an op gives: no dim of a call does."""
    types = [v.type for v in op.results]
    if op.blocks or not all(isinstance(t, TensorType) and all(d.is_const for d in t.shape) for t in types):
        return False
    return not any(map(_depends_on_dims, op.attrs.values()))


def _depends_on_dims(attr: Any) -> bool:
    if isinstance(attr, tuple | list):
        return any(map(_depends_on_dims, attr))
    return isinstance(attr, Sym) and not attr.is_const


def bytes_of_values(func: Func, env: Mapping[str, int]) -> int:
    """What the values of a function take in a call, its constants left out; nothing where their sizes are not known
    before it, or are those of no call."""
    types = (v.type for op in func.body.ops if op.name != "constant" for v in op.results)
    total = 0
    for type in types:
        if isinstance(type, TensorType) and all(v.name in env for d in type.shape for v in d.vars):
            with suppress(ZeroDivisionError):  # a step of 0 makes a range of no size, which the call then refuses
                total += prod(int(d.evaluate(env)) for d in type.shape) * type.dtype.storage.itemsize
    return total


def is_repeatable(op: Op) -> bool:
    """Whether an op, or a region, gives the same each time: random keys are others in each call."""
    inner = op.blocks[0].ops[:-1] if op.name == "fused" else [op]
    return all(traits_of(o).is_pure for o in inner if o.name in OPERATORS)


def reads_floats(op: Op) -> bool:
    """Whether what an op gives depends on floats."""
    return any(getattr(getattr(v.type, "dtype", None), "is_float", False) for v in op.operands)


def _key(op: Op, arrays: Sequence[np.ndarray]) -> Hashable:
    """What tells an op from others, its operands included; None where that cannot be said."""
    if op.blocks:
        return None
    types = tuple(v.type for v in op.results)
    key = (op.name, types, tuple(sorted(op.attrs.items(), key=_first)), tuple(map(id, arrays)))
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _first(item: tuple[str, Any]) -> str:
    return item[0]


class ExactValues(ReplayedValues):
    """What the values of a main function are in one call where each float is of 64 bits: inputs and constants are those
    of the program, and casts to shorter floats change nothing. `rounded` names the operators that have no such form
    (what takes the bits of floats apart), which are computed in their own types."""

    def __init__(self, module: Module, case: Case, deadline: float) -> None:
        super().__init__(module, case, deadline)
        self.known = {value: widened(array) for value, array in self.known.items()}
        self.rounded: dict[str, None] = {}

    def of(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        """What an op gives for these operands, whose floats are of 64 bits."""
        self.hurry()
        if op.name == "fused":
            return self._region(op, arrays)
        if op.name == "constant":
            return (widened(self.module.constants[op.attrs["name"]]),)
        try:
            return tuple(map(widened, self._evaluated(_widened_op(op), arrays)))
        except (*EVALUATION, KeyError, AssertionError):
            own = [_as(v, a) for v, a in zip(op.operands, arrays, strict=True)]
            found = tuple(map(widened, self._evaluated(op, own)))
        self.rounded[op.name] = None
        return found

    def _evaluated(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        return evaluate_op(op, arrays, self.case.env, self.module, pace=self.hurry)


class RoundingValues(ExactValues):
    """The same where each result of a short float is off by half of its last bit at most: one of the ways in which it
    may be rounded, or not."""

    def __init__(self, module: Module, case: Case, deadline: float, seed: int) -> None:
        super().__init__(module, case, deadline)
        self.rng = np.random.default_rng(seed)

    def of(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        return tuple(map(self._rounded, op.results, super().of(op, arrays)))

    def _rounded(self, value: Value, array: np.ndarray) -> np.ndarray:
        if not is_short(value):
            return array
        half = float(finfo(value.tensor.dtype.storage).eps) / 2  # type: ignore[no-untyped-call]
        return np.asarray(array * (1 + half * self.rng.uniform(-1, 1, array.shape)))


def is_short(value: Value) -> bool:
    """Whether it is a tensor of floats of 16 bits and fewer."""
    dtype = getattr(value.type, "dtype", None)
    return isinstance(dtype, DType) and dtype.is_float and dtype.bits <= 16


def widened(array: np.ndarray) -> np.ndarray:
    """The array with floats of 64 bits; others as they are."""
    return array.astype(np.float64) if "float" in array.dtype.name and array.dtype != np.float64 else array


def _as(value: Value, array: np.ndarray) -> np.ndarray:
    """The array in the type that a value has."""
    is_float = isinstance(value.type, TensorType) and value.type.dtype.is_float
    return array.astype(value.tensor.dtype.storage) if is_float else array


def _widened_op(op: Op) -> Op:
    """The operator, of operands of 64 bits where they are floats."""
    attrs: dict[str, Any] = dict(op.attrs)
    dtype, number = attrs.get("dtype"), attrs.get("value")
    if isinstance(dtype, DType) and dtype.is_float and isinstance(number, int | float):
        attrs["value"] = float(dtype.storage.type(number))  # one of the type
    block = Block([_wide_type(v.type) for v in op.operands])
    return Op(op.name, block.args, [v.type for v in op.results], {k: _wide(v) for k, v in attrs.items()}, loc=op.loc)


def _wide_type(type: Any) -> Any:
    return TensorType(_wide(type.dtype), type.shape) if isinstance(type, TensorType) else type


def _wide(attr: Any) -> Any:
    return dt.f64 if isinstance(attr, DType) and attr.is_float else attr
