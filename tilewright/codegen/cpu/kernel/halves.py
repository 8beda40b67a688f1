"""Floats of integers of 4 bits that are halves of bytes.

Taken by the letter, a byte is shifted and its upper bits are made those of an element, and x86 has no shifts of bytes.
So the byte becomes 32 bits first, which a load does, once for both of its halves: of two extensions LLVM would make
shifts of bytes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.codegen.cpu.kernel.indices import Indices
from tilewright.codegen.cpu.kernel.lanes import literal
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.target.target import Target

BITS = 4


@dataclass(frozen=True, slots=True)
class Half:
    """An element of `dtype` (i4, u4): the low bits of `byte` after a shift to the right by `shift` (0 or 4)."""

    byte: Reg
    shift: int
    dtype: DType


def half_of(op: Op, values: Mapping[Value, Reg]) -> Half | None:
    """What a cast to float32 converts, where that is a half of a byte; None for other casts."""
    source = op.operands[0].op
    if op.result.scalar.dtype is not dt.f32 or source is None or source.name != "cast":
        return None
    (moved,), dtype = source.operands, source.result.scalar.dtype
    if not dtype.is_int or dtype.bits != BITS or moved.scalar.dtype is not dt.u8:
        return None
    if moved.op is None or moved.op.name != "shr":
        return None
    byte, amount = (values[v] for v in moved.op.operands)
    shift = int(amount.name) if amount.is_literal and amount.lanes == 1 else -1
    return Half(byte, shift, dtype) if shift in (0, BITS) else None


def as_float(half: Half, indices: Indices, target: Target) -> Reg | None:
    """The elements as float32; None where the machine does that best by the letter."""
    if target.arch != "x86_64":
        return None
    x, table = half.byte, target.float_table
    has_table = table is not None and x.lanes == table.lanes
    opcode = "sext" if half.dtype is dt.i4 and not has_table else "zext"
    wide = indices.once((opcode, x.name), lambda: x.convert(opcode, dt.i32))
    if table is not None and has_table:
        return _in_mantissa(wide, half.dtype) if half.shift else _looked_up(table.call, wide, half.dtype)
    if half.dtype is dt.u4:
        return (wide >> BITS if half.shift else wide & 15).to(dt.f32)
    if half.shift:
        return wide.arithmetic_shift(BITS).to(dt.f32)
    return (wide << 32 - BITS).arithmetic_shift(32 - BITS).to(dt.f32)


def _looked_up(call: str, at: Reg, dtype: DType) -> Reg:
    """Numbers by the low bits of `at`, of which the instruction asks for no others."""
    values = [float(v) for v in (range(16) if dtype is dt.u4 else (*range(8), *range(-8, 0)))]
    items = ", ".join(f"float {literal(dt.f32, v)}" for v in values)
    table = at.text.named(f"<{items}>", dt.f32, at.lanes)
    return at.text.call(dt.f32, at.lanes, call, table, at)


def _in_mantissa(byte: Reg, dtype: DType) -> Reg:
    """Upper halves, which become bits of a float of which they are the units, exactly: one instruction masks them and
    puts in all other bits. Unlike a shift, it and the subtraction of what is too much use other pipes than
    multiply-adds and tables do."""
    start = 1 << 23 - BITS
    bits = int(np.float32(start).view(np.int32))
    if dtype is dt.u4:
        return ((byte & 0xF0) | bits).as_float - float(start)
    return ((byte & 0xF0) ^ (bits | 0x80)).as_float - float(start + 8)
