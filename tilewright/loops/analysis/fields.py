"""Elements of less than a byte, several of which share a byte or a word (`pack_argument`)."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import converted_from, scalar_operation
from tilewright.ir.types import ScalarType

HALF_BITS = 4
"""Of the elements two of which are a byte."""


@dataclass(frozen=True, slots=True, eq=False)
class TakenField:
    """An element of `dtype`: the low bits of what `load` reads (u8 or u32), after a shift to the right by `shift`."""

    load: Op
    shift: Value
    dtype: DType

    @property
    def of_byte(self) -> bool:
        """Whether elements share bytes, and not words."""
        return self.load.result.scalar.dtype is dt.u8

    @property
    def is_half(self) -> bool:
        """Of a byte."""
        return self.of_byte and self.bits == HALF_BITS

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
    moved, dtype = converted_from(value), value.type
    if moved is None or not isinstance(dtype, ScalarType) or not field_bits(dtype.dtype):
        return None
    shift = _operands(moved, ("and", "shr") if dtype.dtype is dt.bool_ else ("shr",))
    whole = shift[0].op if shift else None
    if whole is None or whole.name != "load" or whole.result.scalar.dtype not in (dt.u8, dt.u32):
        return None
    return TakenField(whole, shift[1], dtype.dtype)


def _operands(value: Value, names: tuple[str, ...]) -> list[Value]:
    """The operands of the last of ops of these names, of which each computes the first operand of the one before it,
    and the first one the value; none where there are others."""
    found = [value]
    for name in names:
        if found[0].op is None or found[0].op.name != name:
            return []
        found = list(found[0].op.operands)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class JoinedFields:
    """A number whose lower bits are a field of a word, and whose upper ones, if there are such, are one of another:
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


def fields_operand(op: Op) -> JoinedFields | None:
    """The fields of words that an op converts to another dtype: one, or the sum of two as a byte; None for others."""
    source = converted_from(op.result)
    if source is None:
        return None
    taken = field_of(source)
    if taken is not None:
        return None if taken.of_byte else JoinedFields(taken)
    operation = scalar_operation(source.op)
    if source.op is None or operation.linear != "together" or not operation.commutative:
        return None
    for upper, lower in (source.op.operands, source.op.operands[::-1]):
        low, high = _field_as(lower, source), _multiplied(upper)
        if low is None or high is None or high[1] != 1 << low.bits or low.dtype.kind == "int":
            continue
        found = JoinedFields(low, high[0])
        if found.bits + (not found.is_signed) <= source.scalar.dtype.bits:
            return found
    return None


def _field_as(value: Value, whole: Value) -> TakenField | None:
    """The field of a word that a value is, in the dtype of another."""
    source = converted_from(value)
    taken = None if source is None else field_of(source)
    is_whole = taken is not None and not taken.of_byte and value.scalar.dtype is whole.scalar.dtype is dt.i8
    return taken if is_whole else None


def _multiplied(value: Value) -> tuple[TakenField, float] | None:
    """A field of words times a number."""
    if value.op is None or scalar_operation(value.op).linear != "each":
        return None
    for x, by in (value.op.operands, value.op.operands[::-1]):
        field = _field_as(x, value)
        if field is not None and by.op is not None and by.op.name == "const":
            return field, by.op.attrs["value"]
    return None


def sum_of_fields(value: Value) -> tuple[Value, int, Value] | None:
    """What a byte is joined of, where it is `i8(upper) * by + i8(lower)` of elements of less than a byte: the upper
    element, by what it counts, and the lower one, without a sign. None of others."""
    operation = scalar_operation(value.op)
    if value.op is None or operation.linear != "together" or not operation.commutative:
        return None
    for above, below in (value.op.operands, value.op.operands[::-1]):
        lower, product = converted_from(below), scalar_operation(above.op)
        if above.op is None or product.linear != "each" or lower is None or lower.scalar.dtype.kind == "int":
            continue
        for x, by in (above.op.operands, above.op.operands[::-1]):
            upper = converted_from(x)
            if upper is None or by.op is None or by.op.name != "const":
                continue
            if field_bits(upper.scalar.dtype) and by.op.attrs["value"] == 1 << field_bits(lower.scalar.dtype) > 1:
                return upper, int(by.op.attrs["value"]), lower
    return None


def bounds_of_integer(value: Value) -> tuple[int, int]:
    """The least and the largest number that an integer can be, as its dtype says, and what it is joined of."""
    parts = sum_of_fields(value)
    if parts is None:
        dtype = value.scalar.dtype
        bits, signed = (1, False) if dtype is dt.bool_ else (dtype.bits, dtype.kind == "int")
        return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    upper, by, lower = parts
    (low, high), (_, below) = bounds_of_integer(upper), bounds_of_integer(lower)
    return low * by, high * by + below
