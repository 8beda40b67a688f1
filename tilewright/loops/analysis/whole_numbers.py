"""What is known of floats that stand for short integers, and saves instructions.

Numbers that are rounded to a short integer and go on as floats stay whole floats within its limits:

    f32(u8(round(x) + 128.0)) - 128.0      becomes      round(x) limited to -128.0 and 127.0

What a quantised network does not store needs no integer: that is three conversions and two additions less for each
vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, prod

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value

_ROUNDING = frozenset({"round", "floor", "ceil", "trunc"})
_KEEPING = frozenset({"add", "sub", "min", "max"})
"""Operations that make whole numbers of whole numbers: floats beyond 2^24 are whole anyway."""

GREATEST_FLOAT = 3e38

DEPTH = 8
"""Operations of an expression that are looked at, one after the other."""


@dataclass(frozen=True)
class Limited:
    """`value` (f32), which is whole, between two whole numbers, NaN as `nan`."""

    value: Value
    low: int
    high: int
    nan: int


def limited_of(op: Op) -> Limited | None:
    """What the float that `op` gives is, where it comes from a short integer that whole numbers were converted to."""
    if op.name == "cast":
        return _by_way_of_integer(op)
    if op.name != "add" or op.operands[0].op is None:
        return None
    inner, moved = _by_way_of_integer(op.operands[0].op), _number(op.operands[1])
    if inner is None or moved is None or inner.value.op is None or inner.value.op.name != "add":
        return None
    x, before = inner.value.op.operands
    if _number(before) != -moved or not moved.is_integer() or not is_whole(x):
        return None
    start = int(moved)
    return Limited(x, inner.low + start, inner.high + start, inner.nan + start)


def _by_way_of_integer(back: Op) -> Limited | None:
    there = back.operands[0].op if back.name == "cast" and back.result.scalar.dtype is dt.f32 else None
    if there is None or there.name != "cast" or there.operands[0].scalar.dtype is not dt.f32:
        return None
    dtype = there.result.scalar.dtype
    if not dtype.is_int or dtype.bits not in (8, 16) or not is_whole(there.operands[0]):
        return None
    limits = np.iinfo(dtype.storage)
    return Limited(there.operands[0], int(limits.min), int(limits.max), nan=0)


def is_whole(value: Value, depth: int = DEPTH) -> bool:
    """Whether a float is an integer, infinite or NaN."""
    op = value.op
    if op is None or not depth:
        return False
    if op.name == "const":
        return float(op.attrs["value"]).is_integer()
    if op.name == "cast":
        return op.operands[0].scalar.dtype.is_int
    return op.name in _ROUNDING or (op.name in _KEEPING and all(is_whole(v, depth - 1) for v in op.operands))


def _number(value: Value) -> float | None:
    return float(value.op.attrs["value"]) if value.op is not None and value.op.name == "const" else None


def magnitude(value: Value, depth: int = DEPTH) -> float:
    """What a float does not exceed, NaN apart, in size; infinite where that is not known."""
    op = value.op
    if op is None or not depth:
        return inf
    if op.name == "const":
        return abs(float(op.attrs["value"]))
    if op.name == "cast":
        source = op.operands[0].scalar.dtype
        return 2.0**source.bits if source.is_int else inf
    if op.name == "mul":
        return prod(magnitude(v, depth - 1) for v in op.operands)
    return sum(magnitude(v, depth - 1) for v in op.operands) if op.name in ("add", "sub") else inf


def has_finite_quotient(op: Op) -> bool:
    """Whether a `quotient` is surely not that of an infinite number, nor infinite itself."""
    x, _, inverse = op.operands
    return magnitude(x) * magnitude(inverse) < GREATEST_FLOAT
