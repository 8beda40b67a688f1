"""Operators on dequantised values, computed on the integers themselves.

    conv(dequantize(x), dequantize(w))      becomes      conv_integer(x, w) * (x's scale * w's scales)

Sums of products of integers are exact, and so is what only moves or compares elements. Integers with a sign that go
from one operator to another become those without one: the numbers they stand for are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tilewright.graph.match import (
    dtype_of,
    hands_on_elements,
    is_constant,
    shape_of,
    sole_user,
    type_of,
    uniform_number,
)
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, constant_array, defining, rule
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS, Operator, constant
from tilewright.ops.quant import INTEGERS, dequantize_linear, matmul_integer, quantize_linear
from tilewright.ops.traits.derive import is_view, product_of, traits_of
from tilewright.ops.traits.facts import Product
from tilewright.ops.view import pad, reshape, transpose

HALF = 128
"""Between a byte without a sign and the one with a sign that stands for the same number."""

BYTES = 255
"""The greatest difference of two bytes."""


def whole_parameters(op: Op) -> bool:
    """Whether a tensor is quantised by one scale and one zero point."""
    return all(type_of(v).size == 1 for v in op.operands[1:])


def same_parameters(a: Op, b: Op, ctx: RewriteContext) -> bool:
    """Whether two tensors are quantised alike."""
    pairs = zip(a.operands[1:], b.operands[1:], strict=True)
    return all(v is w or (v.type == w.type and _equal(v, w, ctx)) for v, w in pairs)


def _equal(v: Value, w: Value, ctx: RewriteContext) -> bool:
    found = [constant_array(x, ctx.module) for x in (v, w)]
    return all(a is not None for a in found) and bool(np.array_equal(*found))  # type: ignore[arg-type]


# Signs


@rule("dequantize_linear")
def without_a_sign(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """dequantize(quantize(x) as i8) -> the same by u8, which the machine's products want of one operand."""
    x, scale, zero = op.operands
    inner = defining(x, "quantize_linear")
    if inner is None or dtype_of(x) is not dt.i8:
        return None
    zeros = [_moved_zero(v, ctx) for v in (inner.operands[2], zero)]
    if zeros[0] is None or zeros[1] is None:
        return None
    made = quantize_linear(*inner.operands[:2], zeros[0], dtype=dt.u8)
    return dequantize_linear(made, scale, zeros[1], dtype=op.attrs["dtype"])


def _moved_zero(zero: Value, ctx: RewriteContext) -> Value | None:
    array = constant_array(zero, ctx.module)
    return None if array is None else constant((array.astype(np.int32) + HALF).astype(np.uint8), "zero")


# Moves


@rule()
def dequantize_below_move(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A move of dequantised elements moves the integers, and so does a choice by order: dequantisation is a growing
    function."""
    inner = defining(op.operands[0], "dequantize_linear") if len(op.operands) == 1 else None
    if inner is None or not whole_parameters(inner) or is_constant(inner.operands[0]):
        return None
    x, scale, zero = inner.operands
    if not dtype_of(x).is_int or not hands_on_elements(op) or traits_of(op).fills:
        return None
    if not traits_of(op).moves and not _is_normal(scale, ctx):
        return None
    moved = OPERATORS[op.name](x, **op.attrs)
    return dequantize_linear(moved, as_number(scale), as_number(zero), **inner.attrs)


@rule("pad")
def dequantize_below_pad(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Padding with zeros is padding with the zero point."""
    inner = defining(op.operands[0], "dequantize_linear")
    if inner is None or not whole_parameters(inner) or op.attrs["mode"] != "constant" or op.attrs["value"]:
        return None
    x, scale, zero = inner.operands
    number = uniform_number(zero, ctx.module)
    if number is None or not dtype_of(x).is_int:
        return None
    moved = pad(x, **{**op.attrs, "value": number})
    return dequantize_linear(moved, as_number(scale), as_number(zero), **inner.attrs)


@rule("concat")
def dequantize_below_concat(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Parts that are quantised alike."""
    found = [defining(v, "dequantize_linear") for v in op.operands]
    parts = [p for p in found if p is not None and whole_parameters(p)]
    if len(parts) < len(found) or not all(same_parameters(parts[0], p, ctx) for p in parts[1:]):
        return None
    if any(p.operands[0].tensor.dtype is not parts[0].operands[0].tensor.dtype for p in parts):
        return None
    moved = OPERATORS["concat"](*[p.operands[0] for p in parts], **op.attrs)
    return dequantize_linear(moved, *map(as_number, parts[0].operands[1:]), **parts[0].attrs)


@rule("quantize_linear")
def move_below_quantize(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """quantize(move(x)) -> move(quantize(x)): bytes are moved, by those who read them if they can."""
    inner = op.operands[0].op
    if inner is None or not is_view(inner) or sole_user(op.operands[0]) is None:
        return None
    if type_of(inner.result).size != type_of(inner.operands[0]).size:
        return None
    if is_constant(inner.operands[0]) or not whole_parameters(op) or op.attrs["dtype"].bits > 8:
        return None
    quantised = quantize_linear(inner.operands[0], *map(as_number, op.operands[1:]), **op.attrs)
    return OPERATORS[inner.name](quantised, **inner.attrs)


@rule("quantize_linear")
def there_and_back(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """quantize(dequantize(x)) -> x for equal scales and zero points: n * scale / scale rounds to n for all 8 bits."""
    inner = defining(op.operands[0], "dequantize_linear")
    if inner is None or dtype_of(inner.result) != dt.f32 or dtype_of(op.operands[1]) != dt.f32:
        return None
    x = inner.operands[0]
    if dtype_of(x) is not op.attrs["dtype"] or not dtype_of(x).is_int or dtype_of(x).bits > 8:
        return None
    if x.type != op.result.type or not same_parameters(inner, op, ctx) or not _is_normal(op.operands[1], ctx):
        return None
    return x


def _is_normal(scale: Value, ctx: RewriteContext) -> bool:
    array = constant_array(scale, ctx.module)
    return array is not None and bool(np.all((array > 1e-30) & (array < 1e30)))


def as_number(value: Value) -> Value:
    """A tensor of one element without axes."""
    return reshape(value, shape=()) if type_of(value).rank else value


def shifted(x: Value, dtype: DType, shift: int) -> Value:
    """x + shift in another byte `dtype`, which holds it."""
    return ew.cast(ew.add(ew.cast(x, dtype=dt.i16), shift), dtype=dtype)


# Sums of products

WhyNot = Callable[[Op, np.ndarray, np.ndarray], str]
"""Why integers are not multiplied: of an operator, its weights and their zero points."""


def sums_of_integers(why_not: WhyNot) -> Rule:
    """The rule that gives a product, or a convolution, of dequantised operands the integers, where nothing is said
    against it."""
    told = "both operands are quantised: the sums are of integers, which is exact"
    return Rule("sums_of_integers", (), partial(_sums_of_integers, why_not), told)


def _sums_of_integers(why_not: WhyNot, op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    product = product_of(op)
    form = None if product is None else integers_of(op, product)
    if product is None or form is None or dtype_of(op.result) != dt.f32:
        return None
    x, w = (defining(op.operands[k], "dequantize_linear") for k in (product.data, product.weights))
    if x is None or w is None:
        return None
    reason = _why_in_floats(product, x, w)
    if reason:
        return NoMatch(reason)
    weights, zeros = (constant_array(v, ctx.module) for v in (w.operands[0], w.operands[2]))
    if weights is None or zeros is None:
        return NoMatch("the right operand is not known when compiling")
    scale = w.operands[1]
    if product.turns_weights:
        weights, zeros, scale = weights.T, zeros.T, _transposed(scale)
    data, data_scale, data_zero = x.operands[0], *map(as_number, x.operands[1:])
    reason = why_not(op, weights, zeros)
    if reason:
        return NoMatch(reason)
    attrs: dict[str, Any] = {k: v for k, v in op.attrs.items() if k in form.defaults}
    right = [constant(np.ascontiguousarray(array), name) for array, name in ((weights, "w"), (zeros, "w.zero"))]
    sums = form(data, right[0], data_zero, right[1], **attrs)
    if product.of_matrices:
        return scaled(sums, data_scale, scale)
    return scaled(sums, data_scale, reshape(scale, shape=(1, type_of(scale).size, *[1] * (weights.ndim - 2))))


def integers_of(op: Op, product: Product) -> Operator | None:
    """The operator that computes on integers; matrices do not lie transposed there."""
    return matmul_integer if product.of_matrices and product.is_plain else INTEGERS.of(op)


def _why_in_floats(product: Product, x: Op, w: Op) -> str:
    if not is_constant(w.operands[0]):
        return "the right operand is not known when compiling"
    if any(not dtype_of(o.operands[0]).is_int or dtype_of(o.operands[0]).bits > 8 for o in (x, w)):
        return "it is not one of bytes"
    if not whole_parameters(x):
        return "the left operand has several scales"
    if product.turns_data:
        return "the left operand is transposed"
    rank = type_of(w.operands[0]).rank
    if product.of_matrices and rank > 2:
        return "the right operand is a stack of matrices"
    for v in w.operands[1:]:
        shape = (sym(1),) * (rank - type_of(v).rank) + shape_of(v)
        if any(d != 1 for k, d in enumerate(shape) if k != product.kept):
            return "scales differ along the sum"
    return ""


def _transposed(value: Value) -> Value:
    return value if type_of(value).rank < 2 else transpose(value, perm=(1, 0))


def scaled(sums: Value, *scales: Value) -> Value:
    """Sums of products of integers as what they stand for, in f32."""
    left, right = (ew.cast(v, dtype=dt.f32) for v in scales)
    return ew.mul(ew.cast(sums, dtype=dt.f32), ew.mul(left, right))


MOVE_RULES = (
    dequantize_below_move, dequantize_below_pad, dequantize_below_concat, there_and_back, move_below_quantize,
)  # fmt: skip
