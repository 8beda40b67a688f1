"""What is known of floats that stand for short integers, and saves instructions.

Numbers that are rounded to a short integer and go on as floats stay whole floats within its limits:

    f32(u8(round(x) + 128.0)) - 128.0      becomes      round(x) limited to -128.0 and 127.0

What a quantised network does not store needs no integer: that is three conversions and two additions less for each
vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.scalar import converted_from, scalar_operation

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
    moved = _moved(op.result)
    if moved is None:
        return _by_way_of_integer(op.result)
    inner, start = _by_way_of_integer(moved[0]), moved[1]
    before = None if inner is None else _moved(inner.value)
    if inner is None or before is None or before[1] != -start or not is_whole(before[0]):
        return None
    return Limited(before[0], inner.low + start, inner.high + start, inner.nan + start)


def _moved(value: Value) -> tuple[Value, int] | None:
    """x and n, where a value is x + n and n a whole number."""
    op = value.op
    number = _number(op.operands[1]) if op is not None and op.name == "add" else None
    return None if op is None or number is None or not number.is_integer() else (op.operands[0], int(number))


def _by_way_of_integer(value: Value) -> Limited | None:
    integer = converted_from(value) if value.scalar.dtype is dt.f32 else None
    x = None if integer is None else converted_from(integer)
    if integer is None or x is None or x.scalar.dtype is not dt.f32:
        return None
    dtype = integer.scalar.dtype
    if not dtype.is_int or dtype.bits not in (8, 16) or not is_whole(x):
        return None
    limits = np.iinfo(dtype.storage)
    return Limited(x, int(limits.min), int(limits.max), nan=0)


def is_whole(value: Value, depth: int = DEPTH) -> bool:
    """Whether a float is an integer, infinite or NaN."""
    op = value.op
    if op is None or not depth:
        return False
    if op.name == "const":
        return float(op.attrs["value"]).is_integer()
    if (source := converted_from(value)) is not None:
        return source.scalar.dtype.is_int
    whole = scalar_operation(op).whole
    return whole == "makes" or (whole == "keeps" and all(is_whole(v, depth - 1) for v in op.operands))


def _number(value: Value) -> float | None:
    return float(value.op.attrs["value"]) if value.op is not None and value.op.name == "const" else None


def magnitude(value: Value, depth: int = DEPTH) -> float:
    """What a float does not exceed, NaN apart, in size; infinite where that is not known."""
    op = value.op
    if op is None or not depth:
        return inf
    if op.name == "const":
        return abs(float(op.attrs["value"]))
    if (source := converted_from(value)) is not None:
        return 2.0**source.scalar.dtype.bits if source.scalar.dtype.is_int else inf
    size = scalar_operation(op).size
    return inf if size is None else size(*(magnitude(v, depth - 1) for v in op.operands))


def has_finite_quotient(op: Op) -> bool:
    """Whether a `quotient` is surely not that of an infinite number, nor infinite itself."""
    x, _, inverse = op.operands
    return magnitude(x) * magnitude(inverse) < GREATEST_FLOAT
