"""Elements of less than a byte, several of which share a byte or a word (`pack_argument`)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import converted_from, scalar_operation


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


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """A float whose lower bits are a field of a word, and whose upper ones, if there are such, are one of another:
    `high * 2**bits of low + low`."""

    low: TakenField
    high: TakenField | None = None

    @property
    def parts(self) -> tuple[TakenField, ...]:
        return (self.low,) if self.high is None else (self.low, self.high)

    @property
    def bits(self) -> int:
        return sum(part.bits for part in self.parts)

    @property
    def is_signed(self) -> bool:
        return self.parts[-1].dtype.kind == "int"


def fields_operand(op: Op) -> Fields | None:
    """The fields of words that an op makes a float32 of, by a cast or by a sum of two; None for others."""
    alone = _field_in_words(op.result)
    if alone is not None:
        return Fields(alone)
    operation = scalar_operation(op)
    if operation.linear != "together" or not operation.commutative:
        return None
    for upper, lower in (op.operands, op.operands[::-1]):
        low, high = _field_in_words(lower), _multiplied(upper)
        if low is not None and high is not None and high[1] == 1 << low.bits and low.dtype.kind != "int":
            return Fields(low, high[0])
    return None


def _field_in_words(value: Value) -> TakenField | None:
    source = converted_from(value)
    taken = None if source is None else field_of(source)
    return None if taken is None or taken.is_half or value.scalar.dtype is not dt.f32 else taken


def _multiplied(value: Value) -> tuple[TakenField, float] | None:
    """A field of words times a number."""
    if value.op is None or scalar_operation(value.op).linear != "each":
        return None
    for x, by in (value.op.operands, value.op.operands[::-1]):
        field = _field_in_words(x)
        if field is not None and by.op is not None and by.op.name == "const":
            return field, by.op.attrs["value"]
    return None
