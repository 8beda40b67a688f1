"""Slices, at places that are known or computed, and their updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.frontends.stablehlo.adapters.complexes import as_pair
from tilewright.frontends.stablehlo.node import ProgramOp, adapter
from tilewright.frontends.stablehlo.values import ComplexPair, Held, LoopRows, as_value, each
from tilewright.frontends.translation import Translation, type_of
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.index import gather
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import concat, reshape, shape_of, slice_


@adapter("slice")
def _slice(node: ProgramOp) -> Held:
    starts, limits, steps = (node.integers(n) for n in ("start_indices", "limit_indices", "strides"))
    sizes = [s.ceildiv(sym(b) - a, n) for a, b, n in zip(starts, limits, steps, strict=True)]
    return each(node.held(0), lambda x: part(x, [sym(a) for a in starts], sizes, steps))


@adapter("real_dynamic_slice")
def _real_dynamic_slice(node: ProgramOp) -> Held:
    starts, limits, steps = node.symbols(1), node.symbols(2), node.symbols(3)
    if not all(n.is_const for n in steps):
        raise node.translation.must_be_known(node.x(3), "the steps of a slice must be known")
    sizes = [s.ceildiv(b - a, n.value) for a, b, n in zip(starts, limits, steps, strict=True)]
    return each(node.held(0), lambda x: part(x, starts, sizes, [n.value for n in steps]))


def part(x: Value, starts: Sequence[Sym], sizes: Sequence[Sym], steps: Sequence[int]) -> Value:
    """A slice; x itself where that is all of it."""
    own = shape_of(x)
    if all(a == 0 and n == d and k == 1 for a, n, d, k in zip(starts, sizes, own, steps, strict=True)):
        return x
    return slice_(x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


@adapter("dynamic_slice")
def _dynamic_slice(node: ProgramOp) -> Held:
    sizes = [sym(n) for n in node.integers("slice_sizes")]
    starts = [as_value(o) for o in node.operands[1:]]
    return each(node.held(0), lambda x: taken(node.translation, x, starts, sizes))


def _known(translation: Translation, start: Value) -> Sym | None:
    """A place that follows from numbers and dims."""
    if (number := translation.constant_of(start)) is not None:
        return sym(int(number.reshape(())))
    found = translation.symbols_of(start)
    return None if found is None else sym(found.reshape(-1)[0])


def _inside(place: Sym, size: Sym, dim: Sym) -> Sym:
    return s.minimum(s.maximum(place, 0), dim - size)


def clamped(start: Value, size: Sym, dim: Sym) -> Value:
    """A computed place (i64), moved to where a slice of `size` lies inside of an axis."""
    wide = start if type_of(start).dtype == dt.i64 else ew.cast(start, dtype=dt.i64)
    last = dim_value(dim - size)
    return ew.max_(ew.min_(wide, last), dim_value(0))


def taken(translation: Translation, x: Value, starts: Sequence[Value], sizes: Sequence[Sym]) -> Value:
    """The part of x of these sizes that begins at computed places: axes whose places are known first."""
    shape = shape_of(x)
    begins, computed = [], []
    for axis, (start, size, d) in enumerate(zip(starts, sizes, shape, strict=True)):
        place = sym(0) if size == d else _known(translation, start)
        begins.append(sym(0) if place is None else _inside(place, size, d))
        if place is None:
            computed.append(axis)
    known = [d if k in computed else n for k, (n, d) in enumerate(zip(sizes, shape, strict=True))]
    x = part(x, begins, known, (1,) * len(shape))
    for axis in computed:
        places = reshape(clamped(starts[axis], sizes[axis], shape[axis]), shape=(1,))
        if sizes[axis] != 1:
            places = ew.add(places, iota(shape=(sizes[axis],), axis=0))
        x = gather(x, places, axis=axis)
    return x


@adapter("dynamic_update_slice")
def _dynamic_update_slice(node: ProgramOp) -> Held:
    x, update = node.held(0), node.held(1)
    starts = [as_value(o) for o in node.operands[2:]]
    if isinstance(x, LoopRows):
        return _row(node, x, as_value(update), starts)
    if isinstance(x, ComplexPair) or isinstance(update, ComplexPair):
        a, b = as_pair(x), as_pair(update)
        real = updated(node.translation, a.real, b.real, starts)
        return ComplexPair(real, updated(node.translation, a.imaginary, b.imaginary, starts))
    return updated(node.translation, x, as_value(update), starts)


def _row(node: ProgramOp, rows: LoopRows, update: Value, starts: Sequence[Value]) -> Held:
    """The row that this trip of a loop puts; its place is for the loop to judge."""
    shape, own = shape_of(update), shape_of(rows.like)
    if rows.update is not None or shape[0] != 1 or shape[1:] != own[1:] or len(starts) != len(own):
        as_value(rows)
    node.importer.note_row(rows.state, starts[0])
    return replace(rows, update=reshape(update, shape=shape[1:]))


def updated(translation: Translation, x: Value, update: Value, starts: Sequence[Value]) -> Value:
    """x with `update` in place of the part that begins at these places."""
    shape, sizes = shape_of(x), shape_of(update)
    places = [_known(translation, v) for v in starts]
    places = [sym(0) if n == d else p for p, n, d in zip(places, sizes, shape, strict=True)]
    if all(p is not None for p in places):
        known = [_inside(p, n, d) for p, n, d in zip(places, sizes, shape, strict=True) if p is not None]
        return _replaced(x, update, known, 0)
    inside = None
    for axis, (start, place, size, d) in enumerate(zip(starts, places, sizes, shape, strict=True)):
        if size == d:
            continue
        begin = clamped(start, size, d) if place is None else dim_value(_inside(place, size, d))
        offset = ew.sub(iota(shape=(d,), axis=0), begin)
        zero, last = (dim_value(n) for n in (sym(0), size - 1))
        along = ew.and_(ew.le(zero, offset), ew.le(offset, last))
        along = reshape(along, shape=tuple(d if k == axis else 1 for k in range(len(shape))))
        inside = along if inside is None else ew.and_(inside, along)
        if size != 1:  # one element is the same everywhere
            update = gather(update, ew.max_(ew.min_(offset, last), zero), axis=axis)
    return update if inside is None else ew.select(inside, update, x)


def _replaced(x: Value, update: Value, places: Sequence[Sym], axis: int) -> Value:
    """By the parts before and behind, axis by axis."""
    shape, sizes = shape_of(x), shape_of(update)
    rank = len(shape)
    while axis < rank and sizes[axis] == shape[axis]:
        axis += 1
    if axis == rank:
        return update

    def cut(start: Sym, size: Sym) -> Value:
        starts = [start if k == axis else sym(0) for k in range(rank)]
        return part(x, starts, [size if k == axis else d for k, d in enumerate(shape)], (1,) * rank)

    begin, size = places[axis], sizes[axis]
    middle = _replaced(cut(begin, size), update, places, axis + 1)
    end = shape[axis] - begin - size
    parts = [cut(sym(0), begin)] if begin != 0 else []
    parts.append(middle)
    if end != 0:
        parts.append(cut(begin + size, end))
    return concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
