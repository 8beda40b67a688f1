"""Elements of 4 bits, two of which lie in a byte (`pack_argument`)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.scalar import converted_from

HALF_BITS = 4


@dataclass(frozen=True, slots=True, eq=False)
class TakenHalf:
    """The low bits of the byte that `load` reads, after a shift to the right by `shift`."""

    load: Op
    shift: Value


def half_of(value: Value) -> TakenHalf | None:
    """Where an element of 4 bits is taken from a byte; None of other values."""
    moved = converted_from(value)
    if moved is None or value.scalar.dtype.bits != HALF_BITS or moved.op is None or moved.op.name != "shr":
        return None
    byte, shift = moved.op.operands
    is_byte = byte.scalar.dtype is dt.u8 and byte.op is not None and byte.op.name == "load"
    return TakenHalf(byte.op, shift) if is_byte and byte.op is not None else None
