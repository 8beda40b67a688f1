"""Conversions between element types, the narrow floats that are computed in float32, and integers of 4 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from tilewright.codegen.cpu.kernel.byte_tables import gathered, level_of
from tilewright.codegen.cpu.kernel.functions import absolute, intrinsic
from tilewright.codegen.cpu.kernel.indices import Indices
from tilewright.codegen.cpu.kernel.lanes import literal, register_type, vector
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym
from tilewright.loops.analysis.fields import HALF_BITS, JoinedFields, TakenField, field_of, fields_operand
from tilewright.target.target import Target


def is_narrow(dtype: DType) -> bool:
    """Whether arithmetic on `dtype` is done in float32."""
    return dtype.is_float and dtype.bits < 32


def convert(x: Reg, to: DType) -> Reg:
    """`x` as `to`: floats to integers truncate and saturate, anything to bool is `!= 0`, integers wrap."""
    if x.dtype == to:
        return x
    if to.kind == "bool":
        wide = widen(x) if is_narrow(x.dtype) else x
        return wide.test("fcmp une" if wide.dtype.is_float else "icmp ne", 0)
    if is_narrow(x.dtype):
        return convert(widen(x), to)
    if is_narrow(to):
        return narrow(x if x.dtype.is_float else x.to(dt.f32), to)
    if to.is_float:
        return x.to(to)
    return _float_to_int(x, to) if x.dtype.is_float else _int_to_int(x, to)


def reinterpret(x: Reg, to: DType) -> Reg:
    """The bits of `x` as an element of `to`, which has equally many; a flag is a byte."""
    if x.dtype.kind == "bool":
        x = x.convert("zext", dt.u8)
    if to.kind == "bool":
        return x.text.named(x.name, dt.u8, x.lanes).test("icmp ne", 0)
    if register_type(x.dtype) != register_type(to):
        return x.convert("bitcast", to)
    return wrap(x, to)


def _float_to_int(x: Reg, to: DType) -> Reg:
    """Towards zero; what is beyond the range becomes the nearest integer, and nan becomes 0.

    Not LLVM's own saturating conversion, of which x86 makes code for each lane; short integers go by way of
    32 bits, which every target converts in vectors.
    """
    wide = to if to.bits >= 8 else dt.i8 if to.kind == "int" else dt.u8
    low, high = (-(1 << wide.bits - 1), 1 << wide.bits - 1) if to.kind == "int" else (0, 1 << wide.bits)
    if wide.bits <= 16:
        whole = clamped(x, low, high - 1, nan=low).convert("fptosi", dt.i32)
        if low:  # beside the limits, not before them; as a rule part of the conversion, which has a mask
            whole = x.is_nan().select(whole.like(0), whole)
        return wrap(whole.convert("trunc", wide), to)
    reaches, beyond, below = x >= low, x >= high, x < low
    inside = reaches.select(beyond.select(x.like(0), x), 0)
    via = dt.i32 if wide.bits < 32 else wide
    found = inside.convert("fptosi" if via.kind == "int" else "fptoui", via)
    if via is not wide:
        found = found.convert("trunc", wide)
    for flag, bound in ((beyond, high - 1), (below, low)):
        found = flag.select(found.like(bound), found)
    return wrap(found, to)


def clamped(x: Reg, low: int, high: int, nan: int = 0) -> Reg:
    """x limited to two numbers, nan as a third: a comparison and a choice are one instruction."""
    if nan != low:
        x = x.is_nan().select(x.like(nan), x)
    above = (x > low).select(x, x.like(low))
    return (above < high).select(above, x.like(high))


def _int_to_int(x: Reg, to: DType) -> Reg:
    bits = 1 if x.dtype.kind == "bool" else 8 * x.dtype.bytes
    if 8 * to.bytes == bits:
        return wrap(x, to)
    opcode = "trunc" if 8 * to.bytes < bits else "sext" if x.dtype.kind == "int" else "zext"
    return wrap(x.convert(opcode, to), to)


def wrap(x: Reg, to: DType) -> Reg:
    """A byte whose low bits hold an element of fewer, with its other bits as that has them; others as they are."""
    if to.bits >= 8:
        return x if x.dtype is to else x.text.named(x.name, to, x.lanes)
    found = x.text.named(x.name, to, x.lanes)
    if to.kind == "int":
        return (found << 8 - to.bits).arithmetic_shift(8 - to.bits)
    masked = x.text.named(x.name, dt.u8, x.lanes) & (1 << to.bits) - 1
    return x.text.named(masked.name, to, x.lanes)


# Narrow floats


def widen(x: Reg) -> Reg:
    """A narrow float as float32, exactly."""
    if x.dtype is dt.f16:
        return x.to(dt.f32)
    if x.dtype is dt.bf16:
        return (x.convert("zext", dt.u32) << 16).as_float
    return _decoded(x)


def narrow(x: Reg, to: DType) -> Reg:
    """float32 or float64 rounded to the nearest narrow float, ties to even."""
    if x.dtype is dt.f64:
        x = _round_to_odd(x)
    if to is dt.f16:
        return x.to(to)
    if to is dt.f8e8m0:
        return _to_e8m0(x)
    return _to_bf16(x) if to is dt.bf16 else _encoded(x, _FORMATS[to.name])


def _pattern(x: Reg) -> Reg:
    """The bits of a float32."""
    return x.convert("bitcast", dt.u32)


def _round_to_odd(x: Reg) -> Reg:
    """float64 as float32 such that rounding again to fewer bits gives what rounding once would."""
    near = x.to(dt.f32)
    back = near.to(dt.f64)
    inexact = x.differs(back)
    size = absolute(x)
    below = absolute(back) < size
    pattern = _pattern(near)
    even = (pattern & 1).equals(0)
    moved = pattern + below.select(pattern.like(1), 0xFFFFFFFF)
    return (inexact & even).select(moved, pattern).as_float


def _to_bf16(x: Reg) -> Reg:
    if x.text.rounds_to_bf16:
        short = x.text.emit(f"fptrunc {x.typed} to {vector('bfloat', x.lanes)}")
        bits = vector(register_type(dt.bf16), x.lanes)
        return x.text.reg(dt.bf16, x.lanes, f"bitcast {vector('bfloat', x.lanes)} {short} to {bits}")
    pattern = _pattern(x)
    last = (pattern >> 16) & 1
    rounded = (pattern + 0x7FFF + last) >> 16
    quiet = (pattern >> 16) | 0x40
    return x.is_nan().select(quiet, rounded).convert("trunc", dt.bf16)


@dataclass(frozen=True, slots=True)
class _SmallFloat:
    """A float of up to 8 bits: `mantissa` bits, exponent `bias`, the largest finite code, and the codes of what is
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

    @property
    def has_own_nan(self) -> bool:
        """Whether a code is NaN that float16, with as many exponents, would take for a number."""
        return self.overflow is None

    @property
    def fits_half(self) -> bool:
        """Whether exponent and mantissa, moved to where float16 has its own, are the number times a power of two."""
        exponent = self.dtype.bits - 1 - self.mantissa
        return exponent < 5 or (exponent == 5 and not self.has_own_nan)


_FORMATS: Mapping[str, _SmallFloat] = MappingProxyType(
    {
        "f8e4m3": _SmallFloat(dt.f8e4m3, 3, 7, 0x7E, None, 0x7F),
        "f8e4m3fnuz": _SmallFloat(dt.f8e4m3fnuz, 3, 8, 0x7F, None, 0x80, signed_zero=False),
        "f8e5m2": _SmallFloat(dt.f8e5m2, 2, 15, 0x7B, 0x7C, 0x7E),
        "f8e5m2fnuz": _SmallFloat(dt.f8e5m2fnuz, 2, 16, 0x7F, None, 0x80, signed_zero=False),
        "f6e2m3": _SmallFloat(dt.f6e2m3, 3, 1, 0x1F, 0x1F, 0x20),
        "f6e3m2": _SmallFloat(dt.f6e3m2, 2, 3, 0x1F, 0x1F, 0x20),
        "f4e2m1": _SmallFloat(dt.f4e2m1, 1, 1, 0x7, 0x7, 0x8),
    }
)


def _to_e8m0(x: Reg) -> Reg:
    """float32 rounded to the nearest power of two, of two the greater; NaN where that has no code, as for zero."""
    pattern = _pattern(x)
    positive = (pattern - 1) < 0x7F7FFFFF
    # Denormals are brought into the form of others: exponent 0 stands for 2^-127, followed by the mantissa.
    least = 0x00400000
    lifted = (pattern > least).select(pattern - least, 0) << 1
    scaled = (pattern < 0x00800000).select(lifted, pattern)
    return positive.select((scaled + 0x400000) >> 23, 0xFF).convert("trunc", dt.f8e8m0)


def _decoded(x: Reg) -> Reg:
    """A float of up to 8 bits as float32."""
    form = _FORMATS.get(x.dtype.name)
    return _from_table(x) if form is None or not form.fits_half or x.lanes == 1 else _through_half(x, form)


def _through_half(x: Reg, form: _SmallFloat) -> Reg:
    """By way of float16, whose exponent has more bits: what differs is a power of two. Conversions from float16 keep
    denormal numbers, whatever the mode of denormals (Intel SDM, VCVTPH2PS; Arm ARM, FPCR.FZ)."""
    unused, shift = 16 - form.dtype.bits, 10 - form.mantissa
    byte = x.text.named(x.name, dt.u8, x.lanes).convert("zext", dt.i16)
    signed = (byte << unused).arithmetic_shift(unused) << shift
    exponent_and_mantissa = (1 << form.dtype.bits - 1 + shift) - 1
    half = signed & (0x8000 | exponent_and_mantissa)
    if form.has_own_nan:
        code, ignored = (form.nan << shift, 0x7FFF) if form.signed_zero else (0x8000, 0xFFFF)
        half = (half & ignored).equals(code).select(half.like(0x7E00), half)
    found = half.convert("bitcast", dt.f16).to(dt.f32)
    return found if form.bias == 15 else found * float(2 ** (15 - form.bias))


def _from_table(x: Reg) -> Reg:
    """A float of up to 8 bits as float32, from a table of all bytes."""
    values = np.arange(256, dtype=np.uint8).view(x.dtype.storage).astype(np.float32)
    return gathered(f"tw_decode_{x.dtype.name}", [float(v) for v in values], dt.f32, x)


def _encoded(x: Reg, to: _SmallFloat) -> Reg:
    """float32 rounded to a float of up to 8 bits: normal numbers as integers, those below by adding a magic number."""
    pattern = _pattern(x)
    sign = (pattern >> (32 - to.dtype.bits)) & (1 << to.dtype.bits - 1)
    magnitude = pattern & 0x7FFFFFFF
    drop = 23 - to.mantissa
    last = (magnitude >> drop) & 1
    rounded = (magnitude + ((1 << (drop - 1)) - 1) + last) >> drop
    normal = rounded - ((127 - to.bias) << to.mantissa)
    # Adding 2^(23 + e) to a float below it rounds to multiples of 2^e, here the smallest subnormal, and
    # leaves the multiple in the low bits.
    magic = (127 + 23 + 1 - to.bias - to.mantissa) << 23
    lifted = magnitude.as_float + magnitude.like(magic).as_float
    subnormal = _pattern(lifted) - magic
    code = (magnitude < ((128 - to.bias) << 23)).select(subnormal, normal)
    code = (code > to.largest).select(code.like(to.nan if to.overflow is None else to.overflow), code)
    code = (magnitude > 0x7F800000).select(code.like(to.nan), code)
    signed = code | sign
    if not to.signed_zero:
        signed = code.equals(0).select(code.like(0), signed)
    return signed.convert("trunc", to.dtype)


# Elements of less than a byte


def packed_as(op: Op, values: Mapping[Value, Reg], indices: Indices, target: Target) -> Reg | None:
    """What an op converts, where that is a half of a byte or fields of words, and levels; None for other ops, and where
    the machine does that best by the letter."""
    dtype = op.result.scalar.dtype
    half = _half_operand(op, values) if dtype is dt.f32 else None
    found = None if half is None else _half_as_float(half, indices, target)
    if found is None and (levels := op.attrs.get("levels")) is not None:
        return level_of(target.level_table, values[op.operands[0]], levels, dtype)
    if half is not None:
        return found
    fields = fields_operand(op) if dtype is dt.f32 or dtype.is_int else None
    return None if fields is None else _converted_fields(fields, dtype, values, indices, target)


# Halves of bytes


@dataclass(frozen=True, slots=True)
class Half:
    """An element of `dtype` (i4, u4): the low bits of `byte` after a shift to the right by `shift` (0 or 4). `levels`
    are the numbers that it stands for, if it is not itself one."""

    byte: Reg
    shift: int
    dtype: DType
    levels: Sequence[float] = ()


def _half_operand(op: Op, values: Mapping[Value, Reg]) -> Half | None:
    """What becomes float32, where that is a half of a byte, or its level; None for other ops."""
    source, levels = op.operands[0], op.attrs.get("levels", ())
    if not levels and source.op is not None and (levels := source.op.attrs.get("levels", ())):
        source = source.op.operands[0]
    taken = field_of(source)
    if taken is None or not taken.is_half:
        return None
    amount = values[taken.shift]
    shift = int(amount.name) if amount.is_literal and amount.lanes == 1 else -1
    return Half(values[taken.load.result], shift, taken.dtype, levels) if shift in (0, HALF_BITS) else None


def _half_as_float(half: Half, indices: Indices, target: Target) -> Reg | None:
    """The elements as float32; None where the machine does that best by the letter.

    By the letter a byte is shifted and its upper bits are made those of an element, and x86 has no shifts of bytes. So
    the byte becomes 32 bits first, which a load does, once for both of its halves: of two extensions LLVM would make
    shifts of bytes again.
    """
    if target.arch != "x86_64":
        return None
    x, table = half.byte, target.float_table
    has_table = table is not None and x.lanes == table.lanes
    if half.levels and not has_table:
        return None
    opcode = "sext" if half.dtype is dt.i4 and not has_table else "zext"
    wide = indices.once((opcode, x.name), lambda: x.convert(opcode, dt.i32))
    if table is not None and has_table:
        if half.shift and not half.levels:
            return _in_mantissa(wide, half.dtype)
        numbers = half.levels or (range(16) if half.dtype is dt.u4 else (*range(8), *range(-8, 0)))
        return _looked_up(table.call, wide >> half.shift if half.shift else wide, numbers)
    if half.dtype is dt.u4:
        return (wide >> HALF_BITS if half.shift else wide & 15).to(dt.f32)
    if half.shift:
        return wide.arithmetic_shift(HALF_BITS).to(dt.f32)
    return (wide << 32 - HALF_BITS).arithmetic_shift(32 - HALF_BITS).to(dt.f32)


def _looked_up(call: str, at: Reg, numbers: Sequence[float]) -> Reg:
    """Numbers by the low bits of `at`, of which the instruction asks for no others."""
    items = ", ".join(f"float {literal(dt.f32, float(v))}" for v in numbers)
    table = at.text.named(f"<{items}>", dt.f32, at.lanes)
    return at.text.call(dt.f32, at.lanes, call, table, at)


def _in_mantissa(byte: Reg, dtype: DType) -> Reg:
    """Upper halves, which become bits of a float of which they are the units, exactly: one instruction masks them and
    puts in all other bits. Unlike a shift, it and the subtraction of what is too much use other pipes than
    multiply-adds and tables do."""
    start = 1 << 23 - HALF_BITS
    bits = int(np.float32(start).view(np.int32))
    if dtype is dt.u4:
        return ((byte & 0xF0) | bits).as_float - float(start)
    return ((byte & 0xF0) ^ (bits | 0x80)).as_float - float(start + 8)


# JoinedFields of words


def _converted_fields(
    fields: JoinedFields, dtype: DType, values: Mapping[Value, Reg], indices: Indices, target: Target
) -> Reg | None:
    """The elements in another dtype; None where it is not known which byte of the words they are in.

    The fields of all four bytes are brought together by a few instructions on words, which neighbours share; each is
    taken from there as a float by two: one puts it in the mantissa of a float of which it is the units, and one
    subtracts what is too much.
    """
    places = [_place_of(part, indices) for part in fields.parts]
    if any(place is None for place in places):
        return None
    found = [place for place in places if place is not None]
    byte = found[0][0]
    if any(other != byte for other, _ in found) or (dtype.is_int and dtype.bits <= fields.bits):
        return None
    words = [values[part.load.result] for part in fields.parts]
    key = ("fields", *(word.name for word in words), *(at for _, at in found))
    together = indices.once(key, lambda: _brought_together(fields, words, [at for _, at in found], indices, target))
    at, bits = 8 * byte, fields.bits
    if dtype.is_float and at + bits <= _MANTISSA_BITS:
        return _taken_as_float(together, at, bits, signed=fields.is_signed)
    top = together << 32 - at - bits if at + bits < 32 else together
    low = top.arithmetic_shift(32 - bits) if fields.is_signed else top >> 32 - bits
    return convert(low.text.named(low.name, dt.i32, low.lanes), dtype)


def _place_of(field: TakenField, indices: Indices) -> tuple[int, Sym] | None:
    """Which byte of its word a field is in, and its lowest bit there."""
    if field.shift.op is None or field.shift.op.name != "index":
        return None
    known, rest = indices.known_part(field.shift.op.attrs["expr"])
    low, high = rest.interval
    at = known % 8 + rest
    if indices.lanes_of(rest) > 1 or low < 0 or known % 8 + high + field.bits > 8 or not 0 <= known < 32:
        return None
    return known // 8, at


def _brought_together(
    fields: JoinedFields, words: Sequence[Reg], places: Sequence[Sym], indices: Indices, target: Target
) -> Reg:
    """Words whose bytes each have the fields of one element at their low end, with other bits above."""
    low = _moved_down(words[0], places[0], 0, indices, target)
    if fields.high is None:
        return low
    mask = 0x01010101 * ((1 << fields.low.bits) - 1)
    high = _moved_down(words[1], places[1], fields.low.bits, indices, target)
    return (low & mask) | (high & (0xFFFFFFFF ^ mask))


def _moved_down(word: Reg, at: Sym, to: int, indices: Indices, target: Target) -> Reg:
    """A word whose bits from `at` of each byte on are those from `to` on; what comes from other bytes is elsewhere."""
    number = indices.number(at)
    if isinstance(number, int):
        return word >> number - to if number > to else word << to - number if number < to else word
    by = indices.once(("shift", at, word.lanes), lambda: number.to(dt.u32).splat(word.lanes))
    if not to:
        return word >> by
    if not target.has_mask_registers:  # no instruction rotates words there
        return (word >> by) << to
    return intrinsic("fshr", word, word, by - to)


def _taken_as_float(word: Reg, at: int, bits: int, *, signed: bool) -> Reg:
    """The element in so many bits of words from `at` on, which a mantissa has."""
    start = 1 << _MANTISSA_BITS - at
    pattern = int(np.float32(start).view(np.int32))
    taken = word & ((1 << bits) - 1 << at)
    if not signed:
        return (taken | pattern).as_float - float(start)
    sign = 1 << bits - 1
    return (taken ^ (pattern | sign << at)).as_float - float(start + sign)


_MANTISSA_BITS = 23
