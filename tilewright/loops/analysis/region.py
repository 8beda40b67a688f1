"""Tiles: the region of a buffer that a piece of program uses, and copying it from and to a buffer of its
own."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op, Value
from tilewright.ir.sym import ONE, ZERO, Sym, ge0, sym, upper
from tilewright.ir.types import ScalarType
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.bounds import Box, Ranges, box, holds
from tilewright.loops.analysis.deps import Access
from tilewright.loops.edit import (
    TakenNames,
    buffer_type,
    describe,
    extent_of,
    fresh_var,
    kind_of,
    loop_range,
    loop_var,
    nest_of,
    ranges_of,
    refuse,
)


def region_of(step: str, buffer: Value, found: Sequence[Access], around: Ranges) -> Box:
    """The box that the accesses touch while the loops of `around` stand still; its sizes read none of their
    variables. ScheduleError when it has no known bounds or an access depends on data."""
    for a in found:
        if a.unknown:
            refuse(
                step,
                buffer,
                f"it is accessed at a position that depends on data, [{', '.join(map(str, a.idx))}]",
            )
    region = box([a.idx for a in found], [ranges_of(a.loops) for a in found])
    if region is None:
        refuse(step, buffer, "the part that is used has no known bounds")
    sizes: list[Sym] = []
    for axis, size in enumerate(region.sizes):
        bound = upper(size, around)
        if bound is None:
            refuse(
                step,
                buffer,
                f"the part of axis {axis} that is used has size {size}, which has no known bound",
            )
        sizes.append(bound)
    return Box(region.start, tuple(sizes))


def refuse_in_vector(step: str, buffer: Value, around: Sequence[Op]) -> None:
    """ScheduleError when one of these loops is a vector loop: lanes hold no buffers and no loops."""
    for loop in around:
        if kind_of(loop) == "vector":
            refuse(step, buffer, f"it would be copied inside of {describe(loop)}; vectorize after this step")


def new_tile(step: str, like: Value, shape: Sequence[Sym], space: str) -> Value:
    """A buffer of this shape with the dtype and name of `like`; its `alloc` is in no block yet. ScheduleError for
    registers without a constant size."""
    if space == "reg" and not all(s.is_const for s in shape):
        refuse(step, like, f"a register tile needs a constant size, not [{', '.join(map(str, shape))}]")
    alloc = Op("alloc", [], [dense(buffer_type(like).dtype, shape, space)])
    alloc.result.name = like.name
    return alloc.result


def redirect(op: Op, tile: Value, start: Sequence[Sym]) -> None:
    """Make a load or store use `tile`, which begins at `start` of the buffer that it used."""
    op.set_operands([*op.operands[:-1], tile])
    op.attrs["idx"] = tuple(i - s for i, s in zip(op.attrs["idx"], start, strict=True))


def in_bounds(idx: Sequence[Sym], shape: Sequence[Sym], ranges: Ranges) -> tuple[Sym, ...]:
    """The conditions for `idx` to be in a buffer of this shape that do not hold for certain."""
    limits = [c for i, n in zip(idx, shape, strict=True) for c in (ge0(i), ge0(n - 1 - i))]
    return tuple(c for c in limits if holds(c, ranges) is not True)


def tile_axes(names: TakenNames, sizes: Sequence[Sym]) -> list[tuple[Sym, Sym]]:
    """Fresh loop variables over a tile, with their extents."""
    return [(fresh_var(names, "t", size), size) for size in sizes]


def copy_nest(
    names: TakenNames, source: Value, target: Value, region: Box, around: Ranges, *, into_tile: bool
) -> list[Op]:
    """Loops that copy a region of a buffer into a tile (`into_tile`), or a tile to the region; at least one
    op.

    Positions outside of the big buffer are read as zeros and not written.
    """
    axes = tile_axes(names, region.sizes)
    inner = tuple(v for v, _ in axes)
    outer = tuple(s + v for s, v in zip(region.start, inner, strict=True))
    big = source if into_tile else target
    ranges = around | {v: (v * 0, size - 1) for v, size in axes}
    limits = in_bounds(outer, buffer_type(big).shape, ranges)
    read: dict[str, object] = {"idx": outer if into_tile else inner}
    write: dict[str, object] = {"idx": inner if into_tile else outer}
    if limits and into_tile:
        read |= {"guard": limits, "other": 0}
    elif limits:
        write["guard"] = limits
    load = Op("load", [source], [ScalarType(buffer_type(source).dtype)], read)
    store = Op("store", [load.result, target], [], write)
    return nest_of(axes, [load, store]) or [load, store]


def covers(access: Access, region: Box, around: Ranges | None = None) -> bool:
    """Whether a store, over the loops around it, certainly fills the region; `around` are those that stand still."""
    if access.conditional or access.unknown:
        return False
    ranges = ranges_of(access.loops)
    moving = frozenset[Sym]().union(*(i.vars for i in access.idx))
    if any(loop_var(o) not in moving and not holds(ge0(extent_of(o) - 1), ranges) for o in access.loops):
        return False  # a loop that may run no time at all
    extents = {loop_var(o): loop_range(o)[1] + 1 for o in access.loops}
    used: set[Sym] = set()
    for i, start, size in zip(access.idx, region.start, region.sizes, strict=True):
        offset = ZERO if _is_same(i, start, around or {}) else i - start
        if used & offset.vars:
            return False
        used |= offset.vars
        if not _fills(offset, extents, size):
            return False
    return True


def written_first(found: Sequence[Access], region: Box, around: Ranges | None = None) -> bool:
    """Whether the first access (with the loops around it) fills the region before anything is read.

    Reads in the same nest come after it when they read just the element that it wrote, in whatever words: along an
    axis of one element that is position 0 as well as the variable of a loop (of `around`, or one inside).
    """
    first = found[0]
    if not first.write or not covers(first, region, around):
        return False
    nest = first.loops[0] if first.loops else None
    same_nest = [a for a in found if not a.write and a.loops and a.loops[0] is nest]
    ranges = (around or {}) | ranges_of(first.loops)
    return all(_is_same(i, j, ranges) for a in same_nest for i, j in zip(a.idx, first.idx, strict=True))


def _is_same(a: Sym, b: Sym, ranges: Ranges) -> bool:
    return a is b or (holds(ge0(a - b), ranges) is True and holds(ge0(b - a), ranges) is True)


def _fills(offset: Sym, extents: dict[Sym, Sym], size: Sym) -> bool:
    """Whether `offset` takes every value of 0..size: a mixed-radix number of loop variables."""
    reached = ONE
    if offset is not ZERO:
        for v, coef in sorted(offset.terms, key=lambda term: term[1]):
            if v not in extents or reached is not sym(coef):
                return False
            reached = coef * extents[v]
    return reached is size
