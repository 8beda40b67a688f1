"""Summing in parts, so that long sums stay exact."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Func, Op, Value, insert_before
from tilewright.ir.scalar import identity
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.deps import accesses, accumulators
from tilewright.loops.analysis.region import (
    in_bounds,
    new_tile,
    redirect,
    refuse_in_vector,
    region_of,
    tile_axes,
)
from tilewright.loops.edit import (
    buffer_type,
    describe,
    enclosing_loops,
    insert_after,
    is_loop,
    kind_of,
    names_in,
    nest_of,
    ranges_at,
    refuse,
)
from tilewright.loops.primitive import primitive

STEP = "rfactor"


@dataclass(frozen=True, eq=False)
class Rfactored:
    """The tile of partial sums, the loops that clear it, and those that add it to the buffer."""

    buffer: Value
    clear: list[Op]
    add: list[Op]


@primitive
def rfactor(func: Func, buffer: Value, loop: Op, space: str = "reg") -> Rfactored:
    """Let `loop` sum from nothing in a tile of its own, and add that to `buffer` afterwards.

        for k in 0..8 { C[i] = C[i] + S(k) }

    becomes

        t = alloc reg[1]
        t[0] = 0
        for k in 0..8 { t[0] = t[0] + S(k) }
        C[i] = C[i] + t[0]

    Rounding errors then grow with the length of a part and with the number of parts, not with their product
    (Higham, The accuracy of floating point summation, 1993). ScheduleError when the loop does more with the
    buffer than to accumulate in it by one operation, or what it touches has no known bounds (for "reg": no
    constant size), and inside of vector loops.
    """
    refuse_in_vector(STEP, buffer, enclosing_loops(loop))
    found = [a for a in accesses(loop) if a.buffer is buffer]
    combine = accumulators(found).get(buffer)
    if combine is None:
        refuse(STEP, buffer, f"{describe(loop)} does more with it than to accumulate by one operation")
    if any(is_loop(op) and kind_of(op) == "parallel" for op in loop.walk()):
        refuse(STEP, buffer, "it would be added up beside the parallel loop; this step before parallel")
    around = ranges_at(loop)
    region = region_of(STEP, buffer, found, around)
    tile = new_tile(STEP, buffer, region.sizes, space)
    for a in found:
        redirect(a.op, tile, region.start)
    names = names_in(func)
    dtype = buffer_type(buffer).dtype
    scalar = ScalarType(dtype)

    axes = tile_axes(names, region.sizes)
    at = tuple(v for v, _ in axes)
    neutral = Op("const", [], [scalar], {"value": identity(combine, dtype)})
    cleared = [neutral, Op("store", [neutral.result, tile], [], {"idx": at})]
    clear = nest_of(axes, cleared) or cleared
    assert tile.op is not None
    insert_before(loop, [tile.op, *(op for op in clear if op.parent is None)])

    axes = tile_axes(names, region.sizes)
    at = tuple(v for v, _ in axes)
    place = tuple(s + v for s, v in zip(region.start, at, strict=True))
    limits = in_bounds(place, buffer_type(buffer).shape, around | {v: (v * 0, n - 1) for v, n in axes})
    guard: dict[str, object] = {"guard": limits} if limits else {}
    old = Op("load", [buffer], [scalar], {"idx": place} | guard | ({"other": 0} if limits else {}))
    part = Op("load", [tile], [scalar], {"idx": at})
    total = Op(combine, [old.result, part.result], [scalar])
    added = [old, part, total, Op("store", [total.result, buffer], [], {"idx": place} | guard)]
    add = nest_of(axes, added) or added
    insert_after(loop, [op for op in add if op.parent is None])
    return Rfactored(tile, clear, add)
