"""Quantised numbers: conversion, and integer products of them. Scales and zero points come broadcastable."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, sym
from tilewright.ops.contract import conv, matmul
from tilewright.ops.define import Operator, op
from tilewright.ops.elementwise import (
    add,
    and_,
    bitcast,
    cast,
    div,
    ge,
    gt,
    lt,
    max_,
    min_,
    mul,
    round_,
    select,
    shl,
    shr,
    sub,
)
from tilewright.ops.reduce import dtype_of, reduce_max, reduce_min
from tilewright.ops.shape import Dim, require_unstretched
from tilewright.ops.source import full
from tilewright.ops.traits.slots import RuleSlot
from tilewright.ops.view import expand, reshape, shape_of, slice_


def is_quantised(dtype: DType) -> bool:
    """Whether numbers are quantised to this dtype: integers, floats of up to 8 bits that have a mantissa."""
    return dtype.is_int or (dtype.is_float and dtype.bits <= 8 and dtype is not dt.f8e8m0)


def changes_type_alone(op: Op) -> bool:
    """Whether the numbers of the result are those of the first operand, as near as its type has them."""
    return op.name in ("cast", "quantize_linear", "dequantize_linear")


def is_quantisation(op: Op) -> bool:
    """Whether it takes numbers to integers that stand for them, or back."""
    return op.name in ("quantize_linear", "dequantize_linear")


INTEGERS: RuleSlot[Operator] = RuleSlot("integers")
"""Of a product, the operator for integers: it takes a zero point of each operand behind both, and gives i32."""

OF_NUMBERS: RuleSlot[Operator] = RuleSlot("of_numbers")
"""The other way round: of such an operator, the one for numbers."""


def takes_integers(operator: Operator, integers: Operator) -> None:
    """Declare that `integers` is the form of a product for integers with zero points."""
    INTEGERS.give(integers, operator)
    OF_NUMBERS.give(operator, integers)


def without_integers(op: Op) -> str:
    """The operator that computes of floats what this one computes of integers; itself where it is none of integers."""
    floats = OF_NUMBERS.of(op)
    return op.name if floats is None else floats.name


def limits(dtype: DType) -> tuple[float, float]:
    """The least and the greatest finite value of a dtype to which numbers are quantised."""
    if not is_quantised(dtype):
        raise ValueError(f"numbers are quantised to integers and floats of up to 8 bits, not to {dtype}")
    if dtype.is_float:
        greatest = float(ml_dtypes.finfo(dtype.storage).max)  # type: ignore[no-untyped-call]
        return -greatest, greatest
    return (
        (-(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1)
        if dtype.kind == "int"
        else (0, (1 << dtype.bits) - 1)
    )


def saturated(x: Value, dtype: DType) -> Value:
    """x limited to what is finite in `dtype`; NaN stays."""
    low, high = limits(dtype)
    return min_(max_(x, low), high)


@op
def cast_to_power(x: Value, *, mode: str, saturate: bool = True) -> Value:
    """|x| as a power of two (f8e8m0), the next one `up` or `down`, or the nearest, of two the greater; NaN stays.

    What is beyond the powers, as 0 and infinity, becomes the last one; without `saturate`, NaN.
    """
    pattern = and_(bitcast(cast(x, dtype=dt.f32), dtype=dt.u32), 0x7FFFFFFF)
    normal = ge(pattern, 0x00800000)
    # A denormal is brought into the form of others: exponent 0 stands for 2^-127, followed by the mantissa.
    denormal = shl(sub(max_(pattern, 0x00400000), 0x00400000), 1)
    carries = {"down": 0, "nearest": 0x400000, "up": 0x7FFFFF}
    if mode not in carries:
        raise ValueError(f"mode is one of {', '.join(carries)}, not {mode!r}")
    carry = carries[mode]
    code = shr(add(select(normal, pattern, denormal), carry), 23)
    if saturate:
        code = select(gt(pattern, 0x7F800000), 0xFF, min_(code, 0xFE))
    else:
        code = select(lt(pattern, 0x00400000), 0xFF, min_(code, 0xFF))
    return bitcast(cast(code, dtype=dt.u8), dtype=dt.f8e8m0)


@op(keep=True)
def quantize_linear(
    x: Value, scale: Value, zero_point: Value, *, dtype: DType, saturate: bool = True
) -> Value:
    """round(x / scale) + zero_point in `dtype`, to which it is saturated; halves round to even.

    Floats of up to 8 bits take x / scale + zero_point, rounded; without `saturate` what is beyond them becomes infinite
    or NaN, where they have these.
    """
    if not is_quantised(dtype):
        raise ValueError(f"numbers are quantised to integers and floats of up to 8 bits, not to {dtype}")
    _require_numbers(x, scale, zero_point)
    ratio = div(cast(x, dtype=dt.f32), cast(scale, dtype=dt.f32))
    if dtype.is_float:
        moved = add(ratio, cast(zero_point, dtype=dt.f32))
        return cast(saturated(moved, dtype) if saturate else moved, dtype=dtype)
    return rounded_ratio(ratio, zero_point, dtype)


def rounded_ratio(ratio: Value, zero_point: Value, dtype: DType) -> Value:
    """x / scale (f32) as an integer of `dtype`: rounded, shifted by the zero point, and saturated."""
    wide = dt.f32 if dtype.bits < 32 else dt.f64
    return _as_integer(add(cast(round_(ratio), dtype=wide), cast(zero_point, dtype=wide)), dtype)


def _as_integer(x: Value, dtype: DType) -> Value:
    """Whole x in an integer dtype, to which it is saturated."""
    return cast(x if dtype.bits >= 8 else saturated(x, dtype), dtype=dtype)  # a cast to whole bytes saturates


@op(keep=True)
def dequantize_linear(x: Value, scale: Value, zero_point: Value, *, dtype: DType) -> Value:
    """(x - zero_point) * scale in `dtype`, which is the scale's or wider."""
    _require_numbers(x, scale, zero_point)
    if dtype_of(x).bits <= 16:  # differences are exact in float32
        centred = sub(cast(x, dtype=dt.f32), cast(zero_point, dtype=dt.f32))
    else:
        centred = cast(sub(cast(x, dtype=dt.i64), cast(zero_point, dtype=dt.i64)), dtype=dt.f32)
    return cast(mul(centred, cast(scale, dtype=dt.f32)), dtype=dtype)


@op
def dynamic_quantize_linear(x: Value) -> tuple[Value, Value, Value]:
    """x as u8 with the scale (f32 scalar) and zero point (u8 scalar) that its own range asks for."""
    axes = tuple(range(len(shape_of(x))))
    high = max_(reduce_max(x, axes=axes, keepdims=False), 0.0)
    low = min_(reduce_min(x, axes=axes, keepdims=False), 0.0)
    scale = div(sub(high, low), 255.0)
    start = round_(div(sub(full(value=0.0, dtype=dtype_of(x), shape=()), low), scale))
    zero_point = cast(min_(max_(start, 0.0), 255.0), dtype=dt.u8)
    return quantize_linear(x, scale, zero_point, dtype=dt.u8), scale, zero_point


@op(keep=True)
def matmul_integer(a: Value, b: Value, a_zero: Value, b_zero: Value) -> Value:
    """(a - a_zero) @ (b - b_zero) in i32; zero points broadcast and are the same along the axis that is summed over."""
    return matmul(_centred(a, a_zero), _centred(b, b_zero))


@op(keep=True)
def conv_integer(
    x: Value,
    w: Value,
    x_zero: Value,
    w_zero: Value,
    *,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
    groups: int = 1,
) -> Value:
    """The convolution of (x - x_zero) with (w - w_zero) in i32; padding stands for 0."""
    return conv(
        _centred(x, x_zero), _centred(w, w_zero), strides=strides, pads_begin=pads_begin, pads_end=pads_end,
        dilations=dilations, groups=groups,
    )  # fmt: skip


takes_integers(matmul, matmul_integer)
takes_integers(conv, conv_integer)


def _centred(x: Value, zero: Value) -> Value:
    require_unstretched(shape_of(x), shape_of(zero), "zero points")
    return sub(cast(x, dtype=dt.i32), cast(zero, dtype=dt.i32))


@op
def requantize(sums: Value, scale: Value, zero_point: Value, *, dtype: DType) -> Value:
    """i32 `sums` times `scale` (f32), rounded, shifted and saturated to `dtype`."""
    _require_numbers(sums, scale, zero_point)
    shifted = add(round_(mul(cast(sums, dtype=dt.f32), scale)), cast(zero_point, dtype=dt.f32))
    return _as_integer(shifted, dtype)


def _require_numbers(x: Value, scale: Value, zero_point: Value) -> None:
    require_unstretched(shape_of(x), shape_of(scale), "scales")
    require_unstretched(shape_of(x), shape_of(zero_point), "zero points")


def along_axis(x: Value, axis: int, rank: int) -> Value:
    """A vector laid along `axis` of `rank` axes."""
    (length,) = shape_of(x)
    return reshape(x, shape=tuple(length if k == axis else 1 for k in range(rank)))


def spread(x: Value, axis: int, block: int, size: Sym) -> Value:
    """One number for each block of `block` elements as one for each of `size` elements along the axis."""
    shape = shape_of(x)
    apart = (*shape[: axis + 1], sym(1), *shape[axis + 1 :])
    wide = (*shape[: axis + 1], sym(block), *shape[axis + 1 :])
    merged = (*shape[:axis], shape[axis] * block, *shape[axis + 1 :])
    return cut(reshape(expand(reshape(x, shape=apart), shape=wide), shape=merged), axis, size)


def cut(x: Value, axis: int, size: Sym) -> Value:
    """The first `size` elements along an axis."""
    shape = shape_of(x)
    if shape[axis] == size:
        return x
    sizes = tuple(size if k == axis else d for k, d in enumerate(shape))
    return slice_(x, starts=(0,) * len(shape), sizes=sizes, steps=(1,) * len(shape))
