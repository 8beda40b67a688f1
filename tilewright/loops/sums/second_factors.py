"""Second factors of products that are added up in groups as integers: taken apart into integers and what groups share,
or rounded to integers by steps of groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value, insert_before, substitute
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import converted_from
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.fields import bounds_of_integer, sum_of_fields
from tilewright.loops.analysis.linear import Linear, Summand
from tilewright.loops.edit import (
    TakenNames,
    body_of,
    buffer_type,
    extent_of,
    fresh_var,
    insert_after,
    loop_var,
    nest_of,
    refuse,
)
from tilewright.loops.sums.writing import Writer, scratch

STEP = "round_terms"

SMALLEST = 1e-30
"""What counts as the largest element of a group of smaller ones: that many steps of it stay normal numbers."""

LEAST_INVERSE = 2.0**-126
"""Of the step of a group that has an infinite element: by 0 that would not be a number. Finite elements come to 0 then
(those above 2^125 to 4 at most), and infinite ones to as many steps as there are."""

MOST_OFFSET = 1 << 7
"""Of a whole number that is added to all integers."""

BYTE = 256
"""By which the upper of two bytes counts."""

EXPONENT = 0xFF << 23
"""The bits of a float32 that are its exponent."""

SIZE = 0x7FFFFFFF
"""Its bits but for the sign."""

WHOLE = 1.5 * 2**23
"""A float32 that numbers up to 2^22 become whole by being added to; the sum's bits are those of this one, and theirs as
an integer added."""


def bits_of(number: float) -> int:
    """Of a float32 of no sign."""
    return int(np.float32(number).view(np.int32))


def size_of(write: Writer, x: Value) -> Value:
    """The bits of a float's size, an i32 in the order of sizes: that of NaN is the largest."""
    return write("and", write("bitcast", x, type=ScalarType(dt.i32)), write.number(SIZE, dt.i32))


def nearest(write: Writer, x: Value, most: int, dtype: DType) -> Value:
    """The nearest integer to a float of at most this size, which is a whole number of less than 2^15. What is infinite
    becomes the largest or smallest of these, and NaN either."""
    bits = write("bitcast", write("add", x, write.number(WHOLE)), type=ScalarType(dt.i32))
    least = write("max", bits, write.number(bits_of(WHOLE) - most, dt.i32))
    return write.cast(write("min", least, write.number(bits_of(WHOLE) + most, dt.i32)), dtype)


@dataclass(frozen=True, eq=False)
class Factors:
    """The loads of a term's two factors; of the second the store that fills it, and the loops around that."""

    row: Op
    weight: Op
    fill: Op
    filled_in: list[Op]

    @property
    def column(self) -> Sym:
        column: Sym = self.weight.attrs["idx"][-1]
        return column


def largest_integer(digits: int, pieces: int) -> int:
    """The largest integer that rows are rounded to; of two bytes each has a sign."""
    return (1 << digits - 1) - 1 if pieces == 1 else ((1 << 7) - 1) * (BYTE + 1)


def are_bytes(digits: int, pieces: int) -> bool:
    return digits == 8 * pieces


@dataclass(frozen=True, eq=False)
class Parts:
    """What a second factor is a sum of, as copies of its ops for element `within` of group `g` of column `column`."""

    parts: list[Summand]
    ops: list[Op]
    g: Sym
    within: Sym
    column: Sym

    @property
    def group(self) -> int:
        high = self.within.bounds[1]
        return 1 if high is None else high + 1

    def forget(self) -> None:
        """Drop the copies, which are in no block."""
        for op in reversed(self.ops):
            op.drop()


def parts_of(names: TakenNames, found: Factors, loop: Op, group: int) -> Parts:
    depth, column = (loop_var(o) for o in found.filled_in)
    groups = sym(extent_of(loop).value // group)
    g, within = fresh_var(names, "g", groups), fresh_var(names, "k", sym(group))
    copies: dict[Value, Value] = {}
    ops = [
        op.clone(copies, lambda attr: substitute(attr, {depth: group * g + within}))
        for op in body_of(found.filled_in[-1]).ops[:-1]
    ]
    parts = Linear(found.filled_in[0], frozenset({within}), ()).parts(copies[found.fill.operands[0]])
    varying = [p for p in parts if p.varies is not None]
    source = None if len(varying) != 1 or varying[0].varies is None else converted_from(varying[0].varies)
    if source is None or not source.scalar.dtype.is_int:
        Parts(parts, ops, g, within, column).forget()
        refuse(STEP, found.weight.operands[0], f"it is no sum of one integer, times what groups of {group} share")
    return Parts(parts, ops, g, within, column)


def offset_of(parts: Parts) -> int:
    """A whole number that is added to the integer before it is multiplied, as zero points are that all groups share: it
    is taken out of the parts."""
    (varying,) = (p for p in parts.parts if p.varies is not None)
    for part in parts.parts:
        others = [f for f in part.factors if f not in varying.factors]
        if part.varies is not None or len(part.factors) != len(varying.factors) + 1 or len(others) != 1:
            continue
        number = None if others[0].op is None or others[0].op.name != "const" else float(others[0].op.attrs["value"])
        if number is not None and number.is_integer() and abs(number) <= MOST_OFFSET:
            parts.parts.remove(part)
            return int(-number if part.negative != varying.negative else number)
    return 0


def integers_alone(found: Factors, parts: Parts, digits: int, pieces: int, offset: int) -> tuple[Value, int]:
    """Let the nest before store integers; the buffer of these. Bytes have no sign, which instructions want of one of
    the factors: what is below zero is moved up, so that another number is to be added to them than `offset`."""
    (varying,) = (p for p in parts.parts if p.varies is not None)
    assert varying.varies is not None
    source = converted_from(varying.varies)
    assert source is not None
    as_bytes = are_bytes(digits, pieces)
    dtype = dt.u8 if as_bytes else dt.i16
    low, high = bounds_of_integer(source)
    least = min(low, 0) if as_bytes else 0
    limits = np.iinfo(dtype.storage)
    if low - least < limits.min or high - least > limits.max:
        refuse(
            STEP,
            found.weight.operands[0],
            f"its integers are from {low} to {high}, which {dtype} does not hold",
        )
    largest = max(high - least, least - low)
    if parts.group * (largest + abs(offset + least)) * ((1 << digits - 1) - 1) >> 31:
        refuse(STEP, found.weight.operands[0], f"sums of {parts.group} products may need more than 32 bits")
    before = found.weight.operands[0]
    codes = scratch(dtype, buffer_type(before).shape, before.name)
    write = Writer()
    copies: dict[Value, Value] = {}
    depth = loop_var(found.filled_in[0])
    for op in ops_of(source):
        write.ops.append(op.clone(copies, lambda attr: substitute(attr, {parts.within: depth - parts.group * parts.g})))
    number = _moved_up(write, copies[source]) if least else write.cast(copies[source], dtype)
    write.store(number, codes, *found.fill.attrs["idx"])
    _fill_instead(found, codes, write.ops)
    return codes, least


def _moved_up(write: Writer, value: Value) -> Value:
    """u8: an integer of at most 8 bits less the least that it can be."""
    parts = sum_of_fields(value)
    if parts is not None:
        upper, by, lower = parts
        high = write("mul", _moved_up(write, upper), write.number(by, dt.u8))
        return write("add", high, _moved_up(write, lower))
    dtype, number = value.scalar.dtype, write.cast(value, dt.u8)
    if dtype.kind != "int":
        return number
    if dtype.bits < 8:
        number = write("and", number, write.number((1 << dtype.bits) - 1, dt.u8))
    return write("xor", number, write.number(1 << dtype.bits - 1, dt.u8))


def ops_of(value: Value) -> list[Op]:
    """The ops that compute a scalar, each once, in an order in which they can run."""
    found: dict[Op, None] = {}

    def visit(v: Value) -> None:
        assert v.op is not None
        if v.op.name != "load":
            for operand in v.op.operands:
                visit(operand)
        found.setdefault(v.op)

    visit(value)
    return list(found)


def _fill_instead(found: Factors, codes: Value, ops: Sequence[Op]) -> None:
    """Let the nest that fills the second factors do this in place of it, in the buffer that codes are in."""
    body = body_of(found.filled_in[-1])
    for op in reversed(body.ops):
        op.drop()
    body.ops = []
    for op in ops:
        body.append(op)
    before = found.weight.operands[0].op
    assert before is not None and codes.op is not None
    insert_after(before, [codes.op])


@dataclass(frozen=True, eq=False)
class Columns:
    """The largest elements of groups, the steps that these are rounded by, and the inverses of the steps: buffers, and
    the loops that fill each, over groups, columns and, for the first, the elements of a group."""

    sizes: Value
    steps: Value
    inverses: Value
    largest: list[Op]
    step: list[Op]
    inverse: list[Op]


@dataclass(frozen=True, eq=False)
class RoundedFactors:
    """Second factors as integers times the steps of groups."""

    parts: Parts
    codes: Value
    columns: Columns


def rounded_factors(names: TakenNames, found: Factors, loop: Op, group: int, digits: int) -> RoundedFactors:
    """Round what the nest before computes to integers of so many bits, by the largest of each group."""
    depth, column = (loop_var(o) for o in found.filled_in)
    groups, columns = sym(extent_of(loop).value // group), extent_of(found.filled_in[-1])
    before = found.weight.operands[0]
    largest, step, inverse = (scratch(t, (groups, columns), before.name) for t in (dt.i32, dt.f32, dt.f32))
    body, size = body_of(found.filled_in[-1]).ops[:-1], found.fill.operands[0]

    def element(write: Writer, k: Sym, j: Sym) -> Value:
        copies: dict[Value, Value] = {}
        write.ops += [op.clone(copies, lambda attr: substitute(attr, {depth: k, column: j})) for op in body]
        return copies[size]

    def loops_of(ops: Sequence[Op], *inner: tuple[Sym, Sym]) -> list[Op]:
        return nest_of([(g, groups), (j, columns), *inner], ops)

    g, j, k = fresh_var(names, "g", groups), fresh_var(names, "j", columns), fresh_var(names, "k", sym(group))
    start, write = Writer(), Writer()
    start.store(start.number(bits_of(SMALLEST), dt.i32), largest, g, j)
    x = element(write, group * g + k, j)
    write.store(write("max", write.load(largest, g, j), size_of(write, x)), largest, g, j)
    nests = [loops_of(write.ops, (k, sym(group)))]
    insert_before(nests[0][-1], start.ops)

    g, j = fresh_var(names, "g", groups), fresh_var(names, "j", columns)
    write = Writer()
    most = write.load(largest, g, j)
    power = write("bitcast", write("and", most, write.number(EXPONENT, dt.i32)), type=ScalarType(dt.f32))
    steps = write("mul", power, write.number(2.0 ** (2 - digits)))
    below = write("bitcast", most, type=ScalarType(dt.f32))
    below = write("mul", below, write.number(2.0 ** (1 - digits)))  # and NaN where the largest is
    write.store(write("max", steps, below), step, g, j)
    nests.append(loops_of(write.ops))

    g, j = fresh_var(names, "g", groups), fresh_var(names, "j", columns)
    write = Writer()
    inverted = write("div", write.number(1.0), write.load(step, g, j))
    write.store(write("max", inverted, write.number(LEAST_INVERSE)), inverse, g, j)
    nests.append(loops_of(write.ops))

    codes = scratch(dt.i16, buffer_type(before).shape, before.name)
    write = Writer()
    scaled = write("mul", element(write, depth, column), write.load(inverse, depth // group, column))
    write.store(nearest(write, scaled, 1 << digits - 1, dt.i16), codes, depth, column)
    insert_before(found.filled_in[0], [*(v.op for v in (largest, step, inverse) if v.op), *(o[0] for o in nests)])
    _fill_instead(found, codes, write.ops)
    g, within = fresh_var(names, "g", groups), fresh_var(names, "k", sym(group))
    read = Writer()
    factor = read.load(step, g, column)
    parts = Parts([Summand(factor, (factor,), False)], read.ops, g, within, column)
    return RoundedFactors(parts, codes, Columns(largest, step, inverse, *nests))
