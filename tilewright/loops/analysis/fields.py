"""Elements of less than a byte, several of which share a byte or a word (`pack_argument`)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import converted_from


@dataclass(frozen=True, slots=True, eq=False)
class TakenField:
    """An element of `dtype`: the low bits of what `load` reads (u8 or u32), after a shift to the right by `shift`."""

    load: Op
    shift: Value
    dtype: DType

    @property
    def is_half(self) -> bool:
        """Of a byte."""
        return self.load.result.scalar.dtype is dt.u8

    @property
    def bits(self) -> int:
        return field_bits(self.dtype)


def field_bits(dtype: DType) -> int:
    """Bits of an element that shares a byte or a word with others; 0 of those that do not. A flag is one."""
    if dtype is dt.bool_:
        return 1
    return dtype.bits if dtype.is_int and dtype.bits < 8 else 0


def field_of(value: Value) -> TakenField | None:
    """Where an element of less than a byte is taken from a byte or a word; None of other values."""
    moved = converted_from(value)
    if moved is None:
        return None
    dtype = value.scalar.dtype
    if dtype is dt.bool_ and moved.op is not None and moved.op.name == "and":
        moved = moved.op.operands[0]
    if not field_bits(dtype) or moved.op is None or moved.op.name != "shr":
        return None
    whole, shift = moved.op.operands
    is_shared = whole.scalar.dtype in (dt.u8, dt.u32) and whole.op is not None and whole.op.name == "load"
    return TakenField(whole.op, shift, dtype) if is_shared and whole.op is not None else None
