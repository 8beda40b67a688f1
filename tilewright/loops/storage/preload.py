"""Reading what a nest of loops needs before it runs, in an order of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Func, Op, Value, insert_before, substitute
from tilewright.ir.sym import Sym
from tilewright.ir.types import ScalarType
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.deps import accesses, written_buffers
from tilewright.loops.analysis.region import in_bounds, refuse_in_vector
from tilewright.loops.edit import (
    base_name,
    bound_in,
    buffer_type,
    describe,
    enclosing,
    enclosing_loops,
    extent_of,
    fresh_var,
    holds_parallel,
    is_inside,
    loop_var,
    names_in,
    nest_of,
    ranges_at,
    refuse,
)
from tilewright.loops.primitive import primitive

STEP = "preload"


@dataclass(frozen=True, eq=False)
class Preloaded:
    """The registers that hold the elements, and the loops that fill them, outermost first."""

    buffer: Value
    fill: list[Op]


@primitive
def preload(func: Func, load: Op, *loops: Op) -> Preloaded:
    """Read the elements that one load reads in nested loops before them, in the order `loops` are given here.

        for a in 0..8 { for b in 0..8 { S(x[b, a]) } }

    becomes, for the loops b, a

        t = alloc reg[8, 8]
        for b in 0..8 { for a in 0..8 { t[b, a] = x[b, a] } }
        for a in 0..8 { for b in 0..8 { S(t[b, a]) } }

    ScheduleError when the loops are not all around the load, have no constant extents or are vectors already, when
    the load depends on data or on other loops inside of them, or when they write what it reads. Conditions around
    the load become its own where it may be out of bounds without them.
    """
    around = enclosing_loops(load)
    source = load.operands[0]
    if load.name != "load" or not loops or any(o not in around for o in loops):
        refuse(STEP, source, "the loops are not all around the load")
    first = min(loops, key=around.index)
    refuse_in_vector(STEP, source, [*enclosing_loops(first), *loops])
    if holds_parallel(first):
        refuse(STEP, source, f"threads share a loop in {describe(first)}, and have registers of their own")
    if not all(extent_of(o).is_const for o in loops):
        refuse(STEP, source, "registers need loops of constant extents")
    inside = {loop_var(o) for o in around[around.index(first) :]} - {loop_var(o) for o in loops}
    guard = _guard_of(load, first)
    read = frozenset[Sym]().union(*(i.vars for i in (*load.attrs["idx"], *guard)))
    if read & (inside | bound_in([first])):
        refuse(STEP, source, "its position moves with data, or with other loops inside of them")
    if source in written_buffers(accesses(first)):
        refuse(STEP, source, f"{describe(first)} writes it")
    return _read_before(func, load, loops, first, guard)


def _guard_of(load: Op, first: Op) -> tuple[Sym, ...]:
    """When the load may happen: its own guard, and the conditions around it that keep it inside of the buffer."""
    own: tuple[Sym, ...] = load.attrs.get("guard", ())
    around = [op for op in enclosing(load) if op.name == "if" and is_inside(op, first)]
    if not own and not in_bounds(load.attrs["idx"], buffer_type(load.operands[0]).shape, ranges_at(load)):
        return ()
    if any(op.operands for op in around):
        refuse(STEP, load.operands[0], "a condition around the load is computed from data")
    return tuple(dict.fromkeys((*(c for op in around for c in op.attrs["guard"]), *own)))


def _read_before(func: Func, load: Op, loops: Sequence[Op], first: Op, guard: tuple[Sym, ...]) -> Preloaded:
    source = load.operands[0]
    dtype = buffer_type(source).dtype
    alloc = Op("alloc", [], [dense(dtype, [extent_of(o) for o in loops], "reg")])
    tile = alloc.result
    tile.name = source.name
    names = names_in(func)
    axes = [(fresh_var(names, base_name(loop_var(o)), extent_of(o)), extent_of(o)) for o in loops]
    moved = {loop_var(o): v for o, (v, _) in zip(loops, axes, strict=True)}
    read = load.attrs | ({"guard": guard, "other": load.attrs.get("other", 0)} if guard else {})
    moved_read = {key: substitute(attr, moved) for key, attr in read.items()}
    early = Op("load", [source], [ScalarType(dtype)], moved_read)
    store = Op("store", [early.result, tile], [], {"idx": tuple(v for v, _ in axes)})
    fill = nest_of(axes, [early, store])
    load.set_operands([tile])
    load.attrs.clear()
    load.attrs["idx"] = tuple(loop_var(o) for o in loops)
    insert_before(first, [alloc, fill[0]])
    return Preloaded(tile, fill)
