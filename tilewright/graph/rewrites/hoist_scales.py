"""Factors of the operands of matrix products become factors of their results, where they cost less.

    (a * c) b     ->  (a b) * c            for a number c
    (a * r) b     ->  (a b) * r            for a factor of each row

Queries and keys scaled before their product, and weights divided by their sums before theirs, are the usual
cases: what is left are plain views of tensors, which the product reads in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tilewright.graph.match import dtype_of, is_known, shape_of, uniform_number
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, defining, has_one_use, rewrite, rule
from tilewright.ir.sym import Sym, prove_ge0
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import dim_value, full, number_like
from tilewright.ops.traits.derive import is_view, traits_of
from tilewright.passes import PassContext


@dataclass(frozen=True)
class HoistScales:
    """Apply the rules of this module. Products round differently then: not for strict numerics. With `all_rows` nothing
    stays between rows and their product that has one element for each row, so that a kernel may begin with the product
    before it knows what that is."""

    name: ClassVar[str] = "hoist-scales"

    all_rows: bool = False

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.strict:
            return
        rules = (*FACTOR_RULES, *ROW_RULES) if self.all_rows else FACTOR_RULES
        rewrite(module.main, rules, module, stage=self.name, remarks=ctx.remarks, within=ctx)


@rule("matmul")
def number_of_operand(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(a * c) b -> (a b) * c for a number c, and for b alike; views may stand between."""
    if any(map(is_known, op.operands)) or not dtype_of(op.result).is_float:
        return None
    for k, operand in enumerate(op.operands):
        found = _without_number(operand, ctx.module)
        if found is None:
            continue
        plain, number = found
        operands = [plain if i == k else v for i, v in enumerate(op.operands)]
        return ew.mul(matmul(*operands, **op.attrs), full(value=number, dtype=dtype_of(op.result), shape=()))
    return None


def _without_number(value: Value, module: Module) -> tuple[Value, float] | None:
    """A view of `x * number` as the view of x, and the number."""
    views: list[Op] = []
    while (view := value.op) is not None and is_view(view) and has_one_use(value):
        views.append(view)
        value = view.operands[0]
    product = defining(value, "mul")
    if product is None or not has_one_use(value):
        return None
    x, factor = product.operands
    number = uniform_number(factor, module)
    if number is None or shape_of(x) != shape_of(value):
        return None
    for view in reversed(views):
        x = OPERATORS[view.name](x, **view.attrs)
    return x, float(number)


@rule("matmul")
def factor_of_rows(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(a * r) b -> (a b) * r, and (a / r) b alike, where r has one element for each row of a."""
    return _rows_hoisted(op, is_longer_too=False)


def _rows_hoisted(op: Op, is_longer_too: bool) -> Replacement:
    left, right = op.operands
    scaled = defining(left, "mul", "div")
    if scaled is None or op.attrs["transpose_a"] or not dtype_of(left).is_float:
        return None
    a, factor = scaled.operands
    if traits_of(scaled).commutative and shape_of(a) != shape_of(left):
        a, factor = factor, a
    rows = shape_of(factor)
    if len(rows) < 2 or rows[-1] != 1 or shape_of(a) != shape_of(left):
        return None
    if not has_one_use(left):
        return NoMatch("the scaled rows are needed elsewhere too")
    is_longer = not prove_ge0(shape_of(left)[-1] - shape_of(op.result)[-1]) and shape_of(left)[-1].is_const
    if is_longer and not is_longer_too:
        return NoMatch("the result has longer rows than the operand")
    factor = _of_terms(factor, shape_of(left)[-1])  # first, so that a kernel of all need not compute it in between
    return OPERATORS[scaled.name](matmul(a, right, **op.attrs), factor)


def _of_terms(factor: Value, depth: Sym) -> Value:
    """A factor of sums of so many terms: 1 for sums of none, which are 0 whatever each term would have been multiplied
    by, as the weights of no keys are by the inverse of their sum, an infinity."""
    if prove_ge0(depth - 1):
        return factor
    return ew.select(ew.ge(dim_value(depth), 1), factor, number_like(1.0, factor))


@rule("matmul")
def factor_of_short_rows(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(a * r) b -> (a b) * r, and (a / r) b alike, also where b has more columns than rows."""
    return _rows_hoisted(op, is_longer_too=True)


@rule("matmul", "matmul_widening")
def rows_of_zeros(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """select(c, 0, a) b -> select(c, 0, a b), where c has one element for each row of a; b counts as finite."""
    chosen = defining(_before_rounding(op.operands[0]), "select")
    if chosen is None or op.attrs.get("transpose_a") or not dtype_of(op.operands[0]).is_float:
        return None
    condition, zero, a = chosen.operands
    is_of_rows = len(shape_of(condition)) >= 2 and shape_of(condition)[-1] == 1 and shape_of(a)[-1] != 1
    if not is_of_rows or uniform_number(zero, ctx.module) != 0 or shape_of(a) != shape_of(chosen.result):
        return None
    if not has_one_use(chosen.result):
        return NoMatch("the rows are needed elsewhere too")
    rounded = a if dtype_of(a) is dtype_of(op.operands[0]) else ew.cast(a, dtype=dtype_of(op.operands[0]))
    sums = OPERATORS[op.name](rounded, op.operands[1], **op.attrs)
    return ew.select(condition, number_like(0.0, op.result), sums)


@rule("matmul_widening")
def sums_of_narrow_weights(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """narrow(w * r) b -> (narrow(w) b) * r, where w are the exponentials of a softmax, which are 1 at most, and r has
    one element for each row."""
    scaled = defining(_before_rounding(op.operands[0]), "mul")
    if scaled is None or dtype_of(scaled.result) is not dtype_of(op.result) or not dtype_of(op.result).is_float:
        return None
    a, factor = scaled.operands if _is_at_most_one(scaled.operands[0]) else scaled.operands[::-1]
    rows = shape_of(factor)
    if not _is_at_most_one(a) or len(rows) < 2 or rows[-1] != 1 or shape_of(a) != shape_of(scaled.result):
        return None
    if not has_one_use(op.operands[0]) or not has_one_use(scaled.result):
        return NoMatch("the weights are needed elsewhere too")
    factor = _of_terms(factor, shape_of(a)[-1])
    sums = OPERATORS[op.name](ew.cast(a, dtype=dtype_of(op.operands[0])), op.operands[1], **op.attrs)
    return ew.mul(sums, factor)


@rule("matmul_widening")
def number_of_narrow_operand(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """narrow(wide(a) * c) b -> (a b) * c for a number c, and for b alike; views may stand between."""
    if any(map(is_known, op.operands)) or not dtype_of(op.result).is_float:
        return None
    for k, operand in enumerate(op.operands):
        views: list[Op] = []
        value = operand
        while (view := value.op) is not None and is_view(view) and has_one_use(value):
            views.append(view)
            value = view.operands[0]
        scaled = defining(_before_rounding(value), "mul")
        if scaled is None or not has_one_use(scaled.result) or not has_one_use(value):
            continue
        number, plain = uniform_number(scaled.operands[1], ctx.module), _before_rounding(scaled.operands[0])
        if number is None or dtype_of(plain) is not dtype_of(operand) or shape_of(plain) != shape_of(value):
            continue
        for view in reversed(views):
            plain = OPERATORS[view.name](plain, **view.attrs)
        operands = [plain if i == k else v for i, v in enumerate(op.operands)]
        sums = OPERATORS[op.name](*operands, **op.attrs)
        return ew.mul(sums, full(value=float(number), dtype=dtype_of(op.result), shape=()))
    return None


def _before_rounding(value: Value) -> Value:
    """The float that an operand is converted from, by whatever floats."""
    while (rounded := defining(value, "cast")) is not None and has_one_use(value):
        if not (dtype_of(value).is_float and dtype_of(rounded.operands[0]).is_float):
            break
        value = rounded.operands[0]
    return value


def _is_at_most_one(value: Value) -> bool:
    """Whether it is the exponential of differences to the greatest of them."""
    power = defining(value, "exp")
    less = None if power is None else defining(power.operands[0], "sub")
    greatest = None if less is None else defining(less.operands[1], "reduce_max")
    return greatest is not None and less is not None and greatest.operands[0] is less.operands[0]


FACTOR_RULES = (number_of_operand, factor_of_rows)
ROW_RULES = (factor_of_short_rows, rows_of_zeros, sums_of_narrow_weights, number_of_narrow_operand)
