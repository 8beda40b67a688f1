"""Operators on floats, as operators on the integers that stand for them: arithmetic, comparisons, moves, pooling."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from tilewright.graph.integer.fixed import (
    GREATEST,
    Fixed,
    as_integers,
    as_scale,
    centred,
    common,
    integers,
    known_numbers,
    narrowed,
    of_integers,
    times,
    uniform,
    without_infinities,
)
from tilewright.graph.integer.obstacles import Obstacle
from tilewright.graph.integer.products import product_of_matrices
from tilewright.graph.integer.state import FIXED_POINT, FixedRule, Numbers
from tilewright.graph.integer.sums import negated, plus, plus_known
from tilewright.graph.match import dtype_of, hands_on_elements, matrix_product, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS, Operator
from tilewright.ops.define.interp import evaluate
from tilewright.ops.pool import sum_pool
from tilewright.ops.quant import limits
from tilewright.ops.reduce import argmax, argmin, reduce_sum
from tilewright.ops.traits.derive import traits_of
from tilewright.ops.view import concat, expand, pad


def moved(op: Op, value: Value) -> Value:
    """A move of other elements."""
    made: Value = OPERATORS[op.name](value, *op.operands[1:], **op.attrs)
    return made


def _move(op: Op, numbers: Numbers) -> Fixed:
    x = uniform(numbers.of(op.operands[0]))
    return x.on(moved(op, x.value))


@FIXED_POINT.rule(pad)
def _pad(op: Op, numbers: Numbers) -> Fixed:
    x = uniform(numbers.of(op.operands[0]))
    if op.attrs["mode"] != "constant":
        return x.on(moved(op, x.value))
    number = float(np.clip(op.attrs["value"], -1e300, 1e300)) / float(x.scale)
    low, high = limits(dtype_of(x.value))
    if low <= round(number) + x.zero <= high:
        value, zero = x.value, x.zero
    else:
        value, zero = centred(x), 0
        number = max(min(number, GREATEST >> 1), -(GREATEST >> 1))
    inside = round(number)
    made = pad(value, **{**op.attrs, "value": inside + zero})
    return Fixed(made, x.scale, min(x.low, inside), max(x.high, inside), zero)


@FIXED_POINT.rule(concat)
def _concat(op: Op, numbers: Numbers) -> Fixed:
    parts = [uniform(numbers.of(v)) for v in op.operands]
    first = parts[0]
    if not all(_are_alike(first, p) for p in parts):
        parts = common(parts, total=max(p.range for p in parts))
        parts = [Fixed(centred(p), p.scale, p.low, p.high) for p in parts]
    made = OPERATORS["concat"](*[p.value for p in parts], **op.attrs)
    return Fixed(made, parts[0].scale, min(p.low for p in parts), max(p.high for p in parts), parts[0].zero)


def _are_alike(a: Fixed, b: Fixed) -> bool:
    return a.scale == b.scale and a.zero == b.zero and dtype_of(a.value) is dtype_of(b.value)


# Sums and products of elements


@FIXED_POINT.rule(ew.add)
def _add(op: Op, numbers: Numbers) -> Fixed:
    a, b = op.operands
    if numbers.is_known(a) or numbers.is_known(b):
        x, c = (b, a) if numbers.is_known(a) else (a, b)
        return plus_known(numbers.of(x), _array(numbers, c))
    return plus(numbers.of(a), numbers.of(b))


@FIXED_POINT.rule(ew.sub)
def _sub(op: Op, numbers: Numbers) -> Fixed:
    a, b = op.operands
    if numbers.is_known(b):
        return plus_known(numbers.of(a), -_array(numbers, b))
    other = negated(numbers.of(b))
    return plus_known(other, _array(numbers, a)) if numbers.is_known(a) else plus(numbers.of(a), other)


def _array(numbers: Numbers, value: Value) -> np.ndarray:
    array = numbers.array(value)
    assert array is not None
    return array.astype(np.float64)


@FIXED_POINT.rule(ew.neg)
def _neg(op: Op, numbers: Numbers) -> Fixed:
    return negated(numbers.of(op.operands[0]))


@FIXED_POINT.rule(ew.abs_)
def _abs(op: Op, numbers: Numbers) -> Fixed:
    x = numbers.of(op.operands[0])
    return Fixed(ew.abs_(centred(x)), x.scale, 0, x.bound)


@FIXED_POINT.rule(ew.mul)
def _mul(op: Op, numbers: Numbers) -> Fixed:
    a, b = op.operands
    if numbers.is_known(a) or numbers.is_known(b):
        varying, factors = (b, a) if numbers.is_known(a) else (a, b)
        return times(_spread(numbers.of(varying), op), _array(numbers, factors))
    x, y = numbers.of(a), numbers.of(b)
    if x.bound * y.bound > GREATEST:
        x, y = narrowed(x, 1 << 15), narrowed(y, 1 << 15)
    bound = x.bound * y.bound
    return Fixed(ew.mul(centred(x), centred(y)), as_scale(x.scale * y.scale), -bound, bound)


def _spread(x: Fixed, op: Op) -> Fixed:
    """x in the shape of the result."""
    if shape_of(x.value) == shape_of(op.result):
        return x
    return x.on(expand(x.value, shape=shape_of(op.result)))


@FIXED_POINT.rule(ew.div)
def _div(op: Op, numbers: Numbers) -> Fixed:
    a, b = op.operands
    if not numbers.is_known(b):
        raise Obstacle("it divides by what is not known when compiling")
    divisors = _array(numbers, b)
    if not np.all(divisors):
        raise Obstacle("it divides by zero", "take the zeros out of the model")
    return times(_spread(numbers.of(a), op), 1 / divisors)


# Order


@FIXED_POINT.rule(ew.min_, ew.max_)
def _limit(op: Op, numbers: Numbers) -> Fixed:
    a, b = op.operands
    if not (numbers.is_known(a) or numbers.is_known(b)):
        x, y = common([uniform(numbers.of(a)), uniform(numbers.of(b))])
        chosen = OPERATORS[op.name](centred(x), centred(y))
        return Fixed(chosen, x.scale, min(x.low, y.low), max(x.high, y.high))
    v, c = (b, a) if numbers.is_known(a) else (a, b)
    return _limited(op.name, numbers.of(v), _array(numbers, c))


def _limited(name: str, x: Fixed, array: np.ndarray) -> Fixed:
    bounds = as_integers(np.clip(np.rint(array / x.scale), -GREATEST, GREATEST))
    choose = {"max": max, "min": min}[name]
    low, high = choose(x.low, int(bounds.min())), choose(x.high, int(bounds.max()))
    inside = bounds.ndim == 0 and x.low <= int(bounds) <= x.high
    if inside and x.is_narrow:  # as it is
        number = full_like(x, int(bounds) + x.zero)
        return Fixed(OPERATORS[name](x.value, number), x.scale, low, high, x.zero)
    return Fixed(OPERATORS[name](centred(x), integers(bounds)), x.scale, low, high)


def full_like(x: Fixed, number: int) -> Value:
    """A number of the dtype of the integers."""
    made: Value = OPERATORS["full"](value=number, dtype=dtype_of(x.value), shape=())
    return made


_MIRRORED = {"lt": ew.gt, "gt": ew.lt, "le": ew.ge, "ge": ew.le}


@FIXED_POINT.rule(ew.lt, ew.le, ew.gt, ew.ge, ew.eq, ew.ne)
def _compared(op: Op, numbers: Numbers) -> Value:
    """A comparison, on the integers."""
    a, b = op.operands
    compare = OPERATORS[op.name]
    if numbers.is_known(a):
        a, b, compare = b, a, _MIRRORED.get(op.name, compare)
    if numbers.is_known(b):
        x = numbers.of(a)
        right = integers(as_integers(np.clip(_limit_of(compare, _array(numbers, b) / x.scale), -GREATEST, GREATEST)))
        made: Value = compare(centred(x), right)
        return made
    x, y = common([uniform(numbers.of(a)), uniform(numbers.of(b))])
    made = compare(centred(x), centred(y))
    return made


def _limit_of(compare: Operator, exact: np.ndarray) -> np.ndarray:
    """The integers with which integers compare as with these numbers."""
    below = np.floor(exact)
    if np.isnan(below).any():
        raise Obstacle("one of its constants is no number")
    for found in (np.ceil(exact), below):
        if all(np.array_equal(evaluate(compare, n, exact), evaluate(compare, n, found)) for n in (below, below + 1)):
            return found
    raise Obstacle("it compares with a number that has no integer")


@FIXED_POINT.rule(ew.select)
def _select(op: Op, numbers: Numbers) -> Fixed:
    condition, *values = op.operands
    arrays = [_array(numbers, v) if numbers.is_known(v) else None for v in values]
    beside = max([numbers.of(v).range for v, a in zip(values, arrays, strict=True) if a is None], default=0.0)
    parts = [
        uniform(numbers.of(v)) if a is None else known_numbers(without_infinities(a, beside))
        for v, a in zip(values, arrays, strict=True)
    ]
    x, y = common(parts, total=max(p.range for p in parts))
    return Fixed(
        ew.select(condition, centred(x), centred(y)), x.scale, min(x.low, y.low), max(x.high, y.high)
    )


# Sums of many


@FIXED_POINT.rule(reduce_sum)
def _reduce_sum(op: Op, numbers: Numbers) -> Fixed:
    rank = len(shape_of(op.operands[0]))
    count = product(shape_of(op.operands[0])[a % rank] for a in op.attrs["axes"])
    return _total(op, numbers, count.value if count.is_const else None)


@FIXED_POINT.rule(sum_pool)
def _sum_pool(op: Op, numbers: Numbers) -> Fixed:
    count = product(sym(k) for k in op.attrs["kernel"])
    return _total(op, numbers, count.value if count.is_const else None)


def _total(op: Op, numbers: Numbers, count: int | None) -> Fixed:
    if not count:
        raise Obstacle("it sums a number of elements that is not known when compiling", "fix the sizes of the inputs")
    x = narrowed(numbers.of(op.operands[0]), GREATEST // count)
    made = OPERATORS[op.name](centred(x), **op.attrs)
    return Fixed(made, x.scale, min(x.low, 0) * count, max(x.high, 0) * count)  # fewer at edges


@FIXED_POINT.rule(ew.cast)
def _cast(op: Op, numbers: Numbers) -> Fixed:
    (x,) = op.operands
    dtype = dtype_of(x)
    if not dtype_of(op.result).is_float:
        raise Obstacle("it has no form in integers")
    if dtype.is_float:
        return numbers.of(x)
    if dtype is dt.bool_:
        return Fixed(ew.cast(x, dtype=dt.i32), as_scale(1.0), 0, 1)
    if dtype.is_int and dtype.bits <= 16:
        return of_integers(x, 1.0)
    raise Obstacle(f"integers of {dtype.bits} bits become floats")


def rule_of(op: Op) -> FixedRule | None:
    """How a result of integers is made; None where there is no such form."""
    product = matrix_product(op)
    derived = partial(product_of_matrices, product) if product is not None else None
    return FIXED_POINT.of(op) or derived or (_move if hands_on_one(op) else None)


def hands_on_one(op: Op) -> bool:
    """Whether all elements of its only result are elements of the first operand, moved or chosen by their order."""
    return hands_on_elements(op) and traits_of(op).chooses_one



@FIXED_POINT.rule(argmax, argmin)
def _place(op: Op, numbers: Numbers) -> Value:
    """Where the greatest or least element is."""
    made: Any = moved(op, uniform(numbers.of(op.operands[0])).value)
    return made
