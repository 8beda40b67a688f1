"""Ops on one element of each operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from jaxlib.mlir.dialects import stablehlo

from tilewright.frontends.stablehlo.adapters.complexes import BINARY as COMPLEX_BINARY
from tilewright.frontends.stablehlo.adapters.complexes import UNARY as COMPLEX_UNARY
from tilewright.frontends.stablehlo.adapters.complexes import as_pair
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held, as_value
from tilewright.frontends.stablehlo.written_out import softmax_of
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.source import number_like

Unary = Callable[[Value], Value]
Binary = Callable[[Value, Value], Value]


# Of one operand


def _cbrt(x: Value) -> Value:
    """A power, and a step of Newton's method, which zero and infinities need not."""
    size = ew.abs_(x)
    root = ew.pow_(size, number_like(1 / 3, x))
    square = ew.mul(root, root)
    better = ew.sub(root, ew.div(ew.sub(ew.mul(square, root), size), ew.mul(square, number_like(3.0, x))))
    is_plain = ew.and_(ew.gt(size, number_like(0.0, x)), ew.not_(ew.is_inf(size)))
    return ew.mul(ew.sign(x), ew.select(is_plain, better, root))


def _round_away(x: Value) -> Value:
    """The nearest integer, of two the one farther from zero."""
    whole = ew.trunc(x)
    beyond = ew.ge(ew.abs_(ew.sub(x, whole)), number_like(0.5, x))
    return ew.select(beyond, ew.add(whole, ew.sign(x)), whole)


def _is_finite(x: Value) -> Value:
    return ew.not_(ew.or_(ew.is_nan(x), ew.is_inf(x)))


def _population(x: Value) -> Value:
    """The number of ones among the bits: sums of neighbours, of these, and so on."""
    dtype = type_of(x).dtype
    bits = ew.bitcast(x, dtype=dtype.integer("uint")) if dtype.kind == "int" else x
    width = 1
    while width < dtype.bits:
        mask = sum(((1 << width) - 1) << k for k in range(0, dtype.bits, 2 * width))
        low = ew.and_(bits, number_like(mask, bits))
        bits = ew.add(low, ew.and_(ew.shr(bits, number_like(width, bits)), number_like(mask, bits)))
        width *= 2
    return ew.bitcast(bits, dtype=dtype) if dtype.kind == "int" else bits


def _leading_zeros(x: Value) -> Value:
    """The zeros above the highest one: ones are put below it, and counted."""
    dtype = type_of(x).dtype
    bits = ew.bitcast(x, dtype=dtype.integer("uint")) if dtype.kind == "int" else x
    width = 1
    while width < dtype.bits:
        bits = ew.or_(bits, ew.shr(bits, number_like(width, bits)))
        width *= 2
    return ew.cast(_population(ew.not_(bits)), dtype=dtype)


UNARY: Mapping[str, Unary] = MappingProxyType(
    {
        "abs": ew.abs_, "negate": ew.neg, "sign": ew.sign, "floor": ew.floor, "ceil": ew.ceil, "sqrt": ew.sqrt,
        "round_nearest_even": ew.round_, "round_nearest_afz": _round_away, "rsqrt": ew.rsqrt, "cbrt": _cbrt,
        "exponential": ew.exp, "exponential_minus_one": ew.expm1, "log": ew.log, "log_plus_one": ew.log1p,
        "tanh": ew.tanh, "logistic": ew.sigmoid, "sine": ew.sin, "cosine": ew.cos, "tan": ew.tan, "not": ew.not_,
        "is_finite": _is_finite, "popcnt": _population, "count_leading_zeros": _leading_zeros,
        "chlo.erf": ew.erf, "chlo.acos": ew.acos, "chlo.acosh": ew.acosh, "chlo.asin": ew.asin,
        "chlo.asinh": ew.asinh, "chlo.atan": ew.atan, "chlo.atanh": ew.atanh, "chlo.cosh": ew.cosh,
        "chlo.sinh": ew.sinh, "chlo.tan": ew.tan, "chlo.is_inf": ew.is_inf,
    }
)  # fmt: skip
"""Ops of one operand."""


@adapter(*UNARY, by_element=True)
def _unary(node: ProgramOp) -> Held:
    name = node.op.removeprefix("stablehlo.")
    x = node.held(0)
    if isinstance(x, ComplexPair):
        if name not in COMPLEX_UNARY:
            raise UnsupportedError("it is not supported for complex numbers")
        return COMPLEX_UNARY[name](x)
    return UNARY[name](as_value(x))


# Of two operands


def _guarded(divide: Binary, by_zero: Callable[[Value], Value]) -> Binary:
    """Division in which integers have a result for zero, too, as XLA gives it."""

    def divided(a: Value, b: Value) -> Value:
        if type_of(b).dtype.is_float:
            return divide(a, b)
        is_zero = ew.eq(b, number_like(0, b))
        return ew.select(is_zero, by_zero(a), divide(a, ew.select(is_zero, number_like(1, b), b)))

    return divided


def _ones(a: Value) -> Value:
    dtype = type_of(a).dtype
    return number_like(-1 if dtype.kind == "int" else (1 << dtype.bits) - 1, a)


def _shift_logical(a: Value, b: Value) -> Value:
    dtype = type_of(a).dtype
    if dtype.kind == "uint":
        return ew.shr(a, b)
    bits = dtype.integer("uint")
    return ew.bitcast(ew.shr(ew.bitcast(a, dtype=bits), ew.bitcast(b, dtype=bits)), dtype=dtype)


def _shift_arithmetic(a: Value, b: Value) -> Value:
    dtype = type_of(a).dtype
    if dtype.kind == "int":
        # a count below zero is a large one without a sign
        count = ew.select(ew.lt(b, number_like(0, b)), number_like(dtype.bits, b), b) if dtype.bits > 8 else b
        return ew.shr(a, count)
    bits = dtype.integer()
    return ew.bitcast(_shift_arithmetic(ew.bitcast(a, dtype=bits), ew.bitcast(b, dtype=bits)), dtype=dtype)


def _power(a: Value, b: Value) -> Value:
    """Of integers with an exponent below zero 0, or of 1 and -1 what it is."""
    if type_of(a).dtype.kind != "int":
        return ew.pow_(a, b)
    is_below = ew.lt(b, number_like(0, b))
    plain = ew.pow_(a, ew.select(is_below, number_like(0, b), b))
    is_odd = ew.ne(ew.and_(b, number_like(1, b)), number_like(0, b))
    one, zero = number_like(1, a), number_like(0, a)
    of_minus_one = ew.select(is_odd, number_like(-1, a), one)
    inverse = ew.select(ew.eq(a, one), one, ew.select(ew.eq(a, number_like(-1, a)), of_minus_one, zero))
    return ew.select(is_below, inverse, plain)


BINARY: Mapping[str, Binary] = MappingProxyType(
    {
        "add": ew.add, "subtract": ew.sub, "multiply": ew.mul, "divide": _guarded(ew.div, _ones),
        "remainder": _guarded(ew.rem, lambda a: a), "maximum": ew.max_, "minimum": ew.min_, "and": ew.and_,
        "or": ew.or_, "xor": ew.xor, "power": _power, "atan2": ew.atan2, "shift_left": ew.shl,
        "shift_right_logical": _shift_logical, "shift_right_arithmetic": _shift_arithmetic,
    }
)  # fmt: skip
"""Ops of two operands."""


@adapter(*BINARY, by_element=True)
def _binary(node: ProgramOp) -> Held:
    name = node.op.removeprefix("stablehlo.")
    a, b = node.held(0), node.held(1)
    if isinstance(a, ComplexPair) or isinstance(b, ComplexPair):
        if name not in COMPLEX_BINARY:
            raise UnsupportedError("it is not supported for complex numbers")
        return COMPLEX_BINARY[name](as_pair(a), as_pair(b))
    if name == "divide" and (found := softmax_of(node.translation, as_value(a), as_value(b))) is not None:
        return found
    return BINARY[name](as_value(a), as_value(b))


# Comparisons and choices

DIRECTIONS: Mapping[str, Binary] = MappingProxyType(
    {"EQ": ew.eq, "NE": ew.ne, "LT": ew.lt, "LE": ew.le, "GT": ew.gt, "GE": ew.ge}
)


def direction_of(node_attribute: object) -> str:
    """The name of a direction of `compare`."""
    return str(stablehlo.ComparisonDirectionAttr(node_attribute).value)


def total_order(x: Value) -> Value:
    """Integers in the order that floats have with -NaN below all, -0 below 0 and NaN above all."""
    dtype = type_of(x).dtype
    bits = ew.bitcast(x, dtype=dtype.integer())
    rest = number_like((1 << (dtype.bits - 1)) - 1, bits)
    return ew.select(ew.lt(bits, number_like(0, bits)), ew.xor(bits, rest), bits)


@adapter("compare", by_element=True)
def _compare(node: ProgramOp) -> Held:
    direction = direction_of(node.attribute("comparison_direction"))
    if direction not in DIRECTIONS:
        raise ModelError(f"the comparison '{direction}' is unknown")
    a, b = node.held(0), node.held(1)
    if isinstance(a, ComplexPair) or isinstance(b, ComplexPair):
        a, b = as_pair(a), as_pair(b)
        if direction not in ("EQ", "NE"):
            raise UnsupportedError("complex numbers have no order")
        join = ew.and_ if direction == "EQ" else ew.or_
        compare = DIRECTIONS[direction]
        return join(compare(a.real, b.real), compare(a.imaginary, b.imaginary))
    x, y = as_value(a), as_value(b)
    how = str(node.operation.attributes["compare_type"]) if node.has("compare_type") else ""
    if "TOTALORDER" in how:
        x, y = total_order(x), total_order(y)
    elif type_of(x).dtype is dt.bool_ and direction not in ("EQ", "NE"):
        x, y = ew.cast(x, dtype=dt.u8), ew.cast(y, dtype=dt.u8)
    return DIRECTIONS[direction](x, y)


@adapter("select", by_element=True)
def _select(node: ProgramOp) -> Held:
    condition, a, b = node.x(0), node.held(1), node.held(2)
    if isinstance(a, ComplexPair) or isinstance(b, ComplexPair):
        a, b = as_pair(a), as_pair(b)
        return ComplexPair(ew.select(condition, a.real, b.real), ew.select(condition, a.imaginary, b.imaginary))
    return ew.select(condition, as_value(a), as_value(b))


@adapter("clamp", by_element=True)
def _clamp(node: ProgramOp) -> Held:
    low, x, high = node.values
    return ew.min_(ew.max_(x, low), high)


# Types


@adapter("convert", by_element=True)
def _convert(node: ProgramOp) -> Held:
    x, dtype = node.held(0), node.result_type.dtype
    if node.result_type.is_complex:
        pair = as_pair(x)
        return ComplexPair(converted(pair.real, dtype), converted(pair.imaginary, dtype))
    return converted(x.real if isinstance(x, ComplexPair) else as_value(x), dtype)


def converted(x: Value, dtype: DType) -> Value:
    return x if type_of(x).dtype == dtype else ew.cast(x, dtype=dtype)


@adapter("bitcast_convert", by_element=True)
def _bitcast(node: ProgramOp) -> Held:
    x, dtype = node.x(0), node.result_type.dtype
    own = type_of(x).dtype
    if own == dtype:
        return x
    if dt.bool_ in (own, dtype) or own.bits != dtype.bits:
        raise UnsupportedError(f"the bits of {own} as {dtype} are not supported: both must have equally many")
    return ew.bitcast(x, dtype=dtype)


_PRECISIONS: Mapping[tuple[int, int], DType] = MappingProxyType({(8, 7): dt.bf16, (5, 10): dt.f16, (8, 23): dt.f32})
"""Digits of exponent and mantissa."""


@adapter("reduce_precision", by_element=True)
def _reduce_precision(node: ProgramOp) -> Held:
    x = node.x(0)
    digits = node.integer("exponent_bits"), node.integer("mantissa_bits")
    own = type_of(x).dtype
    if digits not in _PRECISIONS:
        raise UnsupportedError(f"a precision of {digits[0]} and {digits[1]} bits is not supported")
    narrow = _PRECISIONS[digits]
    return x if narrow.bits >= own.bits else ew.cast(ew.cast(x, dtype=narrow), dtype=own)
