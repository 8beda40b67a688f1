"""Conversions between element types, and the narrow floats that are computed in float32."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tilewright.codegen.cpu.kernel.lanes import Reg, literal, register_type, vector
from tilewright.codegen.cpu.kernel.text import Text
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType


def is_narrow(dtype: DType) -> bool:
    """Whether arithmetic on `dtype` is done in float32."""
    return dtype.is_float and dtype.bits < 32


def convert(text: Text, x: Reg, to: DType) -> Reg:
    """`x` as `to`: floats to integers truncate and saturate, anything to bool is `!= 0`, integers wrap."""
    if x.dtype == to:
        return x
    if to.kind == "bool":
        return _is_nonzero(text, x)
    if is_narrow(x.dtype):
        return convert(text, widen(text, x), to)
    if is_narrow(to):
        return narrow(text, x if x.dtype.is_float else _to_float(text, x, dt.f32), to)
    if x.dtype.is_float:
        return _float_to_float(text, x, to) if to.is_float else _to_int(text, x, to)
    return _to_float(text, x, to) if to.is_float else _int_to_int(text, x, to)


def convert_text(text: Text, opcode: str, x: Reg, to: DType) -> Reg:
    """One LLVM conversion instruction."""
    return text.reg(to, x.lanes, f"{opcode} {x.typed} to {vector(register_type(to), x.lanes)}")


def _is_nonzero(text: Text, x: Reg) -> Reg:
    if is_narrow(x.dtype):
        x = widen(text, x)
    zero = text.splat(Reg(literal(x.dtype, 0), x.dtype), x.lanes)
    compare = "fcmp une" if x.dtype.is_float else "icmp ne"
    return text.reg(dt.bool_, x.lanes, f"{compare} {x.typed}, {zero.name}")


def _float_to_float(text: Text, x: Reg, to: DType) -> Reg:
    return convert_text(text, "fpext" if to.bits > x.dtype.bits else "fptrunc", x, to)


def _to_float(text: Text, x: Reg, to: DType) -> Reg:
    return convert_text(text, "sitofp" if x.dtype.kind == "int" else "uitofp", x, to)


def _to_int(text: Text, x: Reg, to: DType) -> Reg:
    """Towards zero; what is beyond the range becomes the nearest integer, and nan becomes 0.

    Not LLVM's own saturating conversion, of which x86 makes code for each lane; short integers go by way of
    32 bits, which every target converts in vectors.
    """
    wide = dt.i8 if to is dt.i4 else dt.u8 if to is dt.u4 else to
    low, high = (-(1 << wide.bits - 1), 1 << wide.bits - 1) if to.kind == "int" else (0, 1 << wide.bits)
    least, zero, limit = (text.splat(Reg(literal(x.dtype, v), x.dtype), x.lanes) for v in (low, 0, high))
    reaches = text.reg(dt.bool_, x.lanes, f"fcmp oge {x.typed}, {least.name}")
    beyond = text.reg(dt.bool_, x.lanes, f"fcmp oge {x.typed}, {limit.name}")
    below = text.reg(dt.bool_, x.lanes, f"fcmp olt {x.typed}, {least.name}")
    inside = text.reg(x.dtype, x.lanes, f"select {beyond.typed}, {zero.typed}, {x.typed}")
    inside = text.reg(x.dtype, x.lanes, f"select {reaches.typed}, {inside.typed}, {zero.typed}")
    via = dt.i32 if wide.bits < 32 else wide
    found = convert_text(text, "fptosi" if via.kind == "int" else "fptoui", inside, via)
    if via is not wide:
        found = convert_text(text, "trunc", found, wide)
    for flag, bound in ((beyond, high - 1), (below, low)):
        edge = text.splat(Reg(literal(wide, bound), wide), x.lanes)
        found = text.reg(wide, x.lanes, f"select {flag.typed}, {edge.typed}, {found.typed}")
    return wrap(text, found, to)


def _int_to_int(text: Text, x: Reg, to: DType) -> Reg:
    bits = 1 if x.dtype.kind == "bool" else 8 * x.dtype.bytes
    if 8 * to.bytes == bits:
        return wrap(text, Reg(x.name, to, x.lanes), to)
    if 8 * to.bytes < bits:
        return wrap(text, convert_text(text, "trunc", x, to), to)
    return wrap(text, convert_text(text, "sext" if x.dtype.kind == "int" else "zext", x, to), to)


def wrap(text: Text, x: Reg, to: DType) -> Reg:
    """A byte that holds a 4-bit integer, brought back into range; others as they are."""
    if to is dt.i4:
        four = text.splat(Reg("4", dt.i8), x.lanes).name
        up = text.emit(f"shl {x.typed}, {four}")
        return text.reg(to, x.lanes, f"ashr {vector('i8', x.lanes)} {up}, {four}")
    if to is dt.u4:
        return text.reg(to, x.lanes, f"and {x.typed}, {text.splat(Reg('15', dt.i8), x.lanes).name}")
    return Reg(x.name, to, x.lanes)


def _suffix(dtype: DType, lanes: int) -> str:
    name = dtype.name if dtype.is_float else f"i{8 * dtype.bytes}"
    return name if lanes == 1 else f"v{lanes}{name}"


# Narrow floats


def widen(text: Text, x: Reg) -> Reg:
    """A narrow float as float32, exactly."""
    if x.dtype is dt.f16:
        return convert_text(text, "fpext", x, dt.f32)
    if x.dtype is dt.bf16:
        bits = convert_text(text, "zext", x, dt.u32)
        shifted = text.reg(
            dt.u32, x.lanes, f"shl {bits.typed}, {text.splat(Reg('16', dt.u32), x.lanes).name}"
        )
        return convert_text(text, "bitcast", shifted, dt.f32)
    return _decoded(text, x)


def narrow(text: Text, x: Reg, to: DType) -> Reg:
    """float32 or float64 rounded to the nearest narrow float, ties to even."""
    if x.dtype is dt.f64:
        x = _round_to_odd(text, x)
    if to is dt.f16:
        return convert_text(text, "fptrunc", x, to)
    return _to_bf16(text, x) if to is dt.bf16 else _encoded(text, x, _FORMATS[to.name])


class _Bits:
    """Arithmetic on 32-bit patterns: spells instructions on u32 lanes."""

    def __init__(self, text: Text, lanes: int) -> None:
        self.text = text
        self.lanes = lanes

    def const(self, value: int) -> Reg:
        return self.text.splat(Reg(str(value), dt.u32), self.lanes)

    def op(self, opcode: str, a: Reg, b: Reg | int) -> Reg:
        right = self.const(b) if isinstance(b, int) else b
        return self.text.reg(dt.u32, self.lanes, f"{opcode} {a.typed}, {right.name}")

    def test(self, relation: str, a: Reg, b: Reg | int) -> Reg:
        right = self.const(b) if isinstance(b, int) else b
        return self.text.reg(dt.bool_, self.lanes, f"icmp {relation} {a.typed}, {right.name}")

    def choose(self, flag: Reg, a: Reg | int, b: Reg | int) -> Reg:
        left, right = (self.const(v) if isinstance(v, int) else v for v in (a, b))
        return self.text.reg(dt.u32, self.lanes, f"select {flag.typed}, {left.typed}, {right.typed}")

    def of_float(self, x: Reg) -> Reg:
        return convert_text(self.text, "bitcast", x, dt.u32)

    def to_float(self, x: Reg) -> Reg:
        return convert_text(self.text, "bitcast", x, dt.f32)


def _round_to_odd(text: Text, x: Reg) -> Reg:
    """float64 as float32 such that rounding again to fewer bits gives what rounding once would."""
    bits = _Bits(text, x.lanes)
    near = convert_text(text, "fptrunc", x, dt.f32)
    back = convert_text(text, "fpext", near, dt.f64)
    inexact = text.reg(dt.bool_, x.lanes, f"fcmp one {x.typed}, {back.name}")
    size = text.call(dt.f64, x.lanes, f"llvm.fabs.{_suffix(dt.f64, x.lanes)}", x)
    reached = text.call(dt.f64, x.lanes, f"llvm.fabs.{_suffix(dt.f64, x.lanes)}", back)
    below = text.reg(dt.bool_, x.lanes, f"fcmp olt {reached.typed}, {size.name}")
    pattern = bits.of_float(near)
    even = bits.test("eq", bits.op("and", pattern, 1), 0)
    step = bits.choose(below, 1, 0xFFFFFFFF)
    moved = bits.op("add", pattern, step)
    takes = text.reg(dt.bool_, x.lanes, f"and {inexact.typed}, {even.name}")
    return bits.to_float(bits.choose(takes, moved, pattern))


def _to_bf16(text: Text, x: Reg) -> Reg:
    bits = _Bits(text, x.lanes)
    pattern = bits.of_float(x)
    last = bits.op("and", bits.op("lshr", pattern, 16), 1)
    rounded = bits.op("lshr", bits.op("add", bits.op("add", pattern, 0x7FFF), last), 16)
    quiet = bits.op("or", bits.op("lshr", pattern, 16), 0x40)
    is_nan = text.reg(dt.bool_, x.lanes, f"fcmp uno {x.typed}, {x.name}")
    return convert_text(text, "trunc", bits.choose(is_nan, quiet, rounded), dt.bf16)


@dataclass(frozen=True, slots=True)
class _Float8:
    """An 8-bit float: `mantissa` bits, exponent `bias`, the largest finite code, and the codes of what is
    beyond.

    `overflow` is the code (without sign) of too large magnitudes; None: the code `nan`. `signed_zero` is
    False where minus zero does not exist, because its code is the only nan.
    """

    dtype: DType
    mantissa: int
    bias: int
    largest: int
    overflow: int | None
    nan: int
    signed_zero: bool = True


_FORMATS: Mapping[str, _Float8] = MappingProxyType(
    {
        "f8e4m3": _Float8(dt.f8e4m3, 3, 7, 0x7E, None, 0x7F),
        "f8e4m3fnuz": _Float8(dt.f8e4m3fnuz, 3, 8, 0x7F, None, 0x80, signed_zero=False),
        "f8e5m2": _Float8(dt.f8e5m2, 2, 15, 0x7B, 0x7C, 0x7E),
        "f8e5m2fnuz": _Float8(dt.f8e5m2fnuz, 2, 16, 0x7F, None, 0x80, signed_zero=False),
    }
)


def _decoded(text: Text, x: Reg) -> Reg:
    """An 8-bit float as float32, from a table of all 256."""
    values = np.arange(256, dtype=np.uint8).view(x.dtype.storage).astype(np.float32)
    name = f"tw_decode_{x.dtype.name}"
    items = ", ".join(f"float {_literal32(float(v))}" for v in values)
    text.globals[name] = f"@{name} = internal unnamed_addr constant [256 x float] [{items}], align 64"
    index = text.emit(f"zext {x.typed} to {vector('i64', x.lanes)}")
    table = text.emit(f"getelementptr float, ptr @{name}, {vector('i64', x.lanes)} {index}")
    if x.lanes == 1:
        return text.reg(dt.f32, 1, f"load float, ptr {table}, align 4")
    n = x.lanes
    call = f"call <{n} x float> @llvm.masked.gather.v{n}f32.v{n}p0(<{n} x ptr> align 4 {table}, "
    return text.reg(dt.f32, n, f"{call}<{n} x i1> splat (i1 true), <{n} x float> poison)")


def _literal32(value: float) -> str:
    if math.isnan(value):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def _encoded(text: Text, x: Reg, to: _Float8) -> Reg:
    """float32 rounded to an 8-bit float: normal numbers by integer rounding, those below by adding a magic
    number."""
    bits = _Bits(text, x.lanes)
    pattern = bits.of_float(x)
    sign = bits.op("and", bits.op("lshr", pattern, 24), 0x80)
    magnitude = bits.op("and", pattern, 0x7FFFFFFF)
    drop = 23 - to.mantissa
    last = bits.op("and", bits.op("lshr", magnitude, drop), 1)
    rounded = bits.op("lshr", bits.op("add", bits.op("add", magnitude, (1 << (drop - 1)) - 1), last), drop)
    normal = bits.op("sub", rounded, (127 - to.bias) << to.mantissa)
    # Adding 2^(23 + e) to a float below it rounds to multiples of 2^e, here the smallest subnormal, and
    # leaves the multiple in the low bits.
    magic = (127 + 23 + 1 - to.bias - to.mantissa) << 23
    lifted = text.reg(
        dt.f32, x.lanes, f"fadd {bits.to_float(magnitude).typed}, {bits.to_float(bits.const(magic)).name}"
    )
    subnormal = bits.op("sub", bits.of_float(lifted), magic)
    is_small = bits.test("ult", magnitude, (128 - to.bias) << 23)
    code = bits.choose(is_small, subnormal, normal)
    beyond = to.nan if to.overflow is None else to.overflow
    code = bits.choose(bits.test("ugt", code, to.largest), beyond, code)
    code = bits.choose(bits.test("ugt", magnitude, 0x7F800000), to.nan, code)
    signed = bits.op("or", code, sign)
    if not to.signed_zero:
        signed = bits.choose(bits.test("eq", code, 0), 0, signed)
    return convert_text(text, "trunc", signed, to.dtype)
