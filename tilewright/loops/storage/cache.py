"""Keeping part of a buffer in a small, fast buffer while it is used."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.core import Func, Op, Value, insert_before
from tilewright.ir.sym import sym
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.bounds import Box
from tilewright.loops.analysis.deps import accesses, private_buffers, written_buffers
from tilewright.loops.analysis.region import (
    copy_nest,
    covers,
    in_bounds,
    new_tile,
    redirect,
    refuse_in_vector,
    region_of,
    tile_axes,
    written_first,
)
from tilewright.loops.edit import (
    block_of,
    buffer_type,
    describe,
    enclosing_loops,
    holds_parallel,
    insert_after,
    kind_of,
    names_in,
    nest_of,
    ranges_at,
    refuse,
)
from tilewright.loops.kernel_info import results_of
from tilewright.loops.primitive import primitive


@dataclass(frozen=True, eq=False)
class Cached:
    """The tile, and the loops that fill it and write it back (empty where there is nothing to copy)."""

    buffer: Value
    fill: list[Op] = field(default_factory=list)
    drain: list[Op] = field(default_factory=list)


@primitive
def cache(
    func: Func, buffer: Value, first: Op, last: Op | None = None, space: str = "reg", read: int = -1,
    zeros: bool = False,
) -> Cached:
    """Use a tile instead of `buffer` from op `first` to op `last` of the same block (by default just
    `first`).

        for k { C[i, j] = C[i, j] + S }

    becomes

        acc = alloc reg
        acc[0, 0] = C[i, j]
        for k { acc[0, 0] = acc[0, 0] + S }
        C[i, j] = acc[0, 0]

    A load that may give any value where its condition does not hold (it has no `other`) loses that, and with `zeros`
    so does one that is 0 outside of the buffer, which is what the tile has there.

    With `read` the tile is for one of several reads of the buffer, by its number in their order: parts that lie far
    from each other then have tiles of their own.

    The tile is filled before unless the first access overwrites all of it, and written back when it was
    changed. ScheduleError when the part that is used has no known bounds (for "reg": no constant size), or
    when elements that are not certainly written would be written back inside of a parallel loop; with `read` also when
    the buffer is written, or has not so many reads.
    """
    refuse_in_vector("cache", buffer, enclosing_loops(first))
    block = block_of(first)
    last = last or first
    if last.parent is not block or block.ops.index(last) < block.ops.index(first):
        refuse("cache", buffer, f"{describe(last)} does not follow {describe(first)} in the same block")
    scope = block.ops[block.ops.index(first) : block.ops.index(last) + 1]
    if any(map(holds_parallel, scope)):
        refuse("cache", buffer, "it would be copied beside the parallel loop; cache before parallel")
    found = [a for a in accesses(scope) if a.buffer is buffer]
    if not found:
        refuse("cache", buffer, f"{describe(first)} does not use it")
    if read >= 0:
        if read >= len(found) or any(a.write for a in found):
            refuse("cache", buffer, f"it has no read {read} beside others, or is written")
        found = [found[read]]
    if buffer in private_buffers(scope):
        refuse("cache", buffer, "it is allocated in between")
    around = ranges_at(first)
    region = region_of("cache", buffer, found, around)
    tile = new_tile("cache", buffer, region.sizes, space)
    writes = [a for a in found if a.write]
    surely = bool(writes) and any(covers(a, region) for a in writes)
    if writes and not surely and any(kind_of(o) == "parallel" for o in enclosing_loops(first)):
        refuse(
            "cache",
            buffer,
            "not all of the tile is certainly written, which another thread might do; cache first",
        )
    names = names_in(func)
    fill = (
        [] if written_first(found, region) else copy_nest(names, buffer, tile, region, around, into_tile=True)
    )
    drain = copy_nest(names, tile, buffer, region, around, into_tile=False) if writes else []
    for a in found:
        is_spare = not writes and ("other" not in a.op.attrs or (zeros and _is_of_bounds(a.op)))
        redirect(a.op, tile, region.start)
        if is_spare:
            _drop_spare_guard(a.op)
    assert tile.op is not None
    insert_before(first, [tile.op, *_roots(fill)])
    insert_after(last, _roots(drain))
    return Cached(tile, fill, drain)


def _is_of_bounds(load: Op) -> bool:
    """Whether a load is 0 outside of its buffer, and only there."""
    limits = in_bounds(load.attrs["idx"], buffer_type(load.operands[0]).shape, {})
    return load.attrs["other"] == 0 and set(load.attrs["guard"]) <= set(limits)


def _drop_spare_guard(load: Op) -> None:
    """A load that reads within the tile without its condition gives what the tile holds."""
    if not in_bounds(load.attrs["idx"], buffer_type(load.operands[0]).shape, ranges_at(load)):
        load.attrs.pop("guard", None)
        load.attrs.pop("other", None)


def _roots(nest: list[Op]) -> list[Op]:
    """The outermost of nested loops; the ops themselves when there are no loops."""
    return [op for op in nest if op.parent is None]


@primitive
def cache_write(func: Func, buffer: Value, space: str = "scratch") -> Cached:
    """Compute an output argument, or a local buffer, in a buffer of its own, which a new nest copies out.

        for i in 0..n { C[i] = S }    ->    for i in 0..n { t[i] = S }; for j in 0..n { C[j] = t[j] }

    The copy can then be tiled and `compute_at` brings the computation into its tiles. It stands after the last op that
    writes the buffer; what only reads the buffer goes on to do so. ScheduleError when the buffer is neither output
    nor local, or is not certainly written as a whole before it is read.
    """
    home = func.body if buffer.op is None else block_of(buffer.op)
    if buffer.op is None and buffer not in results_of(func):
        refuse("cache_write", buffer, "it is not an output of the kernel")
    producers = [op for op in home.ops if buffer in written_buffers(accesses(op))]
    if not producers:
        refuse("cache_write", buffer, "nothing writes it")
    for op in home.ops[home.ops.index(producers[0]) : home.ops.index(producers[-1])]:
        if op not in producers and any(a.buffer is buffer for a in accesses(op)):
            refuse("cache_write", buffer, f"{describe(op)} reads it before all of it is written")
    type = buffer_type(buffer)
    whole = Box(tuple(sym(0) for _ in type.shape), type.shape)
    if not written_first([a for a in accesses(home) if a.buffer is buffer], whole):
        refuse(
            "cache_write", buffer, "it is not certain that all of it is written, and before anything is read"
        )
    if any(map(holds_parallel, producers)):
        refuse("cache_write", buffer, "the kernel is parallel already; cache_write before that")
    tile = new_tile("cache_write", buffer, type.shape, space)
    inside = {o for op in producers for o in op.walk()}
    for op in [u for u in dict.fromkeys(buffer.users) if u in inside]:
        op.set_operands([*op.operands[:-1], tile])
    names = names_in(func)
    axes = tile_axes(names, type.shape)
    idx = tuple(v for v, _ in axes)
    load = Op("load", [tile], [ScalarType(type.dtype)], {"idx": idx})
    store = Op("store", [load.result, buffer], [], {"idx": idx})
    drain = nest_of(axes, [load, store])
    assert tile.op is not None
    insert_before(producers[0], [tile.op])
    insert_after(producers[-1], [drain[0]] if drain else [load, store])
    return Cached(tile, [], drain)
