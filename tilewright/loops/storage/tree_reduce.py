"""Sums of which threads compute parts: a part for each iteration of a loop, which are added in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.core import Func, Op, Value, insert_before
from tilewright.ir.scalar import identity
from tilewright.ir.sym import ZERO, Sym, ge0, sym
from tilewright.ir.types import ScalarType
from tilewright.loops.analysis.bounds import Ranges
from tilewright.loops.analysis.deps import accesses, accumulators
from tilewright.loops.analysis.region import in_bounds, new_tile, refuse_in_vector, region_of, tile_axes
from tilewright.loops.edit import (
    TakenNames,
    body_of,
    buffer_type,
    describe,
    enclosing_loops,
    extent_of,
    insert_after,
    is_loop,
    kind_of,
    loop_var,
    names_in,
    nest_of,
    ranges_at,
    refuse,
)
from tilewright.loops.primitive import primitive

STEP = "tree_reduce"


@dataclass(frozen=True, eq=False)
class Tree:
    """The buffer of parts, the loops that add these in pairs, and what adds the first one to the sum."""

    parts: Value
    steps: list[Op]
    add: list[Op]


@primitive
def tree_reduce(func: Func, buffer: Value, loop: Op, space: str = "reg") -> Tree:
    """Let each iteration of `loop` sum in a part of its own; the parts are then added in pairs, and to `buffer`.

        for k in 0..4 { C[i] = C[i] + S(k) }

    becomes

        t = alloc reg[4]
        u = alloc reg[2]
        for k in 0..4 { t[k] = 0; t[k] = t[k] + S(k) }
        for j in 0..2 { u[j] = t[j] + t[j + 2] }
        t[0] = u[0] + u[1]
        C[i] = C[i] + t[0]

    The iterations of each of these loops are then independent. ScheduleError where the loop does more with the buffer
    than to accumulate in it by one operation, its extent is no constant of at least 1, or what it touches has no known
    bounds (for "reg": no constant size), for loops that are not serial, and inside of vector loops.
    """
    refuse_in_vector(STEP, buffer, enclosing_loops(loop))
    found = [a for a in accesses(loop) if a.buffer is buffer]
    combine = accumulators(found).get(buffer)
    if combine is None:
        refuse(STEP, buffer, f"{describe(loop)} does more with it than to accumulate by one operation")
    if kind_of(loop) != "serial" or any(is_loop(op) and kind_of(op) == "parallel" for op in loop.walk()):
        refuse(STEP, buffer, f"{describe(loop)} is not serial; this step before parallel")
    count = extent_of(loop)
    if not count.is_const or count.value < 1:
        refuse(STEP, buffer, f"{describe(loop)} has {count} iterations, and parts need a constant number")
    around = ranges_at(loop)
    region = region_of(STEP, buffer, found, around)
    moving = [k for k, n in enumerate(region.sizes) if n != 1]
    sizes = tuple(region.sizes[k] for k in moving)
    tile = new_tile(STEP, buffer, (count, *sizes), space)
    for a in found:
        a.op.set_operands([*a.op.operands[:-1], tile])
        a.op.attrs["idx"] = (loop_var(loop), *(a.op.attrs["idx"][k] - region.start[k] for k in moving))
    parts = _Parts(tile, combine, names_in(func), sizes)
    assert tile.op is not None
    insert_before(loop, [tile.op])
    insert_before(body_of(loop).ops[0], parts.cleared(loop_var(loop)))

    steps: list[Op] = []
    half = (count.value + 1) // 2
    other = replace(parts, buffer=new_tile(STEP, buffer, (sym(half), *sizes), space))
    if half < count.value:
        assert other.buffer.op is not None
        insert_before(loop, [other.buffer.op])
    left = count.value
    while left > 1:
        kept = (left + 1) // 2
        steps += parts.paired(left, kept, other.buffer)
        parts, other, left = other, parts, kept
    offsets = {k: n for n, k in enumerate(moving)}
    added = parts.added(buffer, region.start, offsets, around)
    insert_after(loop, [*steps, *added])
    return Tree(tile, steps, added)


@dataclass(frozen=True)
class _Parts:
    """Writes the loops over the parts of a sum, each of these `sizes`."""

    buffer: Value
    combine: str
    names: TakenNames
    sizes: tuple[Sym, ...]

    @property
    def scalar(self) -> ScalarType:
        return ScalarType(buffer_type(self.buffer).dtype)

    def load(self, source: Value, idx: Sequence[Sym], **attrs: object) -> Op:
        return Op("load", [source], [self.scalar], {"idx": tuple(idx), **attrs})

    def cleared(self, part: Sym) -> list[Op]:
        """A part becomes what a sum begins with."""
        axes = tile_axes(self.names, self.sizes)
        neutral = Op("const", [], [self.scalar], {"value": identity(self.combine, self.scalar.dtype)})
        store = Op("store", [neutral.result, self.buffer], [], {"idx": (part, *(v for v, _ in axes))})
        return _outermost(axes, [neutral, store])

    def paired(self, count: int, distance: int, target: Value) -> list[Op]:
        """The first parts, each with the one that lies so far behind it if there is one, go to a target."""
        axes = tile_axes(self.names, (sym(distance), *self.sizes))
        at = [v for v, _ in axes]
        first = self.load(self.buffer, at)
        limits: dict[str, object] = {}
        if 2 * distance > count:
            limits = {"guard": (ge0(count - 1 - distance - at[0]),), "other": identity(self.combine, self.scalar.dtype)}
        second = self.load(self.buffer, [at[0] + distance, *at[1:]], **limits)
        total = Op(self.combine, [first.result, second.result], [self.scalar])
        store = Op("store", [total.result, target], [], {"idx": tuple(at)})
        return _outermost(axes, [first, second, total, store])

    def added(self, target: Value, start: Sequence[Sym], axis_of: Mapping[int, int], around: Ranges) -> list[Op]:
        """The first part goes to the sum, whose axes are those of a part and others that stand still."""
        axes = tile_axes(self.names, self.sizes)
        at = [v for v, _ in axes]
        place = tuple(s + at[axis_of[k]] if k in axis_of else s for k, s in enumerate(start))
        limits = in_bounds(place, buffer_type(target).shape, around | {v: (v * 0, n - 1) for v, n in axes})
        guard: dict[str, object] = {"guard": limits} if limits else {}
        old = self.load(target, place, **guard, **({"other": 0} if limits else {}))
        part = self.load(self.buffer, [ZERO, *at])
        total = Op(self.combine, [old.result, part.result], [self.scalar])
        return _outermost(axes, [old, part, total, Op("store", [total.result, target], [], {"idx": place} | guard)])


def _outermost(axes: Sequence[tuple[Sym, Sym]], ops: list[Op]) -> list[Op]:
    return [op for op in nest_of(axes, ops) or ops if op.parent is None]
