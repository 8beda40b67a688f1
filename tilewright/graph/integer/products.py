"""Matrix products and convolutions of integers that stand for numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.graph.integer.fixed import GREATEST, Fixed, as_scale, centred, integers, narrowed, uniform
from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.integer.state import FIXED_POINT, Numbers
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import conv, conv_transpose, matmul, matmul_widening
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.quant import INTEGERS, matmul_integer
from tilewright.ops.source import full
from tilewright.ops.traits.derive import product_of
from tilewright.ops.traits.facts import Product
from tilewright.ops.view import transpose

LEAST_DIGITS = 7
"""Digits of a factor, below which a product is refused."""

SHORT = 1 << 15
"""Beyond the greatest magnitude of the factors of products in i32."""


def product_of_matrices(product: Product, op: Op, numbers: Numbers) -> Fixed:
    """Sums of products of rows and columns."""
    left, right = op.operands[product.data], op.operands[product.weights]
    if numbers.is_known(left) and not numbers.is_known(right):
        return _unknown_operands(product, uniform(numbers.of(left)), uniform(numbers.of(right)))
    weights = _weights(right, numbers)
    if weights is None:
        return _unknown_operands(product, uniform(numbers.of(left)), uniform(numbers.of(right)))
    array, scale = weights
    if product.turns_weights:
        array, scale = np.swapaxes(array, -1, -2), np.swapaxes(scale, -1, -2) if scale.ndim > 1 else scale
    if scale.ndim and (scale.ndim < 2 or scale.shape[-2] != 1):
        raise Obstacle("scales of its weights differ along the sum", "quantise weights by channels of the result")
    x = _left(left, numbers, np.abs(array).sum(axis=-2).max(initial=1))
    value = transpose(x.value, perm=_swapped(x.value)) if product.turns_data else x.value
    if x.is_narrow and dtype_of(x.value).bits == 8 and array.ndim == 2 and np.abs(array).max(initial=0) <= 255:
        w, zero = _stored(array)
        made = matmul_integer(value, w, _number(x.zero, dtype_of(value)), zero)
    else:
        made = matmul(centred(replace(x, value=value)), integers(array))
    low, high = _ends(x, array, -2)
    return Fixed(made, as_scale(x.scale * scale), low, high)


def _unknown_operands(product: Product, a: Fixed, b: Fixed) -> Fixed:
    """Of two operands that are computed in the call."""
    depth = shape_of(a.value)[product.depth]
    if not depth.is_const:
        raise Obstacle("it sums a number of products that is not known when compiling", "fix the sizes of the inputs")
    a, b = (x if x.low >= -SHORT and x.high < SHORT else narrowed(x, SHORT - 1) for x in (a, b))
    while a.bound * b.bound * depth.value > GREATEST:
        a, b = (narrowed(a, a.bound // 2), b) if a.bound >= b.bound else (a, narrowed(b, b.bound // 2))
        if min(a.bound, b.bound) < 1 << LEAST_DIGITS:
            raise Obstacle("its sums may be longer than 32 bits")
    sides = [_short(x) for x in (a, b)]
    for k, turns in enumerate((product.turns_data, product.turns_weights)):
        if turns:
            sides[k] = transpose(sides[k], perm=_swapped(sides[k]))
    bound = a.bound * b.bound * depth.value
    return Fixed(matmul_widening(*sides, sums=dt.i32), as_scale(a.scale * b.scale), -bound, bound)


def _short(x: Fixed) -> Value:
    """The integers themselves in i16, up to 2^15 - 1."""
    return ew.cast(centred(x), dtype=dt.i16)


def _swapped(value: Value) -> tuple[int, ...]:
    rank = len(shape_of(value))
    return (*range(rank - 2), rank - 1, rank - 2)


@FIXED_POINT.rule(conv, conv_transpose)
def _conv(op: Op, numbers: Numbers) -> Fixed:
    product, form = product_of(op), INTEGERS.of(op)
    assert product is not None
    weights = _weights(op.operands[1], numbers)
    if weights is None:
        raise Obstacle("its filters are not known when compiling")
    array, scale = weights
    if scale.ndim and any(n != 1 for k, n in enumerate(scale.shape) if k != product.kept):
        raise Obstacle("scales of its filters differ along the sum", "quantise filters by channels of the result")
    if scale.ndim and product.kept and op.attrs.get("groups", 1) != 1:
        raise Obstacle("its filters of several groups have several scales", "quantise its filters by one scale")
    x = _left(op.operands[0], numbers, np.abs(array).sum(axis=product.summed).max(initial=1))
    attrs: dict[str, Any] = {k: v for k, v in op.attrs.items() if k != "sums"}
    if form is not None and x.is_narrow and dtype_of(x.value).bits == 8 and np.abs(array).max(initial=0) <= 255:
        w, zero = _stored(array)
        made = form(x.value, w, _number(x.zero, dtype_of(x.value)), zero, **attrs)
    else:
        made = OPERATORS[op.name](centred(x), integers(array), **attrs)
    # Sums of parts of a filter, where it reaches over the edge, lie between those of negative and positive factors.
    low, high = _ends(x, array, product.summed)
    by_channel = scale.reshape(1, -1, *[1] * (array.ndim - 2)) if scale.ndim else scale
    return Fixed(made, as_scale(x.scale * by_channel), low, high)


def _ends(x: Fixed, array: np.ndarray, along: int | tuple[int, ...]) -> tuple[int, int]:
    """The range of sums of products, of which some may be left out."""
    above, below = (np.maximum(side, 0).astype(np.float64).sum(axis=along) for side in (array, -array))
    top, bottom = max(x.high, 0), max(-x.low, 0)
    high = (above * top + below * bottom).max(initial=0)
    low = (above * bottom + below * top).max(initial=0)
    return -int(low), int(high)


def _left(value: Value, numbers: Numbers, total: float) -> Fixed:
    """The numbers that are multiplied, of as many digits as sums in i32 allow."""
    x = numbers.of(value)
    bound = int(GREATEST // total)
    if bound < 1 << LEAST_DIGITS or (x.is_narrow and x.bound > bound):
        raise Obstacle("its sums may be longer than 32 bits", "quantise its operands to fewer bits")
    return narrowed(x, bound)


def _weights(value: Value, numbers: Numbers) -> tuple[np.ndarray, np.ndarray] | None:
    """Known integers without their zero points, and their scales; None where they are not known."""
    if not numbers.is_known(value):
        return None
    found = numbers.quantized.get(value)
    if found is None:
        raise Obstacle("its weights are floats", "quantise the weights (DequantizeLinear of known integers)")
    return found()


def _stored(array: np.ndarray) -> tuple[Value, Value]:
    """Centred weights in a byte, and their zero point."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    if low >= -128 and high <= 127:
        return constant(array.astype(np.int8), "w"), _number(0, dt.i8)
    zero = max(-low, 0)
    if high + zero > 255:
        raise Obstacle("its centred weights are longer than a byte", "quantise them by one zero point")
    return constant((array + zero).astype(np.uint8), "w"), _number(zero, dt.u8)


def _number(n: int, dtype: dt.DType) -> Value:
    return full(value=n, dtype=dtype, shape=())
