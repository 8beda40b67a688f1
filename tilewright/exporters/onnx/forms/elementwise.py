"""Elementwise operators: names that ONNX has, and what it says by several operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.exporters.onnx.forms.registry import NoFormError, direct, form, rewritten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS
from tilewright.ops.source import full

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter


@form("max")
def relu_as_maximum(w: OnnxWriter, op: Op) -> str | None:
    """Relu, where the other operand is the number 0."""
    x, zero = op.operands
    if zero.op is None or zero.op.name != "full" or zero.op.attrs["value"] != 0 or not x.tensor.dtype.is_float:
        return None
    is_plain = op.result.tensor.shape == x.tensor.shape and w.takes("Relu", x)
    return w.node("Relu", w.name(x)) if is_plain else None


@form("min")
def clip_as_extremes(w: OnnxWriter, op: Op) -> str | None:
    """Clip, where both limits are numbers."""
    limited, high = op.operands
    if limited.op is None or limited.op.name != "max" or not _is_number(high):
        return None
    x, low = limited.op.operands
    if not _is_number(low) or x.tensor.shape != op.result.tensor.shape or not w.takes("Clip", x, low, high):
        return None
    return w.node("Clip", *map(w.name, (x, low, high)))


def _is_number(v: Value) -> bool:
    return v.op is not None and v.op.name in ("full", "constant") and not v.tensor.rank


direct("max", "Max", 12)
direct("min", "Min", 12)
direct("pow", "Pow", 12)
direct("is_inf", "IsInf", 10)


@form("cast")
def cast(w: OnnxWriter, op: Op) -> str:
    """Cast; a float that becomes an integer is limited to its numbers, as ours is. Of what is itself a conversion in
    the model that is left to those who read it, as the standard does."""
    (x,), dtype = op.operands, op.attrs["dtype"]
    source = x.tensor.dtype
    if source == dtype:
        return w.name(x)
    code = w.code(dtype)
    if source.is_float and dtype.is_int and dtype.bits < 32 and op.loc.op not in _CONVERSIONS:
        return w.node("Cast", _limited(w, x, dtype), to=code)
    if dtype.is_float and dtype.bits <= 8 and w.opset >= 19:  # what is too large becomes infinite, or NaN
        return w.node("Cast", w.name(x), to=code, saturate=0 if dtype is not dt.f8e8m0 else None)
    return w.node("Cast", w.name(x), to=code)


_CONVERSIONS = frozenset({"Cast", "CastLike"})


@form("bitcast")
def bitcast_of_integers(w: OnnxWriter, op: Op) -> str | None:
    """Integers of one length as others: a conversion keeps their bits."""
    (x,), dtype = op.operands, op.attrs["dtype"]
    if w.opset >= BITS_AS_THEY_ARE or not (x.tensor.dtype.is_int and dtype.is_int):
        return None
    return w.node("Cast", w.name(x), to=w.code(dtype))


BITS_AS_THEY_ARE = 26
"""The operator set from which on there is BitCast."""


@form("cast_to_power")
def cast_to_power(w: OnnxWriter, op: Op) -> str:
    (x,) = op.operands
    saturate = None if op.attrs["saturate"] else 0
    return w.node("Cast", w.name(x), to=w.code(dt.f8e8m0), round_mode=op.attrs["mode"], saturate=saturate)


@form("bitcast")
def bitcast(w: OnnxWriter, op: Op) -> str:
    if not w.has(BITS_AS_THEY_ARE):
        raise NoFormError(
            f"version {w.opset} of the operator set cannot take bits of {op.operands[0].tensor.dtype} for "
            f"{op.attrs['dtype']}",
            f"version {BITS_AS_THEY_ARE} can: opset={BITS_AS_THEY_ARE} (--opset)",
        )
    return w.node("BitCast", w.name(op.operands[0]), to=w.code(op.attrs["dtype"]))


def _limited(w: OnnxWriter, x: Value, dtype: DType) -> str:
    is_signed = dtype.kind == "int"
    low = -(1 << (dtype.bits - 1)) if is_signed else 0
    high = (1 << (dtype.bits - is_signed)) - 1
    return w.node("Clip", w.name(x), w.number(low, x.tensor.dtype), w.number(high, x.tensor.dtype))


@form("rsqrt")
def rsqrt(w: OnnxWriter, op: Op) -> str | None:
    if not w.takes("Sqrt", *op.operands):
        return None
    return w.node("Reciprocal", w.node("Sqrt", w.name(op.operands[0])))


@form("ne")
def ne(w: OnnxWriter, op: Op) -> str | None:
    if not w.takes("Equal", *op.operands):
        return None
    return w.node("Not", w.node("Equal", *map(w.name, op.operands)))


@form("rem")
def rem(w: OnnxWriter, op: Op) -> str | None:
    return w.node("Mod", *map(w.name, op.operands), fmod=1) if w.takes("Mod", *op.operands) else None


@form("mod")
def mod(w: OnnxWriter, op: Op) -> str | None:
    if op.result.tensor.dtype.is_float or not w.takes("Mod", *op.operands):
        return None
    return w.node("Mod", *map(w.name, op.operands))


@rewritten("mod")
def mod_of_floats(op: Op) -> Value | None:
    """The remainder with the sign of a, moved by b where b has another sign."""
    a, b = op.operands
    if not a.tensor.dtype.is_float:
        return None
    found = ew.rem(a, b)
    other_sign = ew.xor(ew.lt(found, 0.0), ew.lt(b, 0.0))
    return ew.select(ew.and_(ew.ne(found, 0.0), other_sign), ew.add(found, b), found)


@form("trunc")
def trunc(w: OnnxWriter, op: Op) -> str | None:
    if not w.takes("Ceil", *op.operands):
        return None
    (x,) = map(w.name, op.operands)
    negative = w.node("Less", x, w.number(0, op.result.tensor.dtype))
    return w.node("Where", negative, w.node("Ceil", x), w.node("Floor", x))


@rewritten("expm1")
def expm1(op: Op) -> Value:
    """tanh(x / 2) (e^x + 1), which loses nothing near 0."""
    (x,) = op.operands
    found = ew.mul(ew.tanh(ew.mul(x, 0.5)), ew.add(ew.exp(x), 1.0))
    return ew.select(ew.lt(ew.abs_(x), 1.0), found, ew.sub(ew.exp(x), 1.0))


@rewritten("log1p")
def log1p(op: Op) -> Value:
    """log(u) x / (u - 1) for u = 1 + x as it is rounded, which takes the rounding off again (Kahan)."""
    (x,) = op.operands
    whole = ew.add(x, 1.0)
    rounded = ew.sub(whole, 1.0)
    is_plain = ew.or_(ew.eq(rounded, 0.0), ew.is_inf(whole))
    safe = ew.select(is_plain, full(value=1.0, dtype=x.tensor.dtype, shape=()), rounded)
    found = ew.mul(ew.log(whole), ew.div(x, safe))
    return ew.select(ew.is_inf(whole), whole, ew.select(ew.eq(rounded, 0.0), x, found))


@rewritten("atan2")
def atan2(op: Op) -> Value:
    """The angle of the point (b, a), from that of a / b."""
    a, b = op.operands
    pi = 3.141592653589793
    is_flat = ew.eq(b, 0.0)
    is_negative = ew.or_(ew.lt(a, 0.0), ew.lt(ew.div(_one(a), a), 0.0))  # of -0 as well
    sign = ew.select(is_negative, full(value=-1.0, dtype=a.tensor.dtype, shape=()), _one(a))
    angle = ew.atan(ew.div(a, ew.select(is_flat, _one(b), b)))
    behind = ew.select(ew.lt(b, 0.0), ew.add(angle, ew.mul(sign, pi)), angle)
    upright = ew.select(ew.eq(a, 0.0), a, ew.mul(sign, pi / 2))
    return ew.select(is_flat, upright, behind)


def _one(x: Value) -> Value:
    return full(value=1.0, dtype=x.tensor.dtype, shape=())


@rewritten("quotient")
def quotient(op: Op) -> Value:
    a, b, _ = op.operands
    return ew.div(a, b)


@form("shl", "shr")
def shift(w: OnnxWriter, op: Op) -> str | None:
    """BitShift, by which numbers of bits at or beyond the width are not allowed: they shift by one bit more."""
    a, b = op.operands
    dtype = op.result.tensor.dtype
    if dtype.kind != "uint" or dtype.bits < 8:
        return None
    count, width = w.name(b), w.number(dtype.bits - 1, dtype)
    direction = "LEFT" if op.name == "shl" else "RIGHT"
    known = w.known(b)
    if op.loc.op == "BitShift" or (known is not None and (known < dtype.bits).all()):
        return w.node("BitShift", w.name(a), count, direction=direction)
    most = w.node("Min", count, width)
    shifted = w.node("BitShift", w.name(a), most, direction=direction)
    return w.node("Where", w.node("Greater", count, width), w.number(0, dtype), shifted)


@rewritten("shl", "shr")
def signed_shift(op: Op) -> Value | None:
    """Integers with a sign, by their bits without one; to the right, of those below 0 the complement, the bits of which
    are all 0 in front, and back."""
    a, b = op.operands
    dtype = a.tensor.dtype
    if dtype.kind == "uint":
        return None
    bits = dtype.integer("uint")
    count = ew.cast(b, dtype=bits)
    if op.name == "shl":
        return ew.cast(ew.shl(ew.cast(a, dtype=bits), count), dtype=dtype)
    negative = ew.lt(a, 0)
    complement = ew.sub(ew.neg(a), 1)
    positive = ew.cast(ew.select(negative, complement, a), dtype=bits)
    found = ew.cast(ew.shr(positive, count), dtype=dtype)
    return ew.select(negative, ew.sub(ew.neg(found), 1), found)


@form("clip")
def clip(w: OnnxWriter, op: Op) -> str | Sequence[str] | None:
    _, low, high = op.operands
    if low.tensor.rank or high.tensor.rank:
        return None
    return w.bound(op, "Clip", {}, 12)


@form("silu")
def silu(w: OnnxWriter, op: Op) -> str | None:
    if not w.takes("Sigmoid", *op.operands):
        return None
    x = w.name(op.operands[0])
    return w.node("Mul", x, w.node("Sigmoid", x))


_LOGICAL = {"add": ew.or_, "max": ew.or_, "mul": ew.and_, "min": ew.and_}


@rewritten(*(name for name in SCALAR_OPS if name in OPERATORS and name not in ("shl", "shr")))
def in_wide_numbers(op: Op) -> Value | None:
    """An elementwise operator of a type that ONNX does not have it for in a wider one; of bools the logical one."""
    operator, first, result = OPERATORS[op.name], op.operands[-1].tensor.dtype, op.result.tensor.dtype
    if first.kind == "bool" and op.name in _LOGICAL:
        return _LOGICAL[op.name](*op.operands)
    wide = _wider(first)
    if wide is None:
        return None
    operands = [ew.cast(v, dtype=wide) if v.tensor.dtype == first else v for v in op.operands]
    found: Value = operator(*operands)
    return found if found.tensor.dtype == result else ew.cast(found, dtype=result)


def _wider(dtype: DType) -> DType | None:
    if dtype.kind == "bool":
        return dt.u8
    if dtype.is_float:
        return {16: dt.f32, 32: dt.f64}.get(dtype.bits, None if dtype.bits == 64 else dt.f32)
    return dt.i32 if dtype.bits < 32 else dt.i64 if dtype.bits == 32 else None
