"""Elementwise operators of ATen that are more than a binding: numbers as factors, rounding modes, compositions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten, binds
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.iterated import common_divisor
from tilewright.ops.source import full
from tilewright.ops.view import expand, shape_of

Operand = Value | Number


@aten("add")
def add(node: AtenNode, self: Operand, other: Operand, alpha: Number = 1) -> Value:
    a, b = node.promoted(self, other)
    return ew.add(a, b if alpha == 1 else ew.mul(b, node.value(alpha, node.dtype)))


@aten("sub")
def sub(node: AtenNode, self: Operand, other: Operand, alpha: Number = 1) -> Value:
    a, b = node.promoted(self, other)
    return ew.sub(a, b if alpha == 1 else ew.mul(b, node.value(alpha, node.dtype)))


@aten("rsub")
def rsub(node: AtenNode, self: Operand, other: Operand, alpha: Number = 1) -> Value:
    return sub(node, other, self, alpha)


@aten("div", "true_divide", "divide")
def div(node: AtenNode, self: Operand, other: Operand, rounding_mode: str | None = None) -> Value:
    a, b = node.promoted(self, other)
    if rounding_mode is None or (rounding_mode == "trunc" and node.dtype.is_int):
        return ew.div(a, b)
    return ew.trunc(ew.div(a, b)) if rounding_mode == "trunc" else floored_quotient(a, b, node.dtype)


@aten("floor_divide")
def floor_divide(node: AtenNode, self: Operand, other: Operand) -> Value:
    a, b = node.promoted(self, other)
    return floored_quotient(a, b, node.dtype)


def floored_quotient(a: Value, b: Value, dtype: DType) -> Value:
    """The quotient rounded down, as PyTorch has it: of floats that of what the remainder leaves, which is whole but for
    rounding. Infinities so have none (they leave no remainder), and what is divided by one has 0 or -1."""
    rest, quotient = ew.rem(a, b), ew.div(a, b)
    if dtype.kind == "uint":
        return quotient
    if dtype.is_int:
        return ew.sub(quotient, ew.cast(_is_opposite(rest, b), dtype=dtype))
    zero, one = _number(0.0, a), _number(1.0, a)
    whole_ = ew.div(ew.sub(a, rest), b)
    whole_ = ew.select(_is_opposite(rest, b), ew.sub(whole_, one), whole_)
    down = ew.floor(whole_)
    down = ew.select(ew.gt(ew.sub(whole_, down), _number(0.5, a)), ew.add(down, one), down)
    down = ew.select(ew.eq(whole_, zero), _signed(zero, quotient), down)
    return ew.select(ew.eq(b, zero), quotient, down)


def _is_opposite(rest: Value, divisor: Value) -> Value:
    """Whether there is a remainder, of the other sign than the divisor."""
    zero = _number(0, rest)
    return ew.and_(ew.ne(rest, zero), ew.ne(ew.lt(rest, zero), ew.lt(divisor, zero)))


@aten("remainder")
def remainder(node: AtenNode, self: Operand, other: Operand) -> Value:
    """That of C with the sign of the divisor; where it is 0, floats keep the sign of what is divided."""
    a, b = node.promoted(self, other)
    if not node.dtype.is_float:
        return ew.mod(a, b)
    rest = ew.rem(a, b)
    return ew.select(_is_opposite(rest, b), ew.add(rest, b), rest)


def _number(value: float, like: Value) -> Value:
    return full(value=value, dtype=type_of(like).dtype, shape=())


@aten("pow", "float_power")
def pow_(node: AtenNode, self: Operand, exponent: Operand) -> Value:
    if isinstance(exponent, int | float) and isinstance(self, Value):
        base = node.value(self, node.dtype)
        if exponent == 2:
            return ew.mul(base, base)
        if exponent == 0.5 and node.dtype.is_float:
            return ew.sqrt(base)
    return ew.pow_(*node.promoted(self, exponent))


@aten("reciprocal")
def reciprocal(node: AtenNode, self: Value) -> Value:
    x = node.value(self, node.dtype)
    return ew.div(node.value(1, node.dtype), x)


_ROUNDINGS = {"floor": ew.floor, "ceil": ew.ceil, "trunc": ew.trunc, "fix": ew.trunc}


@aten(*_ROUNDINGS)
def rounded(node: AtenNode, self: Value) -> Value:
    return _ROUNDINGS[node.op.split(".")[1]](self) if node.dtype.is_float else self


@aten("round")
def round_(node: AtenNode, self: Value, decimals: int = 0) -> Value:
    if not node.dtype.is_float:
        return self
    if decimals == 0:
        return ew.round_(self)
    factor = node.value(10.0 ** abs(decimals), node.dtype)
    first, then = (ew.mul, ew.div) if decimals > 0 else (ew.div, ew.mul)
    return then(ew.round_(first(self, factor)), factor)


@aten("log2")
def log2(node: AtenNode, self: Value) -> Value:
    return ew.mul(ew.log(node.value(self, node.dtype)), node.value(1 / math.log(2), node.dtype))


@aten("log10")
def log10(node: AtenNode, self: Value) -> Value:
    return ew.mul(ew.log(node.value(self, node.dtype)), node.value(1 / math.log(10), node.dtype))


@aten("exp2", "special_exp2")
def exp2(node: AtenNode, self: Value) -> Value:
    return ew.pow_(node.value(2, node.dtype), node.value(self, node.dtype))


# Logic and comparisons


def as_bool(x: Value) -> Value:
    return x if type_of(x).dtype is dt.bool_ else ew.cast(x, dtype=dt.bool_)


_ORDER = {"lt": ew.lt, "le": ew.le, "gt": ew.gt, "ge": ew.ge}


@aten(*_ORDER)
def compare(node: AtenNode, self: Operand, other: Operand) -> Value:
    """False comes before true."""
    operands = node.promoted(self, other)
    return _ORDER[node.op.split(".")[1]](*(ordered(x) for x in operands))


def ordered(x: Value) -> Value:
    """A tensor whose elements can be compared: bools are bytes."""
    return ew.cast(x, dtype=dt.u8) if type_of(x).dtype is dt.bool_ else x


_LOGIC = {"logical_and": ew.and_, "logical_or": ew.or_, "logical_xor": ew.xor}


@aten(*_LOGIC)
def logic(node: AtenNode, self: Value, other: Value) -> Value:
    return _LOGIC[node.op.split(".")[1]](as_bool(self), as_bool(other))


@aten("isnan")
def isnan(node: AtenNode, self: Value) -> Value:
    return ew.is_nan(self) if type_of(self).dtype.is_float else filled(False, self)


@aten("isinf")
def isinf(node: AtenNode, self: Value) -> Value:
    return ew.is_inf(self) if type_of(self).dtype.is_float else filled(False, self)


@aten("isfinite")
def isfinite(node: AtenNode, self: Value) -> Value:
    return _is_finite(self) if type_of(self).dtype.is_float else filled(True, self)


def _is_finite(x: Value) -> Value:
    return ew.not_(ew.or_(ew.is_nan(x), ew.is_inf(x)))


def filled(value: bool, like: Value) -> Value:
    return full(value=value, dtype=dt.bool_, shape=shape_of(like))


@aten("masked_fill")
def masked_fill(node: AtenNode, self: Value, mask: Value, value: Operand) -> Value:
    return ew.select(as_bool(mask), node.value(value, node.dtype), self)


# Bounds


@aten("clamp", "clip")
def clamp(node: AtenNode, self: Value, min: Operand | None = None, max: Operand | None = None) -> Value:
    x = node.value(self, node.dtype)
    if min is not None:
        x = ew.max_(x, node.value(min, node.dtype))
    return x if max is None else ew.min_(x, node.value(max, node.dtype))


@aten("fmin", "fmax")
def number_extremum(node: AtenNode, self: Value, other: Value) -> Value:
    """As minimum and maximum, but a number wins over NaN."""
    a, b = node.promoted(self, other)
    found = (ew.min_ if node.op.startswith("aten.fmin") else ew.max_)(a, b)
    if not node.dtype.is_float:
        return found
    return ew.select(ew.is_nan(a), b, ew.select(ew.is_nan(b), a, found))


# Copies and conversions


@aten(
    "clone", "alias", "detach", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "dropout",
    "feature_dropout", "alpha_dropout", "_conj_physical", "real", "conj_physical", "resolve_conj",
    "resolve_neg", "to_dense",
)  # fmt: skip
def identity(node: AtenNode, self: Value | None = None, input: Value | None = None, **how: Any) -> Value:
    """Copies, and what does nothing while evaluating."""
    x = self if self is not None else input
    if how.get("train"):
        raise node.refuse("dropout of a module in training mode", "call .eval() on the module first")
    assert x is not None
    return x


@aten("_to_copy", "to", "type_as", "prims::convert_element_type")
def to(node: AtenNode, **arguments: Any) -> Value:
    x, *_ = arguments.values()
    return node.value(x, node.dtype)


@aten("copy")
def copy(node: AtenNode, self: Value, src: Value, non_blocking: bool = False) -> Value:
    return expand(node.value(src, node.dtype), shape=shape_of(self))


@aten("lerp")
def lerp(node: AtenNode, self: Value, end: Value, weight: Operand) -> Value:
    a, b, w = self, end, node.value(weight, node.dtype)
    near = ew.add(a, ew.mul(w, ew.sub(b, a)))
    far = ew.sub(b, ew.mul(ew.sub(b, a), ew.sub(node.value(1, node.dtype), w)))
    return ew.select(ew.lt(ew.abs_(w), node.value(0.5, node.dtype)), near, far)


@aten("addcmul")
def addcmul(node: AtenNode, self: Value, tensor1: Value, tensor2: Value, value: Number = 1) -> Value:
    a, b, c = node.promoted(self, tensor1, tensor2)
    product = ew.mul(b, c)
    return ew.add(a, product if value == 1 else ew.mul(product, node.value(value, node.dtype)))


@aten("addcdiv")
def addcdiv(node: AtenNode, self: Value, tensor1: Value, tensor2: Value, value: Number = 1) -> Value:
    a, b, c = node.promoted(self, tensor1, tensor2)
    scaled = b if value == 1 else ew.mul(b, node.value(value, node.dtype))
    return ew.add(a, ew.div(scaled, c))


@aten("logaddexp")
def logaddexp(node: AtenNode, self: Value, other: Value) -> Value:
    a, b = node.promoted(self, other)
    top = ew.max_(a, b)
    rest = ew.log1p(ew.exp(ew.neg(ew.abs_(ew.sub(a, b)))))
    return ew.select(ew.eq(a, b), ew.add(a, node.value(math.log(2), node.dtype)), ew.add(top, rest))


@aten("signbit")
def signbit(node: AtenNode, self: Value) -> Value:
    dtype = type_of(self).dtype
    if dtype.is_float:
        bits = {2: dt.i16, 4: dt.i32, 8: dt.i64}[dtype.bytes]
        return ew.lt(ew.bitcast(self, dtype=bits), 0)
    return ew.lt(self, 0) if dtype.kind == "int" else filled(False, self)


def _signed(x: Value, sign: Value) -> Value:
    """A float with the sign of another."""
    bits, size = {2: dt.i16, 4: dt.i32, 8: dt.i64}[type_of(sign).dtype.bytes], ew.abs_(x)
    return ew.select(ew.lt(ew.bitcast(sign, dtype=bits), 0), ew.neg(size), size)


@aten("nan_to_num")
def nan_to_num(
    node: AtenNode,
    self: Value,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Value:
    dtype = node.dtype
    if not dtype.is_float:
        return self
    most = float(ml_dtypes.finfo(dtype.storage).max)  # type: ignore[no-untyped-call]
    x = ew.select(ew.is_nan(self), node.value(0.0 if nan is None else nan, dtype), self)
    x = ew.select(
        ew.eq(self, node.value(math.inf, dtype)), node.value(most if posinf is None else posinf, dtype), x
    )
    return ew.select(
        ew.eq(self, node.value(-math.inf, dtype)), node.value(-most if neginf is None else neginf, dtype), x
    )


@aten("heaviside")
def heaviside(node: AtenNode, self: Value, values: Value) -> Value:
    a, b = node.promoted(self, values)
    zero = node.value(0, node.dtype)
    above = ew.gt(ordered(a), ordered(zero))
    return ew.select(ew.eq(a, zero), b, ew.cast(above, dtype=node.dtype))


@aten("gcd", "prims::gcd")
def divisor(node: AtenNode, self: Value, other: Value) -> Value:
    a, b = (expand(x, shape=node.shape) for x in node.promoted(self, other))
    return common_divisor(a, b)


@aten("lcm")
def multiple(node: AtenNode, self: Value, other: Value) -> Value:
    """The least common multiple; that of 0 is 0."""
    a, b = node.promoted(self, other)
    found, zero = divisor(node, a, b), node.value(0, node.dtype)
    quotient = ew.div(a, ew.select(ew.eq(found, zero), node.value(1, node.dtype), found))
    return ew.abs_(ew.mul(quotient, b)) if node.dtype.kind == "int" else ew.mul(quotient, b)


@aten("hypot", "prims::hypot")
def hypot(node: AtenNode, self: Value, other: Value) -> Value:
    """The length of a vector, without overflow: f32 is squared in f64, other types are divided by the longer part."""
    a, b = node.promoted(self, other)
    return ew.select(
        ew.or_(ew.is_inf(a), ew.is_inf(b)), node.value(math.inf, node.dtype), _length(a, b, node.dtype)
    )


def _length(a: Value, b: Value, dtype: DType) -> Value:
    if dtype is not dt.f64:
        x, y = (ew.cast(v, dtype=dt.f64) for v in (a, b))
        return ew.cast(ew.sqrt(ew.add(ew.mul(x, x), ew.mul(y, y))), dtype=dtype)
    long, short = ew.max_(ew.abs_(a), ew.abs_(b)), ew.min_(ew.abs_(a), ew.abs_(b))
    one = _number(1.0, long)
    ratio = ew.select(ew.eq(long, short), one, ew.div(short, long))
    found = ew.mul(long, ew.sqrt(ew.add(one, ew.mul(ratio, ratio))))
    return ew.select(ew.eq(long, _number(0.0, long)), long, found)


@aten("angle")
def angle(node: AtenNode, self: Value) -> Value:
    """0 of what is not negative, else pi."""
    x = node.value(self, node.dtype)
    found = ew.select(
        ew.lt(x, node.value(0, node.dtype)), node.value(math.pi, node.dtype), node.value(0, node.dtype)
    )
    return ew.select(ew.is_nan(x), x, found)


_LAYOUT = {2: (dt.i16, 10, 15), 4: (dt.i32, 23, 127), 8: (dt.i64, 52, 1023)}
"""Of IEEE floats by their bytes: integers of the width, bits of the fraction, what exponents are stored with."""


@aten("nextafter", namespace="prims")
def next_after(node: AtenNode, self: Value, other: Value) -> Value:
    """The neighbour of a number in the direction of another; floats of one sign are ordered as their bits."""
    a, b = node.promoted(self, other)
    bits, zero = _LAYOUT[node.dtype.bytes][0], node.value(0, node.dtype)
    one = node.value(1, bits)
    whole_ = ew.bitcast(a, dtype=bits)
    away = ew.eq(ew.gt(b, a), ew.gt(a, zero))
    moved = ew.bitcast(ew.select(away, ew.add(whole_, one), ew.sub(whole_, one)), dtype=node.dtype)
    least = ew.bitcast(one, dtype=node.dtype)
    moved = ew.select(ew.eq(a, zero), ew.select(ew.gt(b, zero), least, ew.neg(least)), moved)
    moved = ew.select(ew.eq(a, b), b, moved)
    return ew.select(ew.or_(ew.is_nan(a), ew.is_nan(b)), ew.add(a, b), moved)


@aten("frexp", "prims::frexp")
def frexp(node: AtenNode, self: Value) -> tuple[Value, Value]:
    """A fraction of 0.5 up to 1 and the power of two that it is multiplied with; denormals are scaled first."""
    dtype = type_of(self).dtype
    if dtype is dt.bf16 or dtype.bytes not in _LAYOUT:
        raise node.refuse(f"the fraction of {dtype}")
    bits, fraction, bias = _LAYOUT[dtype.bytes]
    zero = node.value(0, dtype)
    is_small = ew.lt(ew.abs_(self), node.value(2.0 ** (2 - bias), dtype))
    lift = fraction + 2
    x = ew.select(is_small, ew.mul(self, node.value(2.0**lift, dtype)), self)
    raw = ew.bitcast(x, dtype=bits)
    stored = ew.and_(ew.shr(raw, node.value(fraction, bits)), node.value(2 * bias + 1, bits))
    power = ew.sub(stored, node.value(bias - 1, bits))
    power = ew.select(is_small, ew.sub(power, node.value(lift, bits)), power)
    cleared = ew.and_(raw, node.value(~((2 * bias + 1) << fraction), bits))
    part = ew.bitcast(ew.or_(cleared, node.value((bias - 1) << fraction, bits)), dtype=dtype)
    is_plain = ew.and_(_is_finite(self), ew.ne(self, zero))
    power = ew.select(is_plain, power, node.value(0, bits))
    return ew.select(is_plain, part, self), ew.cast(power, dtype=dt.i32)


@aten("sign", "sgn")
def sign(node: AtenNode, self: Value) -> Value:
    """1 and -1 by comparisons, of which NaN meets none: its sign is 0."""
    if not node.dtype.is_float:
        return self if node.dtype is dt.bool_ else ew.sign(self)
    zero, one = _number(0.0, self), _number(1.0, self)
    return ew.select(ew.gt(self, zero), one, ew.select(ew.lt(self, zero), ew.neg(one), zero))


def _times_log(a: Value, b: Value, log: Callable[[Value], Value]) -> Value:
    """a * log(b); 0 where a is, and NaN where b is."""
    zero = _number(0, a)
    return ew.select(ew.is_nan(b), b, ew.select(ew.eq(a, zero), zero, ew.mul(a, log(b))))


binds(
    {
        "fmod": ew.rem, "clamp_min": ew.max_, "clamp_max": ew.min_, "copysign": _signed,
        "square": lambda x: ew.mul(x, x), "frac": lambda x: ew.sub(x, ew.trunc(x)),
        "logical_not": lambda x: ew.not_(as_bool(x)),
        "bitwise_left_shift": ew.shl, "__lshift__": ew.shl, "bitwise_right_shift": ew.shr, "__rshift__": ew.shr,
        "xlogy": lambda a, b: _times_log(a, b, ew.log), "special_xlogy": lambda a, b: _times_log(a, b, ew.log),
        "special_xlog1py": lambda a, b: _times_log(a, b, ew.log1p),
    }
)  # fmt: skip
