"""The two products of attention on the integers that their operands stand for.

    dequantize(q) @ dequantize(k)      becomes      (sums of q * k - what zero points add to them) * both scales

Neither operand is known when compiling: each is brought to the byte that the machine multiplies where it is quantised,
zero points are taken off by sums of rows and columns that the program computes, and sums of other than whole groups are
filled up with zeros. Keys and values are packed by groups in the kernel (`schedule/gemm/attention.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tilewright.cost.narrow_products import narrow_share, rounding_gains
from tilewright.cost.typical import typical_sizes
from tilewright.graph.match import dtype_of, shape_of, sole_user, type_of, uniform_number
from tilewright.graph.precision.attention_products import (
    attention_products,
    filled,
    sums_of,
    why_not_packed,
)
from tilewright.graph.quantised.dequantized import BYTES, HALF, as_number, scaled, shifted
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, defining
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_widening
from tilewright.ops.define import OPERATORS
from tilewright.ops.quant import OF_NUMBERS, quantize_linear
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.traits.derive import is_view, product_of
from tilewright.ops.view import reshape, transpose
from tilewright.target.dots import Dot
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class _Operand:
    """An operand of a product: `integers` from which `zero` is taken, times `scale` if there is one."""

    integers: Value
    zero: Value
    scale: Value | None


def attention_in_integers(module: Module, dot: Dot, target: Target) -> Rule:
    """The rule that multiplies integers in attention on quantised operands, where the machine gains by it; it decides
    about each of the two products for itself."""
    typical = typical_sizes(type_of(v) for v in module.main.args)
    reasons: dict[Op, str] = {}
    for op, pair in attention_products(module).items():
        reason = why_not_packed(pair) or _why_not(op, module)
        if not reason:
            share = narrow_share(sums_of([op], dot.group, typical), dot, target, 0)
            gains = rounding_gains(share)
            reason = "" if gains else f"integers are estimated at {share:.2f} of the time of direct sums of f32"
        reasons[op] = reason
    told = "both operands are quantised: the sums are of integers, which is exact"
    return Rule("attention_in_integers", (), partial(_in_integers, dot, reasons), told)


def _in_integers(dot: Dot, reasons: dict[Op, str], op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    if op not in reasons:
        return None
    left, right = map(partial(_operand, op), (0, 1))
    if reasons[op] or left is None or right is None:
        return NoMatch(reasons[op])
    sums = _centred_sums(op, left, right, dot, ctx)
    return sums if left.scale is None or right.scale is None else scaled(sums, left.scale, right.scale)


def _operand(op: Op, index: int) -> _Operand | None:
    """Operand 0 or 1 of a product; None where it does not stand for bytes with one scale and one zero point."""
    value = op.operands[index]
    if OF_NUMBERS.of(op) is not None:
        found, parameters = _Operand(value, op.operands[2 + index], None), [op.operands[2 + index]]
    else:
        inner = defining(value, "dequantize_linear")
        if inner is None or dtype_of(value) is not dt.f32:
            return None
        x, scale, zero = inner.operands
        found, parameters = _Operand(x, zero, scale), [scale, zero]
    dtype = dtype_of(found.integers)
    if not dtype.is_int or dtype.bits != 8 or any(type_of(v).size != 1 for v in parameters):
        return None
    return found


# Whether


def _why_not(op: Op, module: Module) -> str:
    """Why a product is not one of integers; "" where it can be."""
    if any(_operand(op, k) is None for k in (0, 1)):
        return "its operands are not both bytes with one scale"
    return "" if _fits_32_bits(op, module) else "its sums may be longer than 32 bits"


def _fits_32_bits(op: Op, module: Module) -> bool:
    """Whether the sums of a product of centred bytes do: by their number, or since the left operand are shares of 1."""
    most = shape_of(op.operands[0])[-1].bounds[1]
    terms = None if most is None else BYTES * most
    shares = _sum_of_shares(op.operands[0], module)
    known = [n for n in (terms, shares) if n is not None]
    return bool(known) and BYTES * min(known) < 1 << 31


def _sum_of_shares(value: Value, module: Module) -> float | None:
    """An upper bound of the sum of a row of integers that softmax was rounded to: round(p / scale) is 0 or at most
    2 * p / scale, and all p are 1 (but for rounding). None for other values."""
    inner = defining(value, "dequantize_linear")
    quantised = None if inner is None else defining(inner.operands[0], "quantize_linear")
    if quantised is None or defining(quantised.operands[0], "softmax") is None:
        return None
    scale = uniform_number(quantised.operands[1], module)
    return None if scale is None or not scale > 0 else 2.1 / float(scale)


# How


def _centred_sums(op: Op, left: _Operand, right: _Operand, dot: Dot, ctx: RewriteContext) -> Value:
    """Products of integers with their zero points taken off, added up in i32."""
    product = product_of(op)
    right, transposed = _by_rows(right, product is not None and product.turns_weights)
    along = -1 if transposed else -2  # the axis of the right operand that is summed over
    (rows, row_shift), (columns, column_shift) = (
        _as_bytes(operand.integers, dtype) for operand, dtype in ((left, dot.left), (right, dot.right))
    )
    row_zero, column_zero = (
        _moved_zero(operand.zero, shift, ctx) for operand, shift in ((left, row_shift), (right, column_shift))
    )
    filled_rows, filled_columns = filled(rows, -1, dot.group), filled(columns, along, dot.group)
    corrections = []  # they come first, so that loops of rows precede those of the sums
    if row_zero is not None:
        totals = _totals(columns, along, column_zero)
        corrections.append(ew.mul(_as_a_row(totals) if transposed else totals, row_zero))
    if column_zero is not None:
        corrections.append(ew.mul(_totals(filled_rows, -1), column_zero))
    sums = matmul_widening(filled_rows, filled_columns, sums=dt.i32, transpose_b=transposed)
    for correction in corrections:
        sums = ew.sub(sums, correction)
    return sums


def _by_rows(right: _Operand, transposed: bool) -> tuple[_Operand, bool]:
    """A right operand whose sums go along its last axis and that is a transpose of a tensor whose last axis that is,
    without exchanging the two; and whether it is to be read transposed."""
    moved = defining(right.integers, "transpose")
    if moved is None or transposed:
        return right, transposed
    *batch, depth, columns = moved.attrs["perm"]
    if depth != len(batch) + 1:
        return right, transposed
    return replace(right, integers=transpose(moved.operands[0], perm=(*batch, columns, depth))), True


def _moved_zero(zero: Value, shift: int, ctx: RewriteContext) -> Value | None:
    """A zero point in i32, moved as its integers are; None where it is 0 then."""
    if (number := uniform_number(zero, ctx.module)) is not None and int(number) + shift == 0:
        return None
    return ew.add(ew.cast(as_number(zero), dtype=dt.i32), shift)


def _totals(integers: Value, axis: int, zero: Value | None = None) -> Value:
    """Sums along an axis (counted from the end) of integers from which `zero` is taken, in i32."""
    wide = ew.cast(integers, dtype=dt.i32)
    centred = wide if zero is None else ew.sub(wide, zero)
    return reduce_sum(centred, axes=(type_of(integers).rank + axis,), keepdims=True)


def _as_a_row(column: Value) -> Value:
    """[..., n, 1] as [..., 1, n]."""
    *batch, length, _ = shape_of(column)
    return reshape(column, shape=(*batch, 1, length))


def _as_bytes(x: Value, dtype: DType) -> tuple[Value, int]:
    """x moved into the range of a byte `dtype`, and by how much."""
    if dtype_of(x) is dtype:
        return x, 0
    shift = HALF if dtype is dt.u8 else -HALF
    return _moved(x, dtype, shift), shift


def _moved(x: Value, dtype: DType, shift: int) -> Value:
    """x + shift in another byte `dtype`: quantised so, where only this product reads it."""
    op = x.op
    if op is not None and sole_user(x) is not None:
        if is_view(op):
            moved = OPERATORS[op.name](_moved(op.operands[0], dtype, shift), **op.attrs)
            assert isinstance(moved, Value)
            return moved
        quantised = defining(x, "quantize_linear")
        if quantised is not None:
            data, scale, zero = quantised.operands
            attrs = {**quantised.attrs, "dtype": dtype}
            return quantize_linear(data, scale, shifted(zero, dtype, shift), **attrs)
    return shifted(x, dtype, shift)
