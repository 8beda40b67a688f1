"""Products of 8-bit integers for the machine's instructions that multiply these in groups.

    (a - a_zero) @ (b - b_zero)

Zero points do not enter the product: with dtypes that hold the centred numbers these are multiplied; else the sums are
corrected by those of whole columns of b, which are known, and of whole rows of a. All of it is exact in i32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from tilewright.graph.match import dtype_of, shape_of, uniform_number
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.passes import PassContext
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, constant_array, rewrite
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul_i32
from tilewright.ops.define import constant
from tilewright.ops.reduce import reduce_sum

HALF = 128
"""Between an unsigned byte and the signed one of the same order."""


@dataclass(frozen=True)
class IntegerProducts:
    """Give products of bytes with constant matrices the dtypes that the machine multiplies in groups."""

    name: ClassVar[str] = "integer-products"

    def run(self, module: Module, ctx: PassContext) -> None:
        if not any(op.name == "matmul_integer" for op in module.main.body.ops):
            return
        dots = () if ctx.target is None else ctx.target.dots
        if not dots:
            ctx.remark(self.name, "products of bytes", "the machine multiplies no groups of integers")
            return
        rule = Rule("multiply_in_groups", ("matmul_integer",), partial(multiply_in_groups, dots[0]))
        rewrite(module.main, [rule], module, ctx.remarks, stage=self.name)
        drop_dead(module)


def multiply_in_groups(dot: Any, op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The product in the dtypes of `dot` (of the target's `dots`), and what zero points add to it."""
    left, right, left_zero, right_zero = op.operands
    array, zeros = constant_array(right, ctx.module), constant_array(right_zero, ctx.module)
    if array is None or zeros is None:
        return NoMatch("the right operand and its zero points are not known when compiling")
    depth = array.shape[-2]
    if depth % dot.group:
        return NoMatch(
            f"{depth} products are no multiple of the groups of {dot.group} that are added at once"
        )
    centred = array.astype(np.int32) - zeros.astype(np.int32)
    if dot.left is dt.i16:
        wide = ew.sub(ew.cast(left, dtype=dt.i16), ew.cast(left_zero, dtype=dt.i16))
        return matmul_i32(wide, _constant(centred, dot.right))
    low, high = np.iinfo(np.int8).min, np.iinfo(np.int8).max
    if centred.size and (centred.min() < low or centred.max() > high):
        right_shift = HALF * (dtype_of(right) is dt.u8) - zeros.astype(np.int32)
    else:
        right_shift = np.zeros((), np.int32)
    bytes_, shift = _as_bytes(left, dot.left)
    sums = matmul_i32(bytes_, _constant(centred - right_shift, dot.right))
    if shift or uniform_number(left_zero, ctx.module) != 0:
        zero = ew.add(ew.cast(left_zero, dtype=dt.i32), shift)
        sums = ew.sub(sums, ew.mul(zero, _constant(centred.sum(axis=-2, keepdims=True), dt.i32)))
    if np.any(right_shift):
        rows = reduce_sum(ew.cast(bytes_, dtype=dt.i32), axes=(len(shape_of(left)) - 1,), keepdims=True)
        sums = ew.add(sums, ew.mul(rows, _constant(right_shift, dt.i32)))
    return sums


def _as_bytes(x: Value, dtype: DType) -> tuple[Value, int]:
    """x moved into the range of a byte `dtype`, and by how much."""
    if dtype_of(x) is dtype:
        return x, 0
    shift = HALF if dtype is dt.u8 else -HALF
    return ew.cast(ew.add(ew.cast(x, dtype=dt.i16), shift), dtype=dtype), shift


def _constant(array: np.ndarray, dtype: DType) -> Value:
    return constant(array.astype(dtype.storage), "integers")
