"""Affine folding: per-channel factors after a convolution or matrix product move into its constant weights.

A batch normalisation arrives here as a product and a sum; the product disappears, the sum becomes a bias,
which the kernel's epilogue adds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tilewright.graph.match import dtype_of, is_constant, shape_of, type_of, uniform_number
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import (
    NoMatch,
    Replacement,
    RewriteContext,
    constant_array,
    defining,
    has_one_use,
    rewrite,
    rule,
)
from tilewright.ir.sym import Sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import reshape
from tilewright.passes import PassContext


@dataclass(frozen=True)
class FoldAffine:
    """Move constant factors into weights, and fold. Products round differently then: not for strict numerics. With
    `divisions` they are made products before, which other engines need not know of."""

    name: ClassVar[str] = "fold-affine"
    divisions: bool = True
    fold: Fold = field(default_factory=Fold)

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.strict:
            return
        for rules in (_TO_SUMS_AND_PRODUCTS if self.divisions else (difference_with_constant,), _FACTORS):
            rewrite(module.main, rules, module, ctx.remarks, stage=self.name, within=ctx)
            self.fold.run(module, ctx)


def _weighted(value: Value) -> Op | None:
    """The product with constant weights of its result's dtype that gives `value` to one reader only."""
    op = value.op
    if op is None or not has_one_use(value) or len(op.operands) != 2 or not is_constant(op.operands[1]):
        return None
    of_one_dtype = op.attrs.get("sums") is None and dtype_of(op.operands[1]) is dtype_of(op.result)
    product = traits_of(op).product if of_one_dtype else None
    return op if product is not None and product.is_plain and product.weights == 1 else None


def _offset_of(value: Value) -> Op | None:
    """The sum of such an op and a constant."""
    op = defining(value, "add")
    if op is None or not has_one_use(value) or not is_constant(op.operands[1]):
        return None
    return op if _weighted(op.operands[0]) is not None and op.operands[0].type == value.type else None


def _has_reciprocal(c: Value, ctx: RewriteContext) -> bool:
    """Whether 1 / c is a normal number for every element."""
    array = constant_array(c, ctx.module)
    if array is None:
        return False
    size = np.abs(array)
    return bool(np.all((size > 1e-37) & (size < 1e37)))


@rule("div")
def division_by_constant(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x / c -> x * (1 / c): a division costs about ten products."""
    y, c = op.operands
    if not is_constant(c) or is_constant(y) or dtype_of(y) != dt.f32 or not _has_reciprocal(c, ctx):
        return None
    if _divides_what_is_rounded(op.result):
        return NoMatch("it is the scale of what is rounded to whole numbers")
    return ew.mul(y, ew.div(1.0, c))


def _divides_what_is_rounded(value: Value) -> bool:
    """Whether a value, scaled, divides what is rounded, as the scale of a quantisation does that is computed from the
    range of its input: the greatest numbers lie in the middle of two steps there, so that its last bit counts."""
    seen: set[tuple[Op, bool]] = set()
    waiting = [(value, False)]
    while waiting:
        current, divides = waiting.pop()
        for op in current.users:
            below = divides or (op.name == "div" and op.operands[1] is current)
            if op.name == "round" if divides else op.name == "quantize_linear" and op.operands[1] is current:
                return True
            if _scales(op) and (op, below) not in seen:
                seen.add((op, below))
                waiting += [(result, below) for result in op.results]
    return False


def _scales(op: Op) -> bool:
    """Whether it multiplies, chooses or shows numbers, or converts them."""
    own = traits_of(op)
    return own.moves_one or (is_elementwise(op) and bool(own.linear or own.chooses))


@rule("div")
def division_of_rows(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x / y -> x * (1 / y) where y is one number for a row, as in softmax and norms, and surely is a normal
    one."""
    x, y = op.operands
    if dtype_of(x) != dt.f32 or x.type != op.result.type or not _is_normal(y, ctx):
        return None
    rank = type_of(y).rank
    if rank == 0 or shape_of(y)[-1] != 1 or shape_of(x)[-1] == 1:
        return None
    return ew.mul(x, ew.div(1.0, y))


def _is_normal(y: Value, ctx: RewriteContext) -> bool:
    """Whether y is a sum of powers of e, or the root of something plus a positive constant."""
    if (total := defining(y, "reduce_sum")) is not None:
        return defining(total.operands[0], "exp") is not None
    root = defining(y, "sqrt")
    shifted = defining(root.operands[0], "add") if root is not None else None
    return shifted is not None and (uniform_number(shifted.operands[1], ctx.module) or 0) > 1e-30


@rule("sub")
def difference_with_constant(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """y - c -> y + -c after a linear op."""
    y, c = op.operands
    if not is_constant(c) or not dtype_of(y).is_float or (_weighted(y) is None and _offset_of(y) is None):
        return None
    return ew.add(y, ew.neg(c))


@rule("mul")
def factor_over_sum(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(y + b) * c -> y * c + b * c after a linear op, where c is one factor for each channel."""
    sum_, c = op.operands
    inner = _offset_of(sum_)
    if inner is None or not is_constant(c) or not dtype_of(sum_).is_float or op.result.type != sum_.type:
        return None
    y, offset = inner.operands
    linear = _weighted(y)
    if linear is None or _factor_for_weights(linear, c) is None:
        return NoMatch("the factor differs within a channel")
    return ew.add(ew.mul(y, c), ew.mul(offset, c))


@rule("mul")
def factor_over_scaled_integers(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(n * s + b) * c -> n * (s * c) + b * c for integers n, as sums of quantised products are, and constants."""
    sum_, c = op.operands
    inner = defining(sum_, "add")
    if inner is None or not has_one_use(sum_) or not is_constant(c) or not dtype_of(sum_).is_float:
        return None
    scaled, offset = inner.operands
    product = defining(scaled, "mul")
    if product is None or not has_one_use(scaled) or not is_constant(offset) or not is_constant(product.operands[1]):
        return None
    integers = defining(product.operands[0], "cast")
    if integers is None or not dtype_of(integers.operands[0]).is_int or op.result.type != product.operands[0].type:
        return None
    scale = ew.mul(product.operands[1], c)
    if scale.type not in (product.operands[1].type, c.type):
        return NoMatch("scale and factor differ along several axes")
    return ew.add(ew.mul(product.operands[0], scale), ew.mul(offset, c))


@rule("mul")
def factor_into_weights(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """f(x, w) * c -> f(x, w * c), where c is one factor for each channel."""
    y, c = op.operands
    linear = _weighted(y)
    if linear is None or not is_constant(c) or not dtype_of(y).is_float or op.result.type != y.type:
        return None
    shape = _factor_for_weights(linear, c)
    if shape is None:
        return NoMatch("the factor differs within a channel")
    x, w = linear.operands
    with b.at(linear.loc):
        return OPERATORS[linear.name](x, ew.mul(w, reshape(c, shape=shape)), **linear.attrs)


def _factor_for_weights(linear: Op, c: Value) -> tuple[Sym | int, ...] | None:
    """The shape in which factor c of the result multiplies the weights; None when it is not one per
    channel."""
    rank, product, w = type_of(linear.result).rank, traits_of(linear).product, shape_of(linear.operands[1])
    shape = (1,) * (rank - type_of(c).rank) + shape_of(c)
    if product is None or product.channel is None or product.kept is None or len(shape) != rank:
        return None
    count = shape[product.channel]
    if any(d != 1 for k, d in enumerate(shape) if k != product.channel) or count not in (1, w[product.kept]):
        return None
    return tuple(count if k == product.kept else 1 for k in range(len(w)))


_TO_SUMS_AND_PRODUCTS = (division_of_rows, division_by_constant, difference_with_constant)
_FACTORS = (factor_over_sum, factor_over_scaled_integers, factor_into_weights)
