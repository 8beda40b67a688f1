"""Complex numbers as pairs of real tensors: what operators on them compute, over operators on their parts.

No operator, pass or kernel knows complex numbers. Functions take real tensors, too, where these are cheaper: a product
with a real number takes two multiplications.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.declared import composite
from tilewright.ops.reduce import dtype_of
from tilewright.ops.source import full
from tilewright.ops.view import concat, expand, reshape, section, shape_of


@dataclass(frozen=True)
class ComplexPair:
    """Complex numbers, as two tensors of one shape and dtype."""

    real: Value
    imaginary: Value


Number = Value | ComplexPair
"""Real or complex numbers."""


@composite
def zeros_like(x: Value) -> Value:
    return full(value=0.0, dtype=dtype_of(x), shape=shape_of(x))


@composite
def as_pair(x: Number) -> ComplexPair:
    """Real numbers with zeros as their imaginary parts."""
    return x if isinstance(x, ComplexPair) else ComplexPair(x, zeros_like(x))


@composite
def pair_of(real: Value, imaginary: Value) -> ComplexPair:
    """Of parts that are broadcast against each other."""
    if shape_of(real) != shape_of(imaginary):
        shape = shape_of(ew.add(real, imaginary))
        real, imaginary = (x if shape_of(x) == shape else expand(x, shape=shape) for x in (real, imaginary))
    return ComplexPair(real, imaginary)


@composite
def real_of(x: Number) -> Value:
    return x.real if isinstance(x, ComplexPair) else x


def each(x: ComplexPair, apply: Callable[[Value], Value]) -> ComplexPair:
    """What a function that only moves elements, or is linear, makes of both parts."""
    return ComplexPair(apply(x.real), apply(x.imaginary))


@composite
def cast(x: Number, dtype: DType) -> ComplexPair:
    """With parts of a dtype."""
    return each(as_pair(x), lambda v: v if dtype_of(v) is dtype else ew.cast(v, dtype=dtype))


# Parts along a last axis, as they lie in memory


@composite
def as_real(x: ComplexPair) -> Value:
    """Real and imaginary parts along a new last axis."""
    shape = (*shape_of(x.real), 1)
    return concat(reshape(x.real, shape=shape), reshape(x.imaginary, shape=shape), axis=len(shape) - 1)


@composite
def as_complex(x: Value) -> ComplexPair:
    """Of a tensor whose last axis holds real and imaginary parts."""
    return ComplexPair(_part(x, 0), _part(x, 1))


def _part(x: Value, k: int) -> Value:
    return reshape(section(x, -1, k, 1), shape=shape_of(x)[:-1])


# Arithmetic


@composite
def conj(x: ComplexPair) -> ComplexPair:
    return ComplexPair(x.real, ew.neg(x.imaginary))


@composite
def neg(x: ComplexPair) -> ComplexPair:
    return each(x, ew.neg)


@composite
def times_i(x: ComplexPair) -> ComplexPair:
    return ComplexPair(ew.neg(x.imaginary), x.real)


@composite
def over_i(x: ComplexPair) -> ComplexPair:
    return ComplexPair(x.imaginary, ew.neg(x.real))


@composite
def add(a: Number, b: Number) -> ComplexPair:
    if not isinstance(b, ComplexPair):
        a, b = b, a
    assert isinstance(b, ComplexPair)
    if isinstance(a, ComplexPair):
        return ComplexPair(ew.add(a.real, b.real), ew.add(a.imaginary, b.imaginary))
    return pair_of(ew.add(a, b.real), b.imaginary)


@composite
def sub(a: Number, b: Number) -> ComplexPair:
    if isinstance(a, ComplexPair) and isinstance(b, ComplexPair):
        return ComplexPair(ew.sub(a.real, b.real), ew.sub(a.imaginary, b.imaginary))
    if isinstance(a, ComplexPair):
        return pair_of(ew.sub(a.real, real_of(b)), a.imaginary)
    assert isinstance(b, ComplexPair)
    return pair_of(ew.sub(a, b.real), ew.neg(b.imaginary))


def product(a: Number, b: Number, times: Callable[[Value, Value], Value]) -> ComplexPair:
    """Of any bilinear function."""
    if not isinstance(a, ComplexPair):
        assert isinstance(b, ComplexPair)
        real = a
        return each(b, lambda v: times(real, v))
    if not isinstance(b, ComplexPair):
        other = b
        return each(a, lambda v: times(v, other))
    real = ew.sub(times(a.real, b.real), times(a.imaginary, b.imaginary))
    return ComplexPair(real, ew.add(times(a.real, b.imaginary), times(a.imaginary, b.real)))


@composite
def mul(a: Number, b: Number) -> ComplexPair:
    return product(a, b, ew.mul)


@composite
def reciprocal(x: ComplexPair) -> ComplexPair:
    """Without overflow: the greater part is divided out first."""
    scale = ew.max_(ew.abs_(x.real), ew.abs_(x.imaginary))
    a, b = ew.div(x.real, scale), ew.div(x.imaginary, scale)
    size = ew.mul(ew.add(ew.mul(a, a), ew.mul(b, b)), scale)
    return ComplexPair(ew.div(a, size), ew.div(ew.neg(b), size))


@composite
def div(a: Number, b: Number) -> ComplexPair:
    if not isinstance(b, ComplexPair):
        divisor = b
        return each(as_pair(a), lambda v: ew.div(v, divisor))
    scale = ew.max_(ew.abs_(b.real), ew.abs_(b.imaginary))
    c, d = ew.div(b.real, scale), ew.div(b.imaginary, scale)
    size = ew.mul(ew.add(ew.mul(c, c), ew.mul(d, d)), scale)
    return each(mul(a, ComplexPair(c, ew.neg(d))), lambda v: ew.div(v, size))


@composite
def power(x: ComplexPair, exponent: int) -> ComplexPair:
    """By squaring."""
    if exponent < 0:
        return reciprocal(power(x, -exponent))
    if exponent == 0:
        one = full(value=1.0, dtype=dtype_of(x.real), shape=shape_of(x.real))
        return as_pair(one)
    found: ComplexPair | None = None
    while True:
        if exponent & 1:
            found = x if found is None else mul(found, x)
        exponent >>= 1
        if not exponent:
            assert found is not None
            return found
        x = mul(x, x)


@composite
def pow_(a: Number, b: Number) -> ComplexPair:
    """exp(b log a), where 0 to the power of 0 is 1, and of others 0."""
    base, exponent = as_pair(a), as_pair(b)
    found = exp(mul(log(base), exponent))
    is_zero = ew.and_(_is_zero(base.real), _is_zero(base.imaginary))
    no_power = ew.and_(_is_zero(exponent.real), _is_zero(exponent.imaginary))
    dtype = dtype_of(base.real)
    at_zero = ew.select(no_power, _number(1.0, dtype), _number(0.0, dtype))
    return pair_of(
        ew.select(is_zero, at_zero, found.real), ew.select(is_zero, _number(0.0, dtype), found.imaginary)
    )


def _number(value: float, dtype: DType) -> Value:
    return full(value=value, dtype=dtype, shape=())


def _is_zero(x: Value) -> Value:
    return ew.eq(x, _number(0.0, dtype_of(x)))


# Polar coordinates


@composite
def abs_(x: ComplexPair) -> Value:
    """Without overflow: the greater part is taken out of the root. Infinite where a part is."""
    dtype = dtype_of(x.real)
    a, b = ew.abs_(x.real), ew.abs_(x.imaginary)
    greater, lesser = ew.max_(a, b), ew.min_(a, b)
    is_plain = ew.eq(greater, lesser)
    share = ew.select(is_plain, _number(1.0, dtype), ew.div(lesser, greater))
    found = ew.mul(greater, ew.sqrt(ew.add(_number(1.0, dtype), ew.mul(share, share))))
    return ew.select(ew.or_(ew.is_inf(a), ew.is_inf(b)), _number(math.inf, dtype), found)


@composite
def angle(x: ComplexPair) -> Value:
    return ew.atan2(x.imaginary, x.real)


@composite
def polar(size: Value, angle: Value) -> ComplexPair:
    return ComplexPair(ew.mul(size, ew.cos(angle)), ew.mul(size, ew.sin(angle)))


@composite
def sign(x: ComplexPair) -> ComplexPair:
    """Of length 1 in the same direction; 0 of 0."""
    size = abs_(x)
    divisor = ew.select(_is_zero(size), _number(1.0, dtype_of(size)), size)
    return each(x, lambda v: ew.div(v, divisor))


# Elementary functions


@composite
def exp(x: ComplexPair) -> ComplexPair:
    return polar(ew.exp(x.real), x.imaginary)


@composite
def log(x: ComplexPair) -> ComplexPair:
    return ComplexPair(ew.log(abs_(x)), angle(x))


@composite
def sqrt(x: ComplexPair) -> ComplexPair:
    """The root of which the real part is not negative; the sign of a zero says on which side of the branch it is."""
    dtype = dtype_of(x.real)
    half = ew.mul(ew.add(abs_(x), ew.abs_(x.real)), _number(0.5, dtype))
    long = ew.sqrt(half)
    divisor = ew.mul(long, _number(2.0, dtype))
    short = ew.select(_is_zero(long), long, ew.div(ew.abs_(x.imaginary), divisor))
    is_left = ew.lt(x.real, _number(0.0, dtype))
    real, imaginary = ew.select(is_left, short, long), ew.select(is_left, long, short)
    bits = dtype.integer()
    below = ew.lt(ew.bitcast(x.imaginary, dtype=bits), full(value=0, dtype=bits, shape=()))
    return ComplexPair(real, ew.select(below, ew.neg(imaginary), imaginary))


@composite
def cos(x: ComplexPair) -> ComplexPair:
    return ComplexPair(
        ew.mul(ew.cos(x.real), ew.cosh(x.imaginary)), ew.neg(ew.mul(ew.sin(x.real), ew.sinh(x.imaginary)))
    )


@composite
def sin(x: ComplexPair) -> ComplexPair:
    return ComplexPair(
        ew.mul(ew.sin(x.real), ew.cosh(x.imaginary)), ew.mul(ew.cos(x.real), ew.sinh(x.imaginary))
    )


@composite
def cosh(x: ComplexPair) -> ComplexPair:
    return cos(times_i(x))


@composite
def sinh(x: ComplexPair) -> ComplexPair:
    return over_i(sin(times_i(x)))


@composite
def tanh(x: ComplexPair) -> ComplexPair:
    """By tanh and tan of the parts, the squares of which stay in range."""
    dtype = dtype_of(x.real)
    one, two = _number(1.0, dtype), _number(2.0, dtype)
    t, s, c = ew.tanh(x.real), ew.sin(x.imaginary), ew.cos(x.imaginary)
    fall = ew.exp(ew.mul(ew.abs_(x.real), _number(-2.0, dtype)))
    half = ew.div(two, ew.add(one, fall))
    rest = ew.mul(fall, ew.mul(half, half))  # 1 - t * t
    size = ew.add(ew.mul(c, c), ew.mul(ew.mul(t, t), ew.mul(s, s)))
    return ComplexPair(ew.div(t, size), ew.div(ew.mul(ew.mul(s, c), rest), size))


@composite
def tan(x: ComplexPair) -> ComplexPair:
    return over_i(tanh(times_i(x)))


@composite
def expm1(x: ComplexPair) -> ComplexPair:
    """exp(a) cos b - 1 as (exp(a) - 1) cos b - (1 - cos b), of which the last is 2 sin(b / 2)^2."""
    dtype = dtype_of(x.real)
    half = ew.sin(ew.mul(x.imaginary, _number(0.5, dtype)))
    less = ew.mul(ew.mul(half, half), _number(2.0, dtype))
    real = ew.sub(ew.mul(ew.expm1(x.real), ew.cos(x.imaginary)), less)
    return ComplexPair(real, ew.mul(ew.exp(x.real), ew.sin(x.imaginary)))


@composite
def log1p(x: ComplexPair) -> ComplexPair:
    dtype = dtype_of(x.real)
    one = _number(1.0, dtype)
    more = ComplexPair(ew.add(x.real, one), x.imaginary)
    excess = ew.add(ew.mul(x.real, ew.add(x.real, _number(2.0, dtype))), ew.mul(x.imaginary, x.imaginary))
    is_near = ew.lt(ew.abs_(excess), _number(0.5, dtype))
    near = ew.mul(ew.log1p(ew.select(is_near, excess, _number(0.0, dtype))), _number(0.5, dtype))
    return ComplexPair(ew.select(is_near, near, ew.log(abs_(more))), angle(more))


@composite
def sigmoid(x: ComplexPair) -> ComplexPair:
    one = _number(1.0, dtype_of(x.real))
    return reciprocal(add(one, exp(neg(x))))


def _one_less_and_more(x: ComplexPair) -> tuple[ComplexPair, ComplexPair]:
    """The roots of 1 - x and 1 + x."""
    one = _number(1.0, dtype_of(x.real))
    return sqrt(sub(one, x)), sqrt(add(one, x))


@composite
def acos(x: ComplexPair) -> ComplexPair:
    """As Kahan's "Branch cuts for complex elementary functions" (1987), and those that follow."""
    less, more = _one_less_and_more(x)
    real = ew.mul(ew.atan2(less.real, more.real), _number(2.0, dtype_of(x.real)))
    return ComplexPair(real, ew.asinh(mul(conj(more), less).imaginary))


@composite
def asin(x: ComplexPair) -> ComplexPair:
    less, more = _one_less_and_more(x)
    return ComplexPair(ew.atan2(x.real, mul(less, more).real), ew.asinh(mul(conj(less), more).imaginary))


@composite
def acosh(x: ComplexPair) -> ComplexPair:
    one = _number(1.0, dtype_of(x.real))
    less, more = sqrt(sub(x, one)), sqrt(add(x, one))
    angle = ew.mul(ew.atan2(less.imaginary, more.real), _number(2.0, dtype_of(x.real)))
    return ComplexPair(ew.asinh(mul(conj(less), more).real), angle)


@composite
def asinh(x: ComplexPair) -> ComplexPair:
    return over_i(asin(times_i(x)))


@composite
def atanh(x: ComplexPair) -> ComplexPair:
    dtype = dtype_of(x.real)
    one = _number(1.0, dtype)
    a, b = x.real, x.imaginary
    less, square = ew.sub(one, a), ew.mul(b, b)
    size = ew.add(ew.mul(less, less), square)
    real = ew.mul(ew.log1p(ew.div(ew.mul(a, _number(4.0, dtype)), size)), _number(0.25, dtype))
    level = ew.sub(ew.mul(less, ew.add(one, a)), square)
    return ComplexPair(real, ew.mul(ew.atan2(ew.mul(b, _number(2.0, dtype)), level), _number(0.5, dtype)))


@composite
def atan(x: ComplexPair) -> ComplexPair:
    return over_i(atanh(times_i(x)))


# Comparisons and choices


@composite
def eq(a: Number, b: Number) -> Value:
    a, b = as_pair(a), as_pair(b)
    return ew.and_(ew.eq(a.real, b.real), ew.eq(a.imaginary, b.imaginary))


@composite
def ne(a: Number, b: Number) -> Value:
    return ew.not_(eq(a, b))


@composite
def select(condition: Value, a: Number, b: Number) -> ComplexPair:
    a, b = as_pair(a), as_pair(b)
    return ComplexPair(
        ew.select(condition, a.real, b.real), ew.select(condition, a.imaginary, b.imaginary)
    )


# Reductions


@composite
def reduce_prod(x: ComplexPair, axes: Sequence[int]) -> ComplexPair:
    """Over axes of known sizes, which stay as axes of 1: halves are multiplied, in as many steps as the size has
    bits."""
    for axis in axes:
        size = shape_of(x.real)[axis].value
        if size == 0:
            shape = tuple(1 if k == axis else d for k, d in enumerate(shape_of(x.real)))
            x = as_pair(full(value=1.0, dtype=dtype_of(x.real), shape=shape))
        while size > 1:
            half = size // 2
            found = mul(_cut(x, axis, 0, half), _cut(x, axis, half, half))
            if size % 2:
                rest = _cut(x, axis, 2 * half, 1)
                parts = zip((found.real, found.imaginary), (rest.real, rest.imaginary), strict=True)
                found = ComplexPair(*(concat(a, b, axis=axis) for a, b in parts))
            x, size = found, half + size % 2
    return x


@composite
def step_of_scan(x: ComplexPair, axis: int, step: int) -> ComplexPair:
    """Each element times the one `step` places before it."""
    rest = shape_of(x.real)[axis].value - step
    first, moved = _cut(x, axis, 0, step), mul(_cut(x, axis, step, rest), _cut(x, axis, 0, rest))
    parts = zip((first.real, first.imaginary), (moved.real, moved.imaginary), strict=True)
    return ComplexPair(*(concat(a, b, axis=axis) for a, b in parts))


def _cut(x: ComplexPair, axis: int, start: int, size: int) -> ComplexPair:
    return each(x, lambda v: section(v, axis, start, size))
