"""Sums of products whose first factors are rounded to integers, in groups that share a scale, so that the products of a
group are added up as integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value, insert_before, substitute
from tilewright.ir.dtype import DType
from tilewright.ir.scalar import converted_from, scalar_operation
from tilewright.ir.sym import ZERO, Sym, sym
from tilewright.ir.types import ScalarType
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.deps import Accumulation, accumulation_of
from tilewright.loops.analysis.linear import Linear, Summand, stores_to
from tilewright.loops.edit import (
    block_of,
    body_of,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    fresh_var,
    insert_after,
    loop_var,
    names_in,
    nest_of,
    places_of,
    refuse,
)
from tilewright.loops.primitive import primitive

STEP = "round_terms"

SMALLEST = 1e-30
"""What counts as the largest element of a group of smaller ones: that many steps of it stay normal numbers."""

LEAST_INVERSE = 2.0**-126
"""Of the step of a group that has an infinite element: by 0 that would not be a number. Finite elements come to 0 then
(those above 2^125 to 4 at most), and infinite ones to as many steps as there are."""


@dataclass(frozen=True, eq=False)
class Rounded:
    """The nests that round rows, each its loops (over the rows, over groups, and perhaps within one), the buffer of
    what the second factors are computed in; the sums of groups, the loops over them and over their terms, and the loop
    over groups that adds them up."""

    rows: list[list[Op]]
    codes: Value
    sums: Value
    axes: list[Op]
    terms: Op
    groups: Op


@primitive
def round_terms(func: Func, buffer: Value, loop: Op, group: int, digits: int = 16) -> Rounded:
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
          a[i, g] = 1e-30
          for k in 0..4 { a[i, g] = max(a[i, g], abs(x[i, 4*g + k])) }
          b[i, g] = a[i, g] / 32767
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
          for g in 0..2 { y[i, j] += f32(t[i, j, g]) * s[g, j] * b[i, g] }
        } }

    in nests of their own. Each x is then off by half of a step at most, which is the largest of its group (but at least
    1e-30) by 2^(digits - 1) - 1. Where one is NaN, its row's sums are; of one infinite element in a row they are what
    its products give, NaN where the second factor is 0, and NaN where second factors have a summand beside the integer
    (a minimum, or what moves bytes above 0). ScheduleError where the loop adds up anything else, groups do not divide
    it, or sums of groups may need more than 32 bits.
    """
    names = names_in(func)
    term = _term(buffer, loop)
    found = _factors(term, loop)
    weights = found.weight.operands[0]
    _check_sizes(buffer, loop, group, digits, found)
    around = enclosing_loops(loop)
    rows = _rounded_rows(names, found, loop, around, group, digits)
    parts = _parts_of(names, found, loop, group)
    codes = _integers_alone(found, parts, digits)
    if any(p.varies is None for p in parts.parts):
        _sum_of_rows(names, rows, group)
    top = around[0] if around else loop
    insert_before(top, rows.ops)
    sums = _sums_of_groups(names, buffer, found, rows, codes, loop, around, group)
    insert_before(top, sums.ops)
    added = _add_groups(names, term, found, parts, rows, sums, loop)
    parts.forget()
    assert weights.op is not None
    weights.op.erase()
    return Rounded(rows.nests, codes, sums.buffer, sums.axes, sums.terms, added)


# What is there


@dataclass(frozen=True, eq=False)
class _Factors:
    """The loads of a term's two factors; of the second the store that fills it, and the loops around that."""

    row: Op
    weight: Op
    fill: Op
    filled_in: list[Op]

    @property
    def column(self) -> Sym:
        column: Sym = self.weight.attrs["idx"][-1]
        return column


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


def _factors(term: Accumulation, loop: Op) -> _Factors:
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
        return _Factors(row, weight, fill, enclosing_loops(fill))
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


def _check_sizes(buffer: Value, loop: Op, group: int, digits: int, found: _Factors) -> None:
    extent = extent_of(loop)
    if not extent.is_const or group < 1 or extent.value % group:
        refuse(STEP, buffer, f"{describe(loop)} is not of groups of {group}")
    if digits not in (8, 16):
        refuse(STEP, buffer, f"there are no integers of {digits} bits to multiply")
    if enclosing_loops(loop) and enclosing_loops(loop)[0].parent is not found.filled_in[0].parent:
        refuse(STEP, buffer, "what it reads is computed in another place")


# Rows


@dataclass(eq=False)
class _Rows:
    """Buffers of what becomes of rows, and the nests that fill them: `axes` are the loops of the sum that move rows,
    with their extents; elements are at `idx` of groups."""

    axes: list[tuple[Sym, Sym]]
    largest: Value
    scale: Value
    rounded: Value
    groups: Sym
    total: Value | None = None
    ops: list[Op] = field(default_factory=list)
    nests: list[list[Op]] = field(default_factory=list)

    @property
    def at(self) -> tuple[Sym, ...]:
        return tuple(v for v, _ in self.axes)

    def fill(self, loops: Sequence[Op]) -> None:
        self.nests.append(list(loops))
        self.ops.append(loops[0])


@dataclass(eq=False)
class _Writer:
    """Ops of a body, one after the other."""

    ops: list[Op] = field(default_factory=list)

    def __call__(self, name: str, *operands: Value, type: ScalarType | None = None, **attrs: object) -> Value:
        self.ops.append(Op(name, list(operands), [type or operands[0].scalar], attrs))
        return self.ops[-1].result

    def number(self, value: float, dtype: DType = dt.f32) -> Value:
        return self("const", type=ScalarType(dtype), value=value)

    def load(self, buffer: Value, *idx: Sym) -> Value:
        return self("load", buffer, type=ScalarType(buffer_type(buffer).dtype), idx=idx)

    def store(self, value: Value, buffer: Value, *idx: Sym) -> None:
        self.ops.append(Op("store", [value, buffer], [], {"idx": idx}))

    def cast(self, value: Value, dtype: DType) -> Value:
        return self("cast", value, type=ScalarType(dtype))


def _alloc(dtype: DType, shape: Sequence[Sym], name: str) -> Value:
    op = Op("alloc", [], [dense(dtype, shape, "scratch")])
    op.result.name = name
    return op.result


def _rounded_rows(
    names: set[str], found: _Factors, loop: Op, around: Sequence[Op], group: int, digits: int
) -> _Rows:
    used = frozenset[Sym]().union(*(i.vars for i in found.row.attrs["idx"])) - {loop_var(loop)}
    axes = [(loop_var(o), extent_of(o)) for o in around if loop_var(o) in used]
    if used != {v for v, _ in axes}:
        refuse(STEP, found.row.operands[0], "its place depends on data")
    most, groups = float((1 << digits - 1) - 1), sym(extent_of(loop).value // group)
    extents = [n for _, n in axes]
    name = found.row.operands[0].name
    largest, scale, inverse = (_alloc(dt.f32, [*extents, groups], name) for _ in range(3))
    rounded = _alloc(dt.i16 if digits > 8 else dt.i8, [*extents, extent_of(loop)], name)
    made = _Rows(axes, largest, scale, rounded, groups)
    made.ops += [v.op for v in (largest, scale, inverse, rounded) if v.op is not None]

    row, g, k, places = _fresh(names, made, group)
    start, write = _Writer(), _Writer()
    start.store(start.number(SMALLEST), largest, *row, g)
    x = write("load", found.row.operands[0], type=ScalarType(dt.f32), idx=_moved(found.row, loop, places))
    write.store(write("max", write.load(largest, *row, g), write("abs", x)), largest, *row, g)
    loops = nest_of([*zip(row, extents, strict=True), (g, groups), (k, sym(group))], write.ops)
    insert_before(loops[-1], start.ops)
    made.fill(loops)

    row, g, _, _ = _fresh(names, made, group)
    write = _Writer()
    step = write("mul", write.load(largest, *row, g), write.number(float(np.float32(1 / most))))
    write.store(step, scale, *row, g)
    inverted = write("max", write("div", write.number(1.0), step), write.number(LEAST_INVERSE))
    write.store(inverted, inverse, *row, g)
    made.fill(nest_of([*zip(row, extents, strict=True), (g, groups)], write.ops))

    row, g, k, places = _fresh(names, made, group)
    write = _Writer()
    x = write("load", found.row.operands[0], type=ScalarType(dt.f32), idx=_moved(found.row, loop, places))
    steps = write("round", write("mul", x, write.load(inverse, *row, g)))
    write.store(write.cast(steps, buffer_type(rounded).dtype), rounded, *row, group * g + k)
    made.fill(nest_of([*zip(row, extents, strict=True), (g, groups), (k, sym(group))], write.ops))
    return made


def _fresh(names: set[str], rows: _Rows, group: int) -> tuple[list[Sym], Sym, Sym, dict[Sym, Sym]]:
    """Variables of a new nest: of the rows, of groups, within one, and what takes the place of the sum's."""
    row = [fresh_var(names, v.name, n) for v, n in rows.axes]
    g, k = fresh_var(names, "g", rows.groups), fresh_var(names, "k", sym(group))
    return row, g, k, {**dict(zip(rows.at, row, strict=True)), ZERO: group * g + k}


def _moved(load: Op, loop: Op, places: dict[Sym, Sym]) -> tuple[Sym, ...]:
    """Where a load of the sum's row is read by a nest of other variables."""
    mapping = {v: to for v, to in places.items() if v is not ZERO} | {loop_var(loop): places[ZERO]}
    return tuple(i.subs(mapping) for i in load.attrs["idx"])


def _sum_of_rows(names: set[str], rows: _Rows, group: int) -> None:
    """Add up the rounded elements of each group, which what is added to all second factors of it multiplies."""
    extents = [n for _, n in rows.axes]
    counted = _alloc(dt.i32, [*extents, rows.groups], rows.rounded.name)
    total = _alloc(dt.f32, [*extents, rows.groups], rows.rounded.name)
    rows.ops += [v.op for v in (counted, total) if v.op is not None]
    row, g, k, _ = _fresh(names, rows, group)
    start, write = _Writer(), _Writer()
    start.store(start.number(0, dt.i32), counted, *row, g)
    one = write.cast(write.load(rows.rounded, *row, group * g + k), dt.i32)
    write.store(write("add", write.load(counted, *row, g), one), counted, *row, g)
    loops = nest_of([*zip(row, extents, strict=True), (g, rows.groups), (k, sym(group))], write.ops)
    insert_before(loops[-1], start.ops)
    rows.fill(loops)
    row, g, _, _ = _fresh(names, rows, group)
    write = _Writer()
    steps = write.cast(write.load(counted, *row, g), dt.f32)
    write.store(write("mul", steps, write.load(rows.scale, *row, g)), total, *row, g)
    rows.fill(nest_of([*zip(row, extents, strict=True), (g, rows.groups)], write.ops))
    rows.total = total


# Second factors


@dataclass(frozen=True, eq=False)
class _Parts:
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


def _parts_of(names: set[str], found: _Factors, loop: Op, group: int) -> _Parts:
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
        _Parts(parts, ops, g, within, column).forget()
        refuse(STEP, found.weight.operands[0], f"it is no sum of one integer, times what groups of {group} share")
    return _Parts(parts, ops, g, within, column)


def _integers_alone(found: _Factors, parts: _Parts, digits: int) -> Value:
    """Let the nest before store integers; the buffer of these. Bytes have no sign, which instructions want of one of
    the factors: what is below zero is moved up, and the sums are corrected for that."""
    (varying,) = (p for p in parts.parts if p.varies is not None)
    assert varying.varies is not None
    source = converted_from(varying.varies)
    assert source is not None
    dtype, given = dt.i16 if digits > 8 else dt.u8, source.scalar.dtype
    least = -(1 << given.bits - 1) if given.kind == "int" and digits <= 8 else 0
    if not dtype.holds(given) and not (least and given.bits <= dtype.bits):
        refuse(STEP, found.weight.operands[0], f"its integers are {source.scalar.dtype}, which {dtype} does not hold")
    largest = (1 << given.bits) - 1 if least or given.kind == "uint" else 1 << given.bits - 1
    if parts.group * largest * ((1 << digits - 1) - 1) >> 31:
        refuse(STEP, found.weight.operands[0], f"sums of {parts.group} products may need more than 32 bits")
    before = found.weight.operands[0]
    codes = _alloc(dtype, buffer_type(before).shape, before.name)
    write = _Writer()
    copies: dict[Value, Value] = {}
    depth = loop_var(found.filled_in[0])
    for op in _needed(source):
        write.ops.append(op.clone(copies, lambda attr: substitute(attr, {parts.within: depth - parts.group * parts.g})))
    number = copies[source]
    if least:
        number = write.cast(number, dt.i16)
        number = write("sub", number, write.number(least, dt.i16))
        below = Op("const", [], [ScalarType(dt.f32)], {"value": float(least)})
        parts.ops.append(below)
        parts.parts.append(Summand(None, (*varying.factors, below.result), varying.negative))
    write.store(write.cast(number, dtype), codes, *found.fill.attrs["idx"])
    body = body_of(found.filled_in[-1])
    for op in reversed(body.ops):
        op.drop()
    body.ops = []
    for op in write.ops:
        body.append(op)
    assert before.op is not None and codes.op is not None
    insert_after(before.op, [codes.op])
    return codes


def _needed(value: Value) -> list[Op]:
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


# Sums


@dataclass(frozen=True, eq=False)
class _Sums:
    buffer: Value
    ops: list[Op]
    axes: list[Op]
    terms: Op


def _sums_of_groups(
    names: set[str],
    buffer: Value,
    found: _Factors,
    rows: _Rows,
    codes: Value,
    loop: Op,
    around: Sequence[Op],
    group: int,
) -> _Sums:
    axes = [(fresh_var(names, loop_var(o).name, extent_of(o)), extent_of(o)) for o in around]
    places = {loop_var(o): v for o, (v, _) in zip(around, axes, strict=True)}
    g, k = fresh_var(names, "g", rows.groups), fresh_var(names, "k", sym(group))
    sums = _alloc(dt.i32, [*(n for _, n in axes), rows.groups], buffer.name)
    at = (*(v for v, _ in axes), g)
    start, write = _Writer(), _Writer()
    start.store(start.number(0, dt.i32), sums, *at)
    row = [places[v] for v in rows.at]
    left = write.cast(write.load(rows.rounded, *row, group * g + k), dt.i32)
    right = write.cast(write.load(codes, group * g + k, found.column.subs(places)), dt.i32)
    write.store(write("add", write.load(sums, *at), write("mul", left, right)), sums, *at)
    loops = nest_of([*axes, (g, rows.groups), (k, sym(group))], write.ops)
    insert_before(loops[-1], start.ops)
    assert sums.op is not None
    return _Sums(sums, [sums.op, loops[0]], loops[:-1], loops[-1])


def _add_groups(
    names: set[str], term: Accumulation, found: _Factors, parts: _Parts, rows: _Rows, sums: _Sums, loop: Op
) -> Op:
    """The loop over groups in the place of that over terms."""
    g = fresh_var(names, "g", rows.groups)
    around = enclosing_loops(loop)
    write = _Writer()
    copies: dict[Value, Value] = {}

    def factor(value: Value) -> Value:
        for op in _needed(value):
            if op.result not in copies:
                write.ops.append(
                    op.clone(copies, lambda attr: substitute(attr, {parts.g: g, parts.column: found.column}))
                )
        return copies[value]

    value = write.load(term.buffer, *term.idx)
    for p in sorted(parts.parts, key=lambda p: p.varies is None):
        if p.varies is None:
            assert rows.total is not None
            found_part, scale = None, write.load(rows.total, *rows.at, g)
        else:
            at = (*map(loop_var, around), g)
            found_part = write.cast(write.load(sums.buffer, *at), dt.f32)
            scale = write.load(rows.scale, *rows.at, g)
        for f in p.factors:
            found_part = factor(f) if found_part is None else write("mul", found_part, factor(f))
        assert found_part is not None
        value = write("sub" if p.negative else "add", value, write("mul", found_part, scale))
    write.store(value, term.buffer, *term.idx)
    (added,) = nest_of([(g, rows.groups)], write.ops)
    insert_before(loop, [added])
    block_of(loop).ops.remove(loop)
    loop.drop()
    return added
