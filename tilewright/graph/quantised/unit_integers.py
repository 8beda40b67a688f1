"""Products of 8-bit integers for accelerators whose units multiply these, and add them up in 32 bits.

    conv(dequantize(x), dequantize(w))    becomes    (conv of the bytes - zero point * sums of w) * scales

All of it is exact but for the scales, which round once for each element of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewright.graph.match import dtype_of
from tilewright.graph.quantised.dequantized import MOVE_RULES, sums_of_integers
from tilewright.graph.quantised.integer_products import (
    bytes_as_stored,
    centred_by,
    convolution_of_bytes,
    may_be_long,
    product_of_bytes,
)
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.graph.rewrites.duplicates import merge_duplicates
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Module, Op
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, constant_array, rewrite
from tilewright.ops.contract import matmul_widening
from tilewright.ops.define import constant
from tilewright.ops.quant import OF_NUMBERS
from tilewright.ops.traits.derive import known_product, product_of
from tilewright.passes import PassContext
from tilewright.target.dots import Dot

UNIT = Dot(dt.i8, dt.i8, 1, ())
"""What a unit multiplies; it asks for no groups."""


@dataclass(frozen=True)
class UnitIntegers:
    """Give products of bytes with constants the dtypes that a unit multiplies."""

    name: ClassVar[str] = "unit-integers"
    along_depth: bool = False
    """Whether the unit takes bytes of both operands along the axis that is summed: constants are then turned."""

    def run(self, module: Module, ctx: PassContext) -> None:
        of_floats = [] if ctx.strict else [sums_of_integers(_why_in_floats)]  # these do not round
        multiply = Rule("multiply_on_unit", (), multiply_on_unit)
        turn = [Rule("turn_weights", ("matmul_widening",), turned_weights)] if self.along_depth else []
        for rules in (MOVE_RULES, of_floats, [multiply], turn):
            if rules and rewrite(module.main, rules, module, ctx.remarks, stage=self.name, within=ctx):
                merge_duplicates(module.main, module)
        drop_dead(module)


def _why_in_floats(op: Op, weights: np.ndarray, zeros: np.ndarray) -> str:
    axes = (-2,) if known_product(op).of_matrices else tuple(range(1, weights.ndim))
    return "its sums may be longer than 32 bits" if may_be_long(weights, zeros, axes) else ""


def multiply_on_unit(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The sums of bytes with a sign, and what zero points add to them."""
    if OF_NUMBERS.of(op) is None:
        return None
    product = product_of(op)
    array, zeros = (constant_array(v, ctx.module) for v in (op.operands[1], op.operands[3]))
    if product is None or array is None or zeros is None:
        return NoMatch("the right operand and its zero points are not known when compiling")
    centred = centred_by(array, zeros)
    if product.of_matrices:
        return product_of_bytes(UNIT, bytes_as_stored, op, centred, zeros, ctx)
    if op.attrs["groups"] != 1:
        return NoMatch("units multiply no groups of channels")
    if centred.min(initial=0) < -128 or centred.max(initial=0) > 127:
        return NoMatch("its centred weights do not fit a byte")
    return convolution_of_bytes(UNIT, op, centred, 0, ctx)


def turned_weights(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A product of bytes with a constant [.., k, n] as one with [.., n, k]."""
    left, right = op.operands
    array = constant_array(right, ctx.module)
    if op.attrs["transpose_b"] or array is None or any(dtype_of(v) is not dt.i8 for v in (left, right)):
        return None
    turned = constant(np.ascontiguousarray(array.swapaxes(-1, -2)), right.name or "w")
    return matmul_widening(left, turned, sums=op.attrs["sums"], transpose_b=True)
