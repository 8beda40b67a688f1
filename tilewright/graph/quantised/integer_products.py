"""Products of 8-bit integers for the machine's instructions that multiply these in groups.

    (a - a_zero) @ (b - b_zero)

Zero points do not enter the product: with dtypes that hold the centred numbers these are multiplied; else the sums are
corrected by those of whole columns of b, which are known, and of whole rows of a. All of it is exact in i32. Padding is
written as the zero point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tilewright.cost.conv.window_tile import adds_taps_in_groups
from tilewright.cost.core import products_per_float
from tilewright.cost.narrow_weights import is_widened_when_read
from tilewright.graph.layout.block_channels import BlockChannels
from tilewright.graph.layout.blocked_convs import filters_suit_blocks
from tilewright.graph.match import dtype_of, is_constant, shape_of, uniform_number
from tilewright.graph.quantised.attention import attention_in_integers
from tilewright.graph.quantised.dequantized import (
    BYTES,
    HALF,
    MOVE_RULES,
    as_number,
    sums_of_integers,
    whole_parameters,
    without_a_sign,
)
from tilewright.graph.quantised.exact_division import divide_by_known_scale
from tilewright.graph.quantised.products_of_the_call import as_bytes, product_of_the_call
from tilewright.graph.quantised.recurrent_products import states_in_groups
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.graph.rewrites.duplicates import merge_duplicates
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.notes import Outcome
from tilewright.ir.rewrite import (
    NoMatch,
    Replacement,
    RewriteContext,
    Rule,
    constant_array,
    rewrite,
)
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_widening
from tilewright.ops.define import constant
from tilewright.ops.quant import OF_NUMBERS, changes_type_alone, is_quantisation
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.source import full
from tilewright.ops.traits.derive import known_product, product_of
from tilewright.ops.view import pad
from tilewright.passes import PassContext
from tilewright.target.dots import Dot
from tilewright.target.target import Target


@dataclass(frozen=True)
class IntegerProducts:
    """Compute on integers what is quantised before and after, and give products of bytes with constants the dtypes
    that the machine multiplies in groups."""

    name: ClassVar[str] = "integer-products"

    def run(self, module: Module, ctx: PassContext) -> None:
        if not any(is_quantisation(op) or _multiplies_integers(op) for op in module.main.body.ops):
            return
        for rules in _stages(module, ctx):
            rewrite(module.main, rules, module, ctx.remarks, stage=self.name, within=ctx)
            merge_duplicates(module.main, module)  # rules of the next stage look at all readers of a value
        drop_dead(module)


def _multiplies_integers(op: Op) -> bool:
    product = product_of(op)
    return product is not None and dtype_of(op.operands[product.weights]).is_int


def _stages(module: Module, ctx: PassContext) -> Iterator[Sequence[Rule]]:
    """The rules, those that must come to an end before others together."""
    target = ctx.target
    dots = () if target is None else target.dots_in(dt.i32)
    if not dots:
        reason = "the machine multiplies no groups of integers"
        ctx.note(Outcome(IntegerProducts.name, "products of bytes", reason))
    elif dots[0].left.kind == "uint":
        yield [without_a_sign]
    yield MOVE_RULES
    if target is not None and dots:
        if not ctx.strict:  # sums of integers do not round
            yield [attention_in_integers(module, dots[0], target)]
            yield [sums_of_integers(partial(_why_in_floats, dots, target))]
        weights = partial(_weights_dtype, dots[0], target, _bytes_of_weights(module, dots[0]))
        yield [Rule("multiply_in_groups", (), partial(multiply_in_groups, dots, target, weights))]
        yield [states_in_groups(dots)]
        if dots[0].left is dt.i16:
            yield [Rule("dequantize_centred", ("dequantize_linear",), dequantize_centred)]
    if target is not None:
        yield [divide_by_known_scale]


def _why_in_floats(
    dots: Sequence[Dot], target: Target, op: Op, weights: np.ndarray, zeros: np.ndarray
) -> str:
    """As `why_not_multiplied`, of an operator on floats. Weights of a matrix are read once, and are much shorter as
    integers; those of a convolution are read for all positions, and its algorithm may save multiplications."""
    dot = _dot_of(dots, op, weights, zeros)
    if not known_product(op).of_matrices and products_per_float(dot, target) <= 1:
        return "the machine multiplies no more integers than floats in a cycle"
    return why_not_multiplied(dot, op, weights, zeros)


def _dot_of(dots: Sequence[Dot], op: Op, weights: np.ndarray, zeros: np.ndarray) -> Dot:
    """The first instruction that takes the centred weights of a convolution; a product takes bytes of any zero point,
    whose rows are summed for that."""
    if known_product(op).of_matrices:
        return dots[0]
    centred = centred_by(weights, zeros)
    return next((dot for dot in dots if _fits(centred, dot.right)), dots[0])


def why_not_multiplied(dot: Dot, op: Op, weights: np.ndarray, zeros: np.ndarray) -> str:
    """Why the machine does not multiply the integers of a product or convolution in groups; "" where it does.
    `weights` are laid out as the operator reads them."""
    is_product = known_product(op).of_matrices
    axes = (-2,) if is_product else tuple(range(1, weights.ndim))
    if OF_NUMBERS.of(op) is None and may_be_long(weights, zeros, axes):  # its own are modulo 2^32
        return "its sums may be longer than 32 bits"
    if is_product:
        depth = weights.shape[-2]
        if depth % dot.group:
            return f"{depth} products are no multiple of the groups of {dot.group} that are added at once"
        return ""
    groups = op.attrs["groups"]
    if not _fits(centred_by(weights, zeros), dot.right):
        return "its centred weights do not fit a byte"
    if not filters_suit_blocks(weights.shape, groups, BlockChannels.block):
        return "its filters or groups do not allow whole blocks of channels"
    return ""


def centred_by(weights: np.ndarray, zeros: np.ndarray) -> np.ndarray:
    """Weights without their zero points."""
    return weights.astype(np.int32) - zeros.astype(np.int32)


def may_be_long(weights: np.ndarray, zeros: np.ndarray, axes: tuple[int, ...]) -> bool:
    """Whether sums of bytes times weights along these axes may be longer than 32 bits."""
    terms = math.prod(weights.shape[a] for a in axes)
    if weights.itemsize == zeros.itemsize == 1 and terms * BYTES * BYTES < 1 << 31:  # whatever they are
        return False
    sizes = np.abs(centred_by(weights, zeros), dtype=np.int64)
    return bool(BYTES * sizes.sum(axis=axes).max(initial=0) >= 1 << 31)


def _fits(array: np.ndarray, dtype: DType) -> bool:
    limits = np.iinfo(dtype.storage)
    return not array.size or (array.min() >= limits.min and array.max() <= limits.max)


StoredAs = Callable[[Op, np.ndarray], DType]
"""The dtype in which the centred weights of a matrix product are stored."""


def bytes_as_stored(op: Op, centred: np.ndarray) -> DType:
    """One byte each."""
    return dt.i8


def _bytes_of_weights(module: Module, dot: Dot) -> int:
    """Of all products of integers with constants, as the machine multiplies them."""
    right = [op.operands[1] for op in module.main.body.ops if OF_NUMBERS.of(op) is not None]
    sizes = [product(shape_of(v)) for v in right if is_constant(v)]
    return sum(size.value for size in sizes if size.is_const) * dot.right.bytes


def _weights_dtype(dot: Dot, target: Target, all_weights: int, op: Op, centred: np.ndarray) -> DType:
    """That of the instruction, or the byte that each weight fits, where rows are few and wait for what they read."""
    rows = product(shape_of(op.operands[0])[:-1])
    if not rows.is_const or centred.ndim != 2 or not _fits(centred, dt.i8):
        return dot.right
    narrow = is_widened_when_read(rows.value, centred.size, dt.i8.bytes, all_weights, dot, target)
    return dt.i8 if narrow else dot.right


def multiply_in_groups(
    dots: Sequence[Dot], target: Target, stored_as: StoredAs, op: Op, b: Builder, ctx: RewriteContext
) -> Replacement:
    """The sums in the dtypes of one of the target's `dots`, and what zero points add to them."""
    if OF_NUMBERS.of(op) is None:
        return None
    product = product_of(op)
    if product is None:
        return NoMatch("its zero points may repeat what it multiplies")
    _, right, _, right_zero = op.operands
    array, zeros = constant_array(right, ctx.module), constant_array(right_zero, ctx.module)
    if product.of_matrices and not is_constant(right):
        return product_of_the_call(dots[0], op, ctx)
    if array is None or zeros is None:
        return NoMatch("the right operand and its zero points are not known when compiling")
    dot = _dot_of(dots, op, array, zeros)
    reason = why_not_multiplied(dot, op, array, zeros)
    if reason:
        return NoMatch(reason)
    centred = centred_by(array, zeros)
    if product.of_matrices:
        return product_of_bytes(dot, stored_as, op, centred, zeros, ctx)
    more = 0 if dot.left is dt.i16 else _taps_to_whole_groups(dot, target, op, centred)
    return convolution_of_bytes(dot, op, centred, more, ctx)


def _pads(op: Op) -> bool:
    return any(p != 0 for side in ("pads_begin", "pads_end") for p in op.attrs.get(side, ()))


def dequantize_centred(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Of bytes that a product reads as centred i16, the same i16 times the scale: one tensor serves both."""
    x, scale, zero = op.operands
    if not any(changes_type_alone(u) and dtype_of(u.result) is dt.i16 for u in x.users):
        return None
    if dtype_of(x).bits != 8 or op.attrs["dtype"] != dt.f32 or not whole_parameters(op):
        return None
    centred = _centred(x, as_number(zero))
    return ew.mul(ew.cast(centred, dtype=dt.f32), ew.cast(as_number(scale), dtype=dt.f32))


def _centred(x: Value, zero: Value) -> Value:
    return ew.sub(ew.cast(x, dtype=dt.i16), ew.cast(zero, dtype=dt.i16))


def product_of_bytes(
    dot: Dot, stored_as: StoredAs, op: Op, centred: np.ndarray, zeros: np.ndarray, ctx: RewriteContext
) -> Value:
    """A product in the dtypes of an instruction, and what zero points add to it."""
    left, right, left_zero, _ = op.operands
    if dot.left is dt.i16:
        weights = _constant(centred, stored_as(op, centred))
        return matmul_widening(_centred(left, left_zero), weights, sums=dt.i32)
    if _fits(centred, dt.i8):
        right_shift = np.zeros((), np.int32)
    else:
        right_shift = HALF * (dtype_of(right) is dt.u8) - zeros.astype(np.int32)
    bytes_, shift = as_bytes(left, dot.left)
    sums = matmul_widening(bytes_, _constant(centred - right_shift, dot.right), sums=dt.i32)
    if shift or uniform_number(left_zero, ctx.module) != 0:
        zero = ew.add(ew.cast(left_zero, dtype=dt.i32), shift)
        sums = ew.sub(sums, ew.mul(zero, _constant(centred.sum(axis=-2, keepdims=True), dt.i32)))
    if np.any(right_shift):
        rows = reduce_sum(ew.cast(bytes_, dtype=dt.i32), axes=(len(shape_of(left)) - 1,), keepdims=True)
        sums = ew.add(sums, ew.mul(rows, _constant(right_shift, dt.i32)))
    return sums


def convolution_of_bytes(dot: Dot, op: Op, centred: np.ndarray, more: int, ctx: RewriteContext) -> Value:
    """A convolution in the dtypes of an instruction, lines of filters with so many zeros `more` behind them, and what
    zero points add to it."""
    conv, (x, _, x_zero, _) = OF_NUMBERS.of(op), op.operands
    assert conv is not None
    attrs: dict[str, Any] = dict(op.attrs)
    if dot.left is dt.i16:
        made: Value = conv(_centred(x, x_zero), _constant(centred, dot.right), sums=dt.i32, **attrs)
        return made
    bytes_, shift = as_bytes(x, dot.left)
    number = uniform_number(x_zero, ctx.module)
    filters = centred
    if more or (_pads(op) and (number is None or int(number) + shift != 0)):
        bytes_ = _padded(bytes_, attrs, x_zero if number is None else int(number), shift, more)
        filters = np.pad(centred, [(0, 0)] * (centred.ndim - 1) + [(0, more)])
        attrs |= {"pads_begin": (), "pads_end": ()}
    sums: Value = conv(bytes_, _constant(filters, dot.right), sums=dt.i32, **attrs)
    if number is not None and int(number) + shift == 0:
        return sums
    totals = centred.reshape(len(centred), -1).sum(axis=1).reshape(1, -1, *[1] * (centred.ndim - 2))
    zero = ew.add(ew.cast(x_zero, dtype=dt.i32), shift)
    return ew.sub(sums, ew.mul(zero, _constant(totals, dt.i32)))


def _taps_to_whole_groups(dot: Dot, target: Target, op: Op, filters: np.ndarray) -> int:
    """Zeros that follow each line of filters of one channel each, so that whole groups of neighbours are added up."""
    if len(filters) != op.attrs["groups"] or filters.shape[1] != 1 or any(d != 1 for d in op.attrs["dilations"][-1:]):
        return 0
    taps = filters.shape[-1]
    return -taps % dot.group if adds_taps_in_groups(taps, dot, target) else 0


def _padded(x: Value, attrs: Mapping[str, Any], zero: Value | int, shift: int, more: int) -> Value:
    """x with its zero point, moved by `shift`, around it, and `more` elements behind its lines."""
    shape = shape_of(x)
    space = len(shape) - 2
    before, after = ([0, 0, *(attrs[side] or (0,) * space)] for side in ("pads_begin", "pads_end"))
    after[-1] += more
    if isinstance(zero, int):
        return pad(x, before=before, after=after, value=zero + shift)
    moved = ew.cast(ew.add(ew.cast(zero, dtype=dt.i32), shift), dtype=dtype_of(x))
    inside = full(value=True, dtype=dt.bool_, shape=(1, 1, *shape[2:]))
    is_data = pad(inside, before=before, after=after)
    return ew.select(is_data, pad(x, before=before, after=after), moved)


def _constant(array: np.ndarray, dtype: DType) -> Value:
    return constant(array.astype(dtype.storage), "integers")
