"""Numbers in fixed point: integers that stand for themselves times a factor which is known when compiling.

All of it is arithmetic of integers, so every machine gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops.define import op
from tilewright.ops.elementwise import (
    add,
    and_,
    bitcast,
    cast,
    div,
    le,
    max_,
    min_,
    mul,
    neg,
    select,
    shl,
    shr,
    sub,
)
from tilewright.ops.quant import limits
from tilewright.ops.reduce import dtype_of, element_count, reduce_max, reduce_sum
from tilewright.ops.shape import checked_axes, checked_axis
from tilewright.ops.source import full
from tilewright.ops.view import shape_of

LOG_BITS = 15
"""Binary digits of a logarithm behind the point."""

POWERS_OF_TWO = (22711, 7908, 1705, 446)
"""Times 2^-15 the factors of f, f^2, f^3 and f^4 in 2^f - 1 for f in 0..1: of all near those of the best polynomial
the ones with the least greatest error of the rounded sums, 5.5e-5."""

SHARE_BITS = 24
"""Binary digits of a probability behind the point."""

MEAN_BITS = 20
"""Digits of the elements of which means and variances are taken."""

ROOT_BITS = 10
"""Binary digits of a standard deviation behind the point."""

RECIPROCAL_BITS = 46
"""Binary digits of the reciprocal of a standard deviation behind the point."""

_HALF_RANGE = 1 << 62
"""What makes products of 31 digits positive, so that a shift without a sign rounds them down: machines have it for
vectors of 64 bits, and few have the other."""


def shifted_right(x: Value, shift: int) -> Value:
    """x / 2^shift of i64 between -2^62 and 2^62 - 1 - 2^(shift-1), to the nearest integer; halves go up."""
    moved = bitcast(add(x, _HALF_RANGE + (1 << (shift - 1))), dtype=dt.u64)
    return sub(bitcast(shr(moved, shift), dtype=dt.i64), _HALF_RANGE >> shift)


def _check_shift(shift: int) -> None:
    if not 1 <= shift <= 62:
        raise ValueError(f"the shift must be 1 to 62, not {shift}")


def _scaled(x: Value, multiplier: Value, shift: int) -> Value:
    _check_shift(shift)
    return shifted_right(mul(cast(x, dtype=dt.i64), cast(multiplier, dtype=dt.i64)), shift)


@op
def requantize_fixed(
    sums: Value, multiplier: Value, *, shift: int, zero_point: int, dtype: DType
) -> Value:
    """i32 `sums` times multiplier / 2^shift (i32, broadcastable), rounded, shifted and saturated to `dtype`, of up to
    16 bits.

    Without a float, so that every machine gives the same: the product has 64 bits, and is rounded once; halves go up.
    """
    if not dtype.is_int or dtype.bits > 16:
        raise ValueError(f"sums are requantised to integers of up to 16 bits, not to {dtype}")
    rounded = _scaled(sums, multiplier, shift)
    if shift > 31:  # less than 2^31: 32 bits, of which machines have more at a time
        rounded = cast(rounded, dtype=dt.i32)
    low, high = limits(dtype)
    inside = min_(max_(rounded, int(low) - zero_point), int(high) - zero_point)  # before the sum, which then is exact
    return cast(add(cast(inside, dtype=dt.i32), zero_point), dtype=dtype)


@op
def rescale_fixed(x: Value, multiplier: Value, *, shift: int, limit: int = (1 << 31) - 1) -> Value:
    """i32 x times multiplier / 2^shift (i32, broadcastable), rounded, and limited to -limit..limit, in i32; halves go
    up."""
    rounded = _scaled(x, multiplier, shift)
    if shift > 31 and limit == (1 << 31) - 1:
        return cast(rounded, dtype=dt.i32)
    return cast(min_(max_(rounded, -limit), limit), dtype=dt.i32)


def fixed_point(scales: np.ndarray) -> tuple[np.ndarray, int]:
    """Factors that are not negative as i32 multipliers with one shift: multiplier / 2^shift is each of them, the
    largest of 31 digits."""
    exact = np.asarray(scales, np.float64)
    if not exact.size or not np.all(np.isfinite(exact)) or exact.min() < 0 or exact.max() <= 0:
        raise ValueError("factors of sums must be positive numbers")
    shift = min(62, 31 - int(np.frexp(exact.max())[1]))
    if np.rint(np.ldexp(exact.max(), shift)) >= 1 << 31:  # rounded up to the next power
        shift -= 1
    if shift < 1:
        raise ValueError(f"the factor {exact.max():g} of sums is too large for a product of 64 bits")
    return np.rint(np.ldexp(exact, shift)).astype(np.int32), shift


@op
def power_of_two_fixed(x: Value, *, bits: int) -> Value:
    """2^x with `bits` binary digits behind the point (15 to 30), of i32 x up to 0 with 15; a polynomial of 2^f for the
    fraction f, and a shift for the rest (as in I-BERT, Kim et al., 2021)."""
    if dtype_of(x) is not dt.i32 or not LOG_BITS <= bits <= 30:
        raise ValueError(f"powers of i32 have {LOG_BITS} to 30 digits, not {bits} of {dtype_of(x)}")
    fraction = and_(x, (1 << LOG_BITS) - 1)
    *others, last = POWERS_OF_TWO
    found = shr(mul(fraction, last), LOG_BITS)
    for factor in reversed(others):
        found = shr(mul(add(found, factor), fraction), LOG_BITS)
    whole = min_(neg(shr(x, LOG_BITS)), 31)
    return shr(shl(add(found, 1 << LOG_BITS), bits - LOG_BITS), whole)


@op
def softmax_fixed(x: Value, *, axis: int = -1) -> Value:
    """2^x / sum(2^x) along `axis` with 24 binary digits behind the point, of i32 x with 15 that lie in -2^30..2^30.

    What is less than 2^-24 (2^-15 of many elements) of the greatest counts as 0.
    """
    shape = shape_of(x)
    length = shape[checked_axis(axis, len(shape))]
    known = length.value if length.is_const else 1 << 15
    bits = max(min(SHARE_BITS, 30 - max(known - 1, 1).bit_length()), LOG_BITS)
    powers = power_of_two_fixed(sub(x, reduce_max(x, axes=(axis,))), bits=bits)
    total = reduce_sum(cast(powers, dtype=dt.i64), axes=(axis,))
    share = div(_number(1 << (bits + 30)), max_(total, 1))  # of the greatest element: up to 2^30
    product = mul(cast(powers, dtype=dt.i64), share)
    return cast(shifted_right(product, bits + 30 - SHARE_BITS), dtype=dt.i32)


@op
def integer_root(x: Value) -> Value:
    """The greatest integer whose square is not above x, an i64 in 0..2^62 - 1; one binary digit after the other."""
    if dtype_of(x) is not dt.i64:
        raise ValueError(f"roots are found of i64, not of {dtype_of(x)}")
    root = _number(0)
    for digit in reversed(range(31)):
        tried = add(root, 1 << digit)
        root = select(le(mul(tried, tried), x), tried, root)
    return root


@op
def standardize_fixed(
    x: Value, *, axes: Sequence[int], bits: int, epsilon: int = 0, centred: bool = True
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) over `axes` with `bits` binary digits behind the point, in i32, of i32 x in
    -2^20..2^20; x / sqrt(mean of squares + epsilon) where x is not `centred`. The result, which is at most the root of
    the number of elements, must fit 31 bits. Mean and variance are rounded to integers (that of a byte's x is best
    shifted up before), the root to 10 binary digits behind the point.
    """
    along = checked_axes(axes, len(shape_of(x)))
    count = element_count(x, along, dt.i64)
    if centred:
        offset = 1 << (MEAN_BITS + 1)  # so that the division rounds down
        total = reduce_sum(cast(x, dtype=dt.i64), axes=along)
        doubled = add(mul(add(total, mul(count, offset)), 2), count)
        x = sub(x, cast(sub(div(doubled, mul(count, 2)), offset), dtype=dt.i32))
    wide = cast(x, dtype=dt.i64)
    variance = add(div(reduce_sum(mul(wide, wide), axes=along), count), epsilon)
    root = integer_root(shl(min_(variance, (1 << 42) - 1), 2 * ROOT_BITS))
    reciprocal = div(_number(1 << (RECIPROCAL_BITS + ROOT_BITS)), max_(root, 1))
    return cast(shifted_right(mul(cast(x, dtype=dt.i64), reciprocal), RECIPROCAL_BITS - bits), dtype=dt.i32)


def _number(n: int) -> Value:
    return full(value=n, dtype=dt.i64, shape=())
