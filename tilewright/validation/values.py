"""The values of a program while passes change it: each op is computed once by the interpreter, on one call. And those
of a program in float64 throughout, where no result is rounded to a shorter type on the way."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from ml_dtypes import finfo

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.ir.diag import TilewrightError
from tilewright.ir.dtype import DType
from tilewright.ir.types import TensorType
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate_op
from tilewright.ops.traits.derive import traits_of
from tilewright.validation.cases import Case
from tilewright.validation.closeness import Deviation, deviation, nudged, steps

DEFAULT = "default"
"""Numerics of compilations that say nothing else."""

Arrays = tuple[np.ndarray, ...]

EVALUATION = (TilewrightError, MemoryError, ArithmeticError, ValueError, IndexError, TypeError)
"""What the interpreter raises for a call that a program refuses, or that it cannot compute."""


class TooLong(Exception):
    """The interpreter takes longer than it may."""


class ReplayedValues:
    """What the values of a main function are in one call.

    Ops that compute the same of the same arrays, as those do that a pass wrote anew, are computed once. The deadline
    is one of the processor time of this thread (`time.thread_time`), so that what is replayed is the same on a busy
    machine. `numerics` are those of the compilation: "fast" ones let products round their operands, and with all but
    "strict" ones denormal numbers are zeros.
    """

    def __init__(self, module: Module, case: Case, deadline: float, numerics: str = DEFAULT) -> None:
        self.module = module
        self.case = case
        self.deadline = deadline
        self.numerics = numerics
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
            return (self.module.constants[op.attrs["name"]],)
        key = _key(op, arrays)
        if key is not None and (found := self._memo.get(key)) is not None:
            return found[1]
        flush = self.numerics != "strict"
        results = evaluate_op(op, arrays, self.case.env, self.module, flush=flush, pace=self.hurry)
        if key is not None:
            self._memo[key] = (tuple(arrays), results)  # the operands live as long, so that no other has their number
        return results

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

    def fork(self, module: Module, values: Mapping[Value, Value]) -> ReplayedValues:
        """The same of a copy of the module, whose `values` are given by those of the original."""
        made = ReplayedValues(module, self.case, self.deadline, self.numerics)
        made.known.update((values[v], array) for v, array in self.known.items() if v in values)
        return made

    def deviation(self, op: Op, number: int, wanted: np.ndarray, found: np.ndarray) -> Deviation | None:
        """How what takes the place of a result of `op` differs from it; None where rounding explains that."""
        return deviation(wanted, found, moved=lambda: self._moved(op, number), of_floats=reads_floats(op))

    def moved(self, arrays: Sequence[np.ndarray]) -> Arrays:
        """The arrays, moved by about what rounding does to them."""
        return tuple(nudged(a, k, is_fast=self.numerics == "fast") for k, a in enumerate(arrays))

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
    moves on one of them."""

    def __init__(self, module: Module, case: Case, deadline: float, numerics: str, sign: int) -> None:
        super().__init__(module, case, deadline, numerics)
        self._made = len(case.arrays)
        self._sign = sign

    def of(self, op: Op, arrays: Sequence[np.ndarray]) -> Arrays:
        found = super().of(op, arrays)
        if op.name in ("fused", "constant") or traits_of(op).moves:
            return found
        self._made += 1
        return tuple(nudged(a, self._made, times=self._sign * self._terms(op) ** 0.5) for a in found)

    def _terms(self, op: Op) -> int:
        """How many numbers are added up for an element of what an operator gives."""
        operator = OPERATORS.get(op.name)
        if operator is None or operator.kind != "primitive":
            return 1
        extents = [extent for _, extent in operator.compute([v.tensor for v in op.operands], op.attrs).reduce]
        known = all(v.name in self.case.env for extent in extents for v in extent.vars)
        return max(1, prod(int(extent.evaluate(self.case.env)) for extent in extents)) if known else 1


def bytes_of_values(func: Func, env: Mapping[str, int]) -> int:
    """What the values of a function take in a call, its constants left out; nothing where their sizes are not known
    before it."""
    types = (v.type for op in func.body.ops if op.name != "constant" for v in op.results)
    total = 0
    for type in types:
        if isinstance(type, TensorType) and all(v.name in env for d in type.shape for v in d.vars):
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
