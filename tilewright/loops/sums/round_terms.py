"""Sums of products whose first factors are rounded to integers, in groups that share a scale, so that the products of a
group are added up as integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value, insert_before, substitute
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import ZERO, Sym, sym
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.deps import Accumulation, accumulation_of
from tilewright.loops.analysis.linear import stores_to
from tilewright.loops.edit import (
    TakenNames,
    block_of,
    body_of,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    fresh_var,
    loop_var,
    names_in,
    nest_of,
    places_of,
    refuse,
)
from tilewright.loops.primitive import primitive
from tilewright.loops.sums.second_factors import (
    BYTE,
    LEAST_INVERSE,
    SMALLEST,
    STEP,
    Columns,
    Factors,
    Parts,
    are_bytes,
    bits_of,
    integers_alone,
    largest_integer,
    nearest,
    offset_of,
    ops_of,
    parts_of,
    rounded_factors,
    size_of,
)
from tilewright.loops.sums.writing import Writer, scratch


@dataclass(frozen=True, eq=False)
class Rounded:
    """The nests that round rows, each its loops (over the rows, over groups, and perhaps within one), the buffer of
    what the second factors are computed in; the sums of groups, the loops over them and over their terms, and the loop
    over groups that adds them up; and where second factors are rounded, too, the nests that find their steps."""

    rows: list[list[Op]]
    codes: Value
    sums: Value
    axes: list[Op]
    terms: Op
    groups: Op
    columns: Columns | None = None


@primitive
def round_terms(
    func: Func, buffer: Value, loop: Op, group: int, digits: int = 16, pieces: int = 1, factors: int = 0
) -> Rounded:
    """Round the first factors of the products that `loop` adds up to integers of `digits` bits, by the largest of each
    `group` of neighbours in the loop. The second factors are what a nest before computes of integers, with factors and
    summands that are the same for all of a group.

        for k in 0..8 { for j { w[k, j] = f32(q[k, j]) * s[k // 4, j] } }
        for i { for j {
          y[i, j] = 0
          for k in 0..8 { y[i, j] += x[i, k] * w[k, j] }
        } }

    becomes

        for i { for g in 0..2 {
          a[i, g] = bits of 1e-30
          for k in 0..4 { a[i, g] = max(a[i, g], bits of abs(x[i, 4*g + k])) }
          b[i, g] = (the float of bits a[i, g]) / 32767
          d[i, g] = max(1 / b[i, g], 2^-126)
          for k in 0..4 { r[i, 4*g + k] = i16(round(x[i, 4*g + k] * d[i, g])) }
        } }
        for k in 0..8 { for j { w[k, j] = i16(q[k, j]) } }
        for i { for j { for g in 0..2 {
          t[i, j, g] = 0
          for k in 0..4 { t[i, j, g] += i32(r[i, 4*g + k]) * i32(w[4*g + k, j]) }
        } } }
        for i { for j {
          y[i, j] = 0
          for g in 0..2 { y[i, j] += f32(t[i, j, g]) * (s[g, j] * b[i, g]) }
        } }

    in nests of their own. (Floats without a sign are in the order of their bits, NaN last.) Each x is then off by half
    of a step at most, which is the largest of its group (but at least 1e-30) by 2^(digits - 1) - 1. Where one is NaN,
    its row's sums are; of one infinite element in a row they are what its products give, NaN where the second factor is
    0, and NaN where second factors have a summand beside the integer (a minimum).

    Integers of 16 bits in two `pieces` are bytes, for instructions that multiply these: r[i, 0, k] + 256 * r[i, 1, k],
    both with a sign, so that the largest is 127 * 257 steps. The first axis of the sums of groups is then that of the
    pieces:

        for p in 0..2 { for i { for j { for g in 0..2 {
          t[p, i, j, g] = 0
          for k in 0..4 { t[p, i, j, g] += i32(r[i, p, 4*g + k]) * i32(w[4*g + k, j]) }
        } } } }
        .. for g in 0..2 { y[i, j] += f32(t[0, i, j, g] + t[1, i, j, g] * 256) * (s[g, j] * b[i, g]) }

    Second factors that are computed in another way are rounded to integers of so many bits as `factors` says, 0 for
    none, by steps that are powers of two, so that those of few bits in size are exact, but for those that are small
    beside the largest of their group:

        for g in 0..2 { for j {
          c[g, j] = bits of 1e-30
          for k in 0..4 { c[g, j] = max(c[g, j], bits of abs(w(4*g + k, j))) }
        } }
        for g in 0..2 { for j { e[g, j] = (the power of two up to c[g, j]) / 2^(factors - 2) } }
        for g in 0..2 { for j { f[g, j] = max(1 / e[g, j], 2^-126) } }
        for k in 0..8 { for j { w[k, j] = i16(round(w(k, j) * f[k // 4, j])) } }

    What is not a number, and infinite, is so in all sums of its column.

    Where one number is added to all integers that second factors are computed of (a zero point of all groups, or what
    those below zero are moved up by, as bytes are multiplied without a sign), that of the group begins with the sum of
    its products, an integer, too. ScheduleError where the loop adds up anything else, groups do not divide it, or sums
    of groups may need more than 32 bits.
    """
    names = names_in(func)
    term = _term(buffer, loop)
    found = _factors(term, loop)
    weights = found.weight.operands[0]
    _check_sizes(buffer, loop, group, 16 if factors else digits, pieces, found)
    if factors:
        _check_rounding(buffer, group, digits, pieces, factors)
    around = enclosing_loops(loop)
    rows = _rounded_rows(names, found, loop, around, group, digits, pieces)
    if factors:
        rounded = rounded_factors(names, found, loop, group, factors)
        parts, codes, columns, offset = rounded.parts, rounded.codes, rounded.columns, 0
    else:
        parts, columns = parts_of(names, found, loop, group), None
        offset = offset_of(parts)
        codes, least = integers_alone(found, parts, digits, pieces, offset)
        offset += least
    has_minima = any(p.varies is None for p in parts.parts)
    if offset or has_minima:
        _sum_of_rows(names, rows, group, offset, has_minima)
    top = around[0] if around else loop
    insert_before(top, rows.ops)
    sums = _sums_of_groups(names, buffer, found, rows, codes, loop, around, group)
    insert_before(top, sums.ops)
    added = _add_groups(names, term, found, parts, rows, sums, loop)
    parts.forget()
    assert weights.op is not None
    weights.op.erase()
    return Rounded(rows.nests, codes, sums.buffer, sums.axes, sums.terms, added, columns)


# What is there


def _term(buffer: Value, loop: Op) -> Accumulation:
    stores = stores_to(loop, buffer)
    found = accumulation_of(stores[0]) if len(stores) == 1 else None
    if found is None or not found.is_sum or found.store.parent is not body_of(loop) or "guard" in found.store.attrs:
        refuse(STEP, buffer, f"{describe(loop)} does more with it than to add up one term")
    if any(loop_var(loop) in i.vars for i in found.idx):
        refuse(STEP, buffer, f"{describe(loop)} adds to another element each time")
    if buffer_type(buffer).dtype is not dt.f32:
        refuse(STEP, buffer, f"it is of {buffer_type(buffer).dtype}")
    return found


def _factors(term: Accumulation, loop: Op) -> Factors:
    product, k = term.value.op, loop_var(loop)
    loads = [] if product is None or scalar_operation(product).linear != "each" else [v.op for v in product.operands]
    found = [o for o in loads if o is not None and o.name == "load" and "guard" not in o.attrs]
    if len(found) != 2 or found[0] is found[1]:
        refuse(STEP, term.buffer, "its terms are no products of two elements")
    for row, weight in (found, found[::-1]):
        fill = _fill_of(weight.operands[0])
        idx = weight.attrs["idx"]
        if fill is None or len(idx) != 2 or idx[0] is not k or k in idx[1].vars:
            continue
        if buffer_type(row.operands[0]).dtype is not dt.f32 or sum(k in i.vars for i in row.attrs["idx"]) != 1:
            continue
        if any((i - k).vars & {k} for i in row.attrs["idx"] if k in i.vars):
            continue
        return Factors(row, weight, fill, enclosing_loops(fill))
    refuse(STEP, term.buffer, "no factor of its terms is computed for matrices before")


def _fill_of(buffer: Value) -> Op | None:
    """The one store that fills a matrix of the kernel, an element for each iteration of two loops."""
    places = places_of(buffer)
    stores = [op for op in places if op.name == "store"]
    if buffer.op is None or buffer.op.name != "alloc" or len(stores) != 1 or len(places) != 2:
        return None
    (store,) = stores
    loops = enclosing_loops(store)
    is_plain = tuple(map(loop_var, loops)) == tuple(store.attrs["idx"]) and "guard" not in store.attrs
    return store if is_plain and len(loops) == 2 else None


def _check_sizes(buffer: Value, loop: Op, group: int, digits: int, pieces: int, found: Factors) -> None:
    extent = extent_of(loop)
    if not extent.is_const or group < 1 or extent.value % group:
        refuse(STEP, buffer, f"{describe(loop)} is not of groups of {group}")
    if digits not in (8, 16):
        refuse(STEP, buffer, f"there are no integers of {digits} bits to multiply")
    if pieces != 1 and digits != 8 * pieces:
        refuse(STEP, buffer, f"integers of {digits} bits are not multiplied in {pieces} pieces")
    if enclosing_loops(loop) and enclosing_loops(loop)[0].parent is not found.filled_in[0].parent:
        refuse(STEP, buffer, "what it reads is computed in another place")


def _check_rounding(buffer: Value, group: int, digits: int, pieces: int, factors: int) -> None:
    if not (2 <= factors <= 16 and 8 < digits <= 16) or pieces > 1:
        refuse(STEP, buffer, f"factors are not rounded to {digits} and {factors} bits")
    if group * largest_integer(digits, pieces) * (1 << factors - 1) >> 31:
        refuse(STEP, buffer, f"sums of {group} products may need more than 32 bits")


# Rows


@dataclass(eq=False)
class _Rows:
    """Buffers of what becomes of rows, and the nests that fill them: `axes` are the loops of the sum that move rows,
    with their extents; elements are in so many `pieces`. `moved` is what sums of groups (of each piece) begin with, if
    it is not 0."""

    axes: list[tuple[Sym, Sym]]
    largest: Value
    scale: Value
    rounded: Value
    groups: Sym
    pieces: int
    total: Value | None = None
    moved: Value | None = None
    ops: list[Op] = field(default_factory=list)
    nests: list[list[Op]] = field(default_factory=list)

    @property
    def at(self) -> tuple[Sym, ...]:
        return tuple(v for v, _ in self.axes)

    def place(self, row: Sequence[Sym], k: Sym, piece: Sym) -> tuple[Sym, ...]:
        """Of a piece of a rounded element."""
        return (*row, k) if self.pieces == 1 else (*row, piece, k)

    def around(self, row: Sequence[Sym], g: Sym) -> list[tuple[Sym, Sym]]:
        """Loops over the groups of all rows."""
        return [*zip(row, (n for _, n in self.axes), strict=True), (g, self.groups)]

    def fill(self, loops: Sequence[Op]) -> None:
        self.nests.append(list(loops))
        self.ops.append(loops[0])


def _rounded_rows(
    names: TakenNames, found: Factors, loop: Op, around: Sequence[Op], group: int, digits: int, pieces: int
) -> _Rows:
    used = frozenset[Sym]().union(*(i.vars for i in found.row.attrs["idx"])) - {loop_var(loop)}
    axes = [(loop_var(o), extent_of(o)) for o in around if loop_var(o) in used]
    if used != {v for v, _ in axes}:
        refuse(STEP, found.row.operands[0], "its place depends on data")
    most, groups = float(largest_integer(digits, pieces)), sym(extent_of(loop).value // group)
    extents = [n for _, n in axes]
    name = found.row.operands[0].name
    largest, scale, inverse = (scratch(t, [*extents, groups], name) for t in (dt.i32, dt.f32, dt.f32))
    in_pieces = [] if pieces == 1 else [sym(pieces)]
    rounded = scratch(dt.i8 if are_bytes(digits, pieces) else dt.i16, [*extents, *in_pieces, extent_of(loop)], name)
    made = _Rows(axes, largest, scale, rounded, groups, pieces)
    made.ops += [v.op for v in (largest, scale, inverse, rounded) if v.op is not None]

    row, g, k, places = _fresh(names, made, group)
    start, write = Writer(), Writer()
    start.store(start.number(bits_of(SMALLEST), dt.i32), largest, *row, g)
    x = write("load", found.row.operands[0], type=ScalarType(dt.f32), idx=_moved(found.row, loop, places))
    write.store(write("max", write.load(largest, *row, g), size_of(write, x)), largest, *row, g)
    loops = nest_of([*made.around(row, g), (k, sym(group))], write.ops)
    insert_before(loops[-1], start.ops)
    made.fill(loops)

    row, g, _, _ = _fresh(names, made, group)
    write = Writer()
    size = write("bitcast", write.load(largest, *row, g), type=ScalarType(dt.f32))
    step = write("mul", size, write.number(float(np.float32(1 / most))))
    write.store(step, scale, *row, g)
    inverted = write("max", write("div", write.number(1.0), step), write.number(LEAST_INVERSE))
    write.store(inverted, inverse, *row, g)
    made.fill(nest_of(made.around(row, g), write.ops))

    row, g, k, places = _fresh(names, made, group)
    write = Writer()
    x = write("load", found.row.operands[0], type=ScalarType(dt.f32), idx=_moved(found.row, loop, places))
    steps = write("mul", x, write.load(inverse, *row, g))
    if pieces == 1:
        whole = nearest(write, steps, int(most), buffer_type(rounded).dtype)
        write.store(whole, rounded, *made.place(row, group * g + k, ZERO))
    else:
        steps = write("round", steps)
        half, upper = write.number(BYTE / 2), write.number(1 / BYTE)
        high = write("floor", write("mul", write("add", steps, half), upper))
        write.store(write.cast(high, dt.i8), rounded, *made.place(row, group * g + k, sym(1)))
        low = write("sub", steps, write("mul", high, write.number(BYTE)))
        write.store(write.cast(low, dt.i8), rounded, *made.place(row, group * g + k, ZERO))
    made.fill(nest_of([*made.around(row, g), (k, sym(group))], write.ops))
    return made


def _fresh(names: TakenNames, rows: _Rows, group: int) -> tuple[list[Sym], Sym, Sym, dict[Sym, Sym]]:
    """Variables of a new nest: of the rows, of groups, within one, and what takes the place of the sum's."""
    row = [fresh_var(names, v.name, n) for v, n in rows.axes]
    g, k = fresh_var(names, "g", rows.groups), fresh_var(names, "k", sym(group))
    return row, g, k, {**dict(zip(rows.at, row, strict=True)), ZERO: group * g + k}


def _moved(load: Op, loop: Op, places: dict[Sym, Sym]) -> tuple[Sym, ...]:
    """Where a load of the sum's row is read by a nest of other variables."""
    mapping = {v: to for v, to in places.items() if v is not ZERO} | {loop_var(loop): places[ZERO]}
    return tuple(i.subs(mapping) for i in load.attrs["idx"])


def _sum_of_rows(names: TakenNames, rows: _Rows, group: int, offset: int, has_minima: bool) -> None:
    """Add up the rounded elements of each group, which what is added to all second factors of it multiplies."""
    counted = _table_of_groups(dt.i32, rows)
    row, g, k, _ = _fresh(names, rows, group)
    start, write = Writer(), Writer()
    start.store(start.number(0, dt.i32), counted, *row, g)
    pieces = [write.load(rows.rounded, *rows.place(row, group * g + k, sym(p))) for p in range(rows.pieces)]
    one = _joined(write, [write.cast(piece, dt.i32) for piece in pieces])
    write.store(write("add", write.load(counted, *row, g), one), counted, *row, g)
    loops = nest_of([*rows.around(row, g), (k, sym(group))], write.ops)
    insert_before(loops[-1], start.ops)
    rows.fill(loops)
    row, g, _, _ = _fresh(names, rows, group)
    write = Writer()
    steps = write.load(counted, *row, g)
    if offset:
        rows.moved = _table_of_groups(dt.i32, rows, rows.pieces)
        moved = write("mul", steps, write.number(offset, dt.i32))
        for p in range(rows.pieces):
            write.store(write.number(0, dt.i32) if p else moved, rows.moved, *rows.place(row, g, sym(p)))
    if has_minima:
        rows.total = _table_of_groups(dt.f32, rows)
        scaled = write("mul", write.cast(steps, dt.f32), write.load(rows.scale, *row, g))
        write.store(scaled, rows.total, *row, g)
    rows.fill(nest_of(rows.around(row, g), write.ops))


def _table_of_groups(dtype: DType, rows: _Rows, pieces: int = 1) -> Value:
    """A number for each group of each row, or of each of so many pieces of it."""
    in_pieces = [] if pieces == 1 else [sym(pieces)]
    made = scratch(dtype, [*(n for _, n in rows.axes), *in_pieces, rows.groups], rows.rounded.name)
    assert made.op is not None
    rows.ops.append(made.op)
    return made


def _joined(write: Writer, pieces: Sequence[Value]) -> Value:
    """The integer that some pieces are, the lowest first."""
    if len(pieces) == 1:
        return pieces[0]
    low, high = pieces
    return write("add", low, write("mul", high, write.number(BYTE, dt.i32)))


# Sums


@dataclass(frozen=True, eq=False)
class _Sums:
    buffer: Value
    ops: list[Op]
    axes: list[Op]
    terms: Op


def _sums_of_groups(
    names: TakenNames,
    buffer: Value,
    found: Factors,
    rows: _Rows,
    codes: Value,
    loop: Op,
    around: Sequence[Op],
    group: int,
) -> _Sums:
    axes = [(fresh_var(names, loop_var(o).name, extent_of(o)), extent_of(o)) for o in around]
    places = {loop_var(o): v for o, (v, _) in zip(around, axes, strict=True)}
    g, k = fresh_var(names, "g", rows.groups), fresh_var(names, "k", sym(group))
    axes.append((g, rows.groups))
    piece = ZERO
    if rows.pieces > 1:
        piece = fresh_var(names, "p", sym(rows.pieces))
        axes.insert(0, (piece, sym(rows.pieces)))
    sums = scratch(dt.i32, [n for _, n in axes], buffer.name)
    at = tuple(v for v, _ in axes)
    start, write = Writer(), Writer()
    row = [places[v] for v in rows.at]
    moved = start.number(0, dt.i32) if rows.moved is None else start.load(rows.moved, *rows.place(row, g, piece))
    start.store(moved, sums, *at)
    left = write.cast(write.load(rows.rounded, *rows.place(row, group * g + k, piece)), dt.i32)
    right = write.cast(write.load(codes, group * g + k, found.column.subs(places)), dt.i32)
    write.store(write("add", write.load(sums, *at), write("mul", left, right)), sums, *at)
    loops = nest_of([*axes, (k, sym(group))], write.ops)
    insert_before(loops[-1], start.ops)
    assert sums.op is not None
    return _Sums(sums, [sums.op, loops[0]], loops[:-1], loops[-1])


def _add_groups(
    names: TakenNames, term: Accumulation, found: Factors, parts: Parts, rows: _Rows, sums: _Sums, loop: Op
) -> Op:
    """The loop over groups in the place of that over terms."""
    g = fresh_var(names, "g", rows.groups)
    around = enclosing_loops(loop)
    write = Writer()
    copies: dict[Value, Value] = {}

    def factor(value: Value) -> Value:
        for op in ops_of(value):
            if op.result not in copies:
                write.ops.append(
                    op.clone(copies, lambda attr: substitute(attr, {parts.g: g, parts.column: found.column}))
                )
        return copies[value]

    value = write.load(term.buffer, *term.idx)
    for p in sorted(parts.parts, key=lambda p: p.varies is None):
        of_row = rows.scale if p.varies is not None else rows.total
        assert of_row is not None
        scales = [*map(factor, p.factors), write.load(of_row, *rows.at, g)]
        found_part = reduce(partial(write, "mul"), scales)  # of columns first: all rows share it
        if p.varies is not None:
            count = write.cast(_sum_of_group(write, rows, sums, (*map(loop_var, around), g)), dt.f32)
            found_part = write("mul", count, found_part)
        value = write("sub" if p.negative else "add", value, found_part)
    write.store(value, term.buffer, *term.idx)
    (added,) = nest_of([(g, rows.groups)], write.ops)
    insert_before(loop, [added])
    block_of(loop).ops.remove(loop)
    loop.drop()
    return added


def _sum_of_group(write: Writer, rows: _Rows, sums: _Sums, at: Sequence[Sym]) -> Value:
    pieces = [(sym(p), *at) for p in range(rows.pieces)] if rows.pieces > 1 else [at]
    return _joined(write, [write.load(sums.buffer, *place) for place in pieces])
