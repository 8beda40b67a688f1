"""Rules of canonicalisation about arithmetic: identities, powers, and constants that meet."""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.match import dtype_of, is_constant, shape_of, type_of, uniform_number
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, defining, has_one_use, rule
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import full
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.traits.pairing import is_elementwise


@rule()
def constant_on_the_right(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """c + x -> x + c."""
    if len(op.operands) != 2 or not is_constant(op.operands[0]) or is_constant(op.operands[1]):
        return None
    left, right = op.operands
    exchanges = traits_of(op).commutative and is_elementwise(op)
    return OPERATORS[op.name](right, left, **op.attrs) if exchanges else None


@rule()
def right_identity(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x + 0, x * 1, x / 1 and their like are x."""
    if len(op.operands) != 2 or not is_constant(op.operands[1]):
        return None
    left, right = op.operands
    identity = traits_of(op).right_identity
    if identity is None or dtype_of(left).kind == "bool" or left.type != op.result.type or not is_elementwise(op):
        return None
    return left if uniform_number(right, ctx.module) == identity else None


@rule("div")
def division_by_power_of_two(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x / 2^k -> x * 2^-k, which is exact."""
    left, right = op.operands
    number = uniform_number(right, ctx.module)
    if not dtype_of(left).is_float or not number or not math.isfinite(number):
        return None
    mantissa, exponent = math.frexp(number)
    if abs(mantissa) != 0.5 or abs(exponent) > 14:
        return None
    return ew.mul(left, _like(right, 1.0 / number))


@rule("sub")
def subtraction_of_constant(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """x - number -> x + -number, so that constants meet."""
    left, right = op.operands
    number = uniform_number(right, ctx.module)
    if number is None or is_constant(left) or not dtype_of(left).is_float:
        return None
    return ew.add(left, _like(right, -number))


@rule("pow")
def power_by_constant(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """Powers that are products, roots or reciprocals."""
    base, exponent = op.operands
    number = uniform_number(exponent, ctx.module)
    if number is None or type_of(base).shape != type_of(op.result).shape:
        return None
    if number == 2:
        return ew.mul(base, base)
    if number == 3:
        return ew.mul(ew.mul(base, base), base)
    if not dtype_of(base).is_float:
        return None
    if number == 0.5:
        return ew.sqrt(base)
    if number == -0.5:
        return ew.rsqrt(base)
    return ew.div(1.0, base) if number == -1 else None


@rule("div")
def reciprocal_of_root(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """1 / sqrt(x) -> rsqrt(x); a / sqrt(x) stays, its square root may be shared."""
    left, right = op.operands
    root = defining(right, "sqrt")
    if root is None or uniform_number(left, ctx.module) != 1 or right.type != op.result.type:
        return None
    return ew.rsqrt(root.operands[0])


@rule("neg", "not")
def double_negation(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    inner = defining(op.operands[0], op.name)
    return inner.operands[0] if inner is not None else None


@rule("max", "min")
def bounds_that_meet(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """max(max(x, c1), c2) -> max(x, max(c1, c2)); the largest of constants is folded."""
    return _constants_together(op)


@rule("add", "mul")
def constants_that_meet(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """(x + c1) + c2 -> x + (c1 + c2), which rounds once where two sums do twice."""
    return _constants_together(op)


def _constants_together(op: Op) -> Value | None:
    left, right = op.operands
    inner = defining(left, op.name)
    if inner is None or not is_constant(right) or not has_one_use(left):
        return None
    x, first = inner.operands
    if not is_constant(first) or is_constant(x) or left.type != op.result.type or not dtype_of(x).is_float:
        return None
    operator = OPERATORS[op.name]
    found = operator(x, operator(first, right))
    return found if found.type == op.result.type else None


@rule("select")
def known_choice(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A choice by a constant condition, or between equal things."""
    cond, a, other = op.operands
    number = uniform_number(cond, ctx.module)
    chosen = a if a is other or number else other if number is not None else None
    if chosen is None or type_of(chosen).shape != type_of(op.result).shape:
        return None
    return chosen


_EXACT_WIDENING = {
    ("f16", "f32"), ("bf16", "f32"), ("f16", "f64"), ("bf16", "f64"), ("f32", "f64"), ("i32", "f64"),
    ("bool", "i32"), ("bool", "i64"), ("bool", "f32"), ("i32", "i64"), ("i8", "i32"), ("u8", "i32"),
    ("i8", "i64"), ("u8", "i64"), ("i8", "f32"), ("u8", "f32"),
}  # fmt: skip


@rule("cast")
def needless_cast(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A cast to the same dtype, and a cast of what was only widened before."""
    (x,) = op.operands
    target = op.attrs["dtype"]
    if dtype_of(x) == target:
        return x
    inner = defining(x, "cast")
    if inner is None:
        return None
    source = inner.operands[0]
    if (dtype_of(source).name, dtype_of(x).name) not in _EXACT_WIDENING:
        return None
    if dtype_of(x).is_float and dtype_of(source).is_int and target.is_int and not target.holds(dtype_of(source)):
        return NoMatch("floats beyond an integer type become its ends, and integers wrap")
    return source if dtype_of(source) == target else ew.cast(source, dtype=target)


@rule("cast")
def cast_of_number(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A cast of a `full` to a float dtype is a `full`."""
    source = defining(op.operands[0], "full")
    target = op.attrs["dtype"]
    if source is None or not target.is_float:
        return None
    number = np.asarray(source.attrs["value"]).astype(dtype_of(source.result).storage)
    return full(value=float(number), dtype=target, shape=source.attrs["shape"])


def _like(constant: Value, number: float) -> Value:
    """`number` in the shape and dtype of another value."""
    return full(value=number, dtype=dtype_of(constant), shape=shape_of(constant))


ARITHMETIC_RULES = (
    constant_on_the_right, right_identity, division_by_power_of_two, subtraction_of_constant,
    power_by_constant,
    reciprocal_of_root, double_negation, bounds_that_meet, known_choice, needless_cast, cast_of_number,
)  # fmt: skip

ROUNDING_RULES = (constants_that_meet,)
"""Those that round differently: not for strict numerics."""
