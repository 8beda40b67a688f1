"""Elementwise operators: a result's element from one element of each operand, with NumPy broadcasting."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import LEVELS
from tilewright.ir.sym import Sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import Compute, Operator, compute, primitive
from tilewright.ops.define.bodies import filled
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import broadcast, require_same_dtype
from tilewright.ops.traits.facts import Traits

_KINDS = {
    "float": lambda d: d.is_float,
    "number": lambda d: d.is_float or d.is_int,
    "integer": lambda d: d.is_int,
    "bits": lambda d: d.is_int or d.kind == "bool",
    "any": lambda d: d.kind != "string",
}


def _require_kind(x: Array, kind: str) -> None:
    if not _KINDS[kind](x.dtype):
        allowed = {"bits": "integers or bool", "number": "numbers", "float": "floats", "integer": "integers"}
        raise ValueError(f"operands must be {allowed.get(kind, 'numbers or bool')}, not {x.dtype}")


def _unary(name: str, kind: str, doc: str) -> Operator:
    """The operator that applies scalar operation `name` to every element."""

    def fn(x: Array) -> Compute:
        _require_kind(x, kind)
        return compute([x], x.shape, lambda t, i, r: t.apply(name, x[tuple(i)]))

    fn.__name__, fn.__doc__ = name, doc
    return primitive(fn)


def _binary(name: str, kind: str, doc: str) -> Operator:
    """The operator that applies scalar operation `name` to pairs of elements."""

    def fn(a: Array, b: Array) -> Compute:
        require_same_dtype(a, b)
        _require_kind(a, kind)
        return compute(
            [a, b], broadcast(a.shape, b.shape), lambda t, i, r: _paired(t, name, a.at(i), b.at(i))
        )

    fn.__name__, fn.__doc__ = name, doc
    return _broadcasting(fn)


def _broadcasting(fn: Callable[..., Compute]) -> Operator:
    """The primitive of which all operands are broadcast to the result's shape."""
    return primitive(fn).broadcasts(_all_alike)


def _all_alike(*types: TensorType) -> list[tuple[Sym, ...]]:
    """All operands are read as the result is."""
    return [broadcast(*(t.shape for t in types))] * len(types)


def _paired(t: ScalarBuilder, name: str, a: Scalar, b: Scalar) -> Scalar:
    if name in ("div", "rem", "mod") and a.dtype.is_int:
        return integer_division(t, name, a, b)
    if name in ("min", "max", "mul", "add") and a.dtype.kind == "bool":
        return t.apply("and" if name in ("min", "mul") else "or", a, b)
    return t.apply(name, a, b)


def integer_division(t: ScalarBuilder, name: str, a: Scalar, b: Scalar) -> Scalar:
    """`div`, `rem` or `mod` of integers that never traps: zero is reported, -1 negates."""
    nonzero = b.ne(0)
    t.check(nonzero, "ExecutionError", "integer division by zero")
    if a.dtype.kind == "uint":
        return t.apply(name, a, t.select(nonzero, b, 1))
    is_minus_one = b.eq(-1)
    quotient = t.apply(name, a, t.select(nonzero, t.select(is_minus_one, 1, b), 1))
    return t.select(is_minus_one, -a if name == "div" else t.const(0, a.dtype), quotient)


add = _binary("add", "any", "a + b; integers wrap, of bools the disjunction.").onnx("Add", since=7)
sub = _binary("sub", "number", "a - b; integers wrap.").onnx("Sub", since=7)
mul = _binary("mul", "any", "a * b; integers wrap, of bools the conjunction.").onnx("Mul", since=7).torch("mul")
div = _binary("div", "number", "a / b; integers truncate towards zero, and report division by zero.").onnx(
    "Div", since=7
)
div.declares(Traits(right_identity=1))
rem = _binary("rem", "number", "The remainder of a / b with the sign of a (C's fmod).")
mod = _binary("mod", "number", "The remainder of floor division a / b, with the sign of b.")
atan2 = _binary("atan2", "float", "The angle of the point (b, a), in radians.").torch("atan2")
and_ = _binary("and", "bits", "Bitwise (of bools: logical) conjunction.").onnx("And", since=7).torch("bitwise_and")
and_.onnx("BitwiseAnd", since=18)
or_ = _binary("or", "bits", "Bitwise (of bools: logical) disjunction.").onnx("Or", since=7).torch("bitwise_or")
or_.onnx("BitwiseOr", since=18)
xor = _binary("xor", "bits", "Bitwise (of bools: logical) exclusive disjunction.").onnx("Xor", since=7)
xor.torch("bitwise_xor")
xor.onnx("BitwiseXor", since=18)
eq = _binary("eq", "any", "a == b, as bool.").onnx("Equal", since=7).torch("eq")
ne = _binary("ne", "any", "a != b, as bool.").torch("ne")
lt = _binary("lt", "number", "a < b, as bool.").onnx("Less", since=7)
le = _binary("le", "number", "a <= b, as bool.").onnx("LessOrEqual", since=12)
gt = _binary("gt", "number", "a > b, as bool.").onnx("Greater", since=7)
ge = _binary("ge", "number", "a >= b, as bool.").onnx("GreaterOrEqual", since=12)
min_ = _binary("min", "any", "The lesser of a and b; NaN if either is NaN.").torch("minimum")
max_ = _binary("max", "any", "The greater of a and b; NaN if either is NaN.").torch("maximum")


@_broadcasting
def quotient(a: Array, b: Array, inverse: Array) -> Compute:
    """a / b of floats without a division: `inverse` is 1 / b, a normal number. Not exact for denormal quotients."""
    require_same_dtype(a, b)
    require_same_dtype(a, inverse)
    _require_kind(a, "float")
    shape = broadcast(broadcast(a.shape, b.shape), inverse.shape)
    return compute([a, b, inverse], shape, lambda t, i, r: t.apply("quotient", a.at(i), b.at(i), inverse.at(i)))


neg = _unary("neg", "number", "-x; integers wrap.").onnx("Neg", since=1).torch("neg")
abs_ = _unary("abs", "number", "The absolute value.").onnx("Abs", since=1).torch("abs")
not_ = _unary("not", "bits", "Bitwise (of bools: logical) negation.").onnx("Not").onnx("BitwiseNot", since=18)
not_.torch("bitwise_not")
sign = _unary("sign", "number", "-1, 0 or 1 as x is negative, zero or positive; NaN of NaN.").onnx(
    "Sign", since=9
)
floor = _unary("floor", "float", "The greatest integer not above x.").onnx("Floor", since=1)
ceil = _unary("ceil", "float", "The least integer not below x.").onnx("Ceil", since=1)
round_ = _unary("round", "float", "The nearest integer, of two the even one.").onnx("Round", since=11)
trunc = _unary("trunc", "float", "x without its fraction.")
sqrt = _unary("sqrt", "float", "The square root; NaN below zero.").onnx("Sqrt", since=1).torch("sqrt")
rsqrt = _unary("rsqrt", "float", "1 / sqrt(x).").torch("rsqrt")
exp = _unary("exp", "float", "e to the power of x.").onnx("Exp", since=1).torch("exp")
expm1 = _unary("expm1", "float", "exp(x) - 1 without cancellation.").torch("expm1")
log = _unary("log", "float", "The natural logarithm; -inf of 0, NaN below.").onnx("Log", since=1).torch("log")
log1p = _unary("log1p", "float", "log(1 + x) without cancellation.").torch("log1p")
tanh = _unary("tanh", "float", "The hyperbolic tangent.").onnx("Tanh", since=1).torch("tanh")
sigmoid = _unary("sigmoid", "float", "1 / (1 + exp(-x)).").onnx("Sigmoid", since=1).torch("sigmoid")
erf = _unary("erf", "float", "The Gauss error function.").onnx("Erf", since=9).torch("erf")
sin = _unary("sin", "float", "The sine of x radians.").onnx("Sin", since=7).torch("sin")
cos = _unary("cos", "float", "The cosine of x radians.").onnx("Cos", since=7).torch("cos")
tan = _unary("tan", "float", "The tangent of x radians.").onnx("Tan", since=7).torch("tan")
asin = _unary("asin", "float", "The inverse sine, in radians.").onnx("Asin", since=7).torch("asin")
acos = _unary("acos", "float", "The inverse cosine, in radians.").onnx("Acos", since=7).torch("acos")
atan = _unary("atan", "float", "The inverse tangent, in radians.").onnx("Atan", since=7).torch("atan")
sinh = _unary("sinh", "float", "The hyperbolic sine.").onnx("Sinh", since=9).torch("sinh")
cosh = _unary("cosh", "float", "The hyperbolic cosine.").onnx("Cosh", since=9).torch("cosh")
asinh = _unary("asinh", "float", "The inverse hyperbolic sine.").onnx("Asinh", since=9).torch("asinh")
acosh = _unary("acosh", "float", "The inverse hyperbolic cosine.").onnx("Acosh", since=9).torch("acosh")
atanh = _unary("atanh", "float", "The inverse hyperbolic tangent.").onnx("Atanh", since=9).torch("atanh")
is_nan = _unary("is_nan", "float", "Whether x is not a number, as bool.").onnx("IsNaN", since=9)
is_inf = _unary("is_inf", "float", "Whether x is an infinity of either sign, as bool.")


@_broadcasting
def pow_(a: Array, b: Array) -> Compute:
    """a to the power of b; an integer b of another dtype is taken to a's dtype, integers wrap."""
    _require_kind(a, "number")
    _require_kind(b, "number")
    shape = broadcast(a.shape, b.shape)
    return compute([a, b], shape, lambda t, i, r: t.apply("pow", a.at(i), b.at(i).cast(a.dtype)))


pow_.declares(Traits(right_identity=1))


@_broadcasting
def select(cond: Array, a: Array, b: Array) -> Compute:
    """a where `cond` (bool) holds, b elsewhere."""
    if cond.dtype != dt.bool_:
        raise ValueError(f"the condition must be bool, not {cond.dtype}")
    require_same_dtype(a, b)
    shape = broadcast(cond.shape, a.shape, b.shape)
    return compute([cond, a, b], shape, lambda t, i, r: t.select(cond.at(i), a.at(i), b.at(i)))


select.onnx("Where", since=9)


@primitive
def cast(x: Array, *, dtype: DType) -> Compute:
    """x converted to `dtype`: floats to integers truncate and saturate, anything to bool is `!= 0`, integers wrap."""
    if "string" in (x.dtype.kind, dtype.kind):
        raise ValueError("strings cannot be converted")
    return compute([x], x.shape, lambda t, i, r: x[tuple(i)].cast(dtype))


@primitive
def bitcast(x: Array, *, dtype: DType) -> Compute:
    """The elements of `dtype` that have the bits of x; both have equally many."""
    if "string" in (x.dtype.kind, dtype.kind) or x.dtype.bits != dtype.bits:
        raise ValueError(f"the bits of {x.dtype} are not those of {dtype}: both must have equally many")
    return compute([x], x.shape, lambda t, i, r: t.bitcast(x[tuple(i)], dtype))


@primitive
def level(x: Array, *, levels: tuple[float, ...], dtype: DType) -> Compute:
    """Of 16 levels those that codes of 4 bits without a sign (u4) stand for, as numbers of `dtype`: a codebook."""
    if x.dtype is not dt.u4 or dtype.kind not in ("int", "uint", "float"):
        raise ValueError(f"codes of 4 bits stand for numbers, not {x.dtype} for {dtype}")
    if len(levels) != LEVELS:
        raise ValueError(f"codes of 4 bits have {LEVELS} levels, not {len(levels)}")
    if dtype.is_int and any(n != int(filled(int(n), dtype)) for n in levels):
        raise ValueError(f"levels of {dtype} are integers that it holds, not {levels}")
    return compute([x], x.shape, lambda t, i, r: t.level(x[tuple(i)], levels, dtype))


def _shift(name: str, doc: str) -> Operator:
    def fn(a: Array, b: Array) -> Compute:
        dtype = require_same_dtype(a, b)
        _require_kind(a, "integer")

        def body(t: ScalarBuilder, i: object, r: object) -> Scalar:
            count = b.at(i)  # type: ignore[arg-type]
            fits = count < dtype.bits if dtype.kind == "uint" else (count < dtype.bits) & (count >= 0)
            value = a.at(i)  # type: ignore[arg-type]
            keeps_sign = name == "shr" and dtype.kind == "int"
            beyond = t.select(value < 0, t.const(-1, dtype), 0) if keeps_sign else t.const(0, dtype)
            return t.select(fits, t.apply(name, value, t.select(fits, count, 0)), beyond)

        return compute([a, b], broadcast(a.shape, b.shape), body)

    fn.__name__, fn.__doc__ = name, doc
    return _broadcasting(fn)


shl = _shift("shl", "a shifted left by b bits; 0 where b is not below the width.")
shr = _shift("shr", "a shifted right by b bits (signed: keeping the sign, and beyond the width only that).")
