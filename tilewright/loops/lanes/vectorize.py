"""Running iterations in the lanes of a vector."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tilewright.ir.core import Func, Op, Value, insert_before
from tilewright.ir.scalar import identity
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import ScalarType
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.deps import (
    Accumulation,
    accesses,
    accumulation_of,
    conflicts,
    ordered,
    separated,
)
from tilewright.loops.edit import (
    TakenNames,
    body_of,
    bound_in,
    buffer_type,
    describe,
    extent_of,
    fresh_var,
    holds_parallel,
    insert_after,
    is_inside,
    is_loop,
    kind_of,
    loop_var,
    names_in,
    new_loop,
    ranges_at,
    refuse,
    set_kind,
)
from tilewright.loops.order.split import Split, split
from tilewright.loops.primitive import primitive
from tilewright.loops.spec import NOT_IN_LANES

MAX_LANES = 64
REDUCTION = "vectorize_reduction"


@primitive
def vectorize(func: Func, loop: Op, lanes: int | None = None, tail: str = "guard") -> Split:
    """Run `lanes` iterations at once; the inner loop of the result is the vector loop.

        for i in 0..n { S }

    becomes, with lanes=8 and tail "guard" (see `split`)

        for io in 0..ceildiv(n, 8) { for ii in 0..8 vector { if 8*io + ii < n { S } } }

    Without `lanes` (or with the extent itself) the loop is marked as it is: then outer and inner are the
    loop. ScheduleError when the body holds loops that are not unrolled or registers of its own, when lanes
    may touch the same element in another order than iterations would, or for more than 64 lanes.
    """
    _check_lanes(loop, lanes, tail)
    _check_body(loop)
    _check_lanes_apart(loop)
    n = extent_of(loop)
    parts = Split(loop, loop, None) if lanes is None or n is sym(lanes) else split(func, loop, lanes, tail)
    set_kind(parts.inner, "vector")
    return parts


def _check_lanes(loop: Op, lanes: int | None, tail: str) -> None:
    n = extent_of(loop)
    if tail == "short":
        refuse("vectorize", loop, "a vector has as many lanes in each iteration; use another tail than 'short'")
    if kind_of(loop) not in ("serial", "parallel") or (kind_of(loop) == "parallel" and lanes is None):
        refuse("vectorize", loop, f"it is a {kind_of(loop)} loop already")
    if lanes is None and not n.is_const:
        refuse("vectorize", loop, "its extent is not a constant; give the number of lanes")
    width = lanes if lanes is not None else n.value
    if not 1 <= width <= MAX_LANES:
        refuse("vectorize", loop, f"{width} lanes are not within 1..{MAX_LANES}; give a number of lanes")


def _check_body(loop: Op) -> None:
    for op in body_of(loop).walk():
        if is_loop(op) and kind_of(op) not in ("unroll", "dot"):
            refuse("vectorize", loop, f"{describe(op)} is inside of it; unroll it or move it out")
        if op.name in NOT_IN_LANES:
            refuse("vectorize", loop, f"there is an '{op.name}' inside of it")


def _check_lanes_apart(loop: Op, exempt: AbstractSet[Value] = frozenset()) -> None:
    """Lanes run op by op, not iteration by iteration; `exempt` buffers are known to allow that."""
    body = body_of(loop)
    found = [a for a in accesses(body) if a.buffer not in exempt]
    outer = ranges_at(loop)
    straight = not any(is_loop(op) for op in body.walk())
    for k, a in enumerate(found):
        for _, b in conflicts([a], found[k:]):
            in_order = straight and a is not b and ordered(a, b, loop, outer)
            if not in_order and loop not in separated(a, b, [loop], outer):
                refuse(
                    "vectorize", loop,
                    f"iterations may meet in {describe(a.buffer)}, {a.place} and {b.place}; "
                    "an accumulation needs vectorize_reduction",
                )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Lanes:
    """Loops of a vectorised reduction, and the register buffer of each accumulation."""

    outer: Op
    inner: Op
    tail: Op | None
    registers: list[Value] = field(default_factory=list)


@primitive
def vectorize_reduction(
    func: Func, loop: Op, lanes: int, within: Op | None = None, tail: str = "guard"
) -> Lanes:
    """Accumulate in `lanes` separate sums, which are added up after loop `within` (by default `loop`
    itself).

        for k in 0..n { acc[i] = acc[i] + S(k) }

    becomes

        s = alloc reg[8]
        for l in 0..8 vector { s[l] = 0 }
        for ko in 0..ceildiv(n, 8) { for ki in 0..8 vector { if 8*ko + ki < n { s[ki] = s[ki] + S } } }
        acc[i] = acc[i] + lanes_reduce(s)

    ScheduleError when `loop` accumulates nothing, when the accumulated element changes between the loops or
    is used otherwise in `within`, or when anything else in the body keeps lanes from running in lockstep.
    """
    within = within or loop
    _check_lanes(loop, lanes, tail)
    _check_body(loop)
    if within is not loop and not is_inside(loop, within):
        refuse(REDUCTION, loop, f"{describe(within)} is not around it")
    if holds_parallel(within):
        refuse(
            REDUCTION, loop, f"threads share a loop in {describe(within)}, and have registers of their own"
        )
    before = _accumulations(loop, within)
    _check_lanes_apart(loop, {s.buffer for s in before})
    parts = split(func, loop, lanes, tail)
    set_kind(parts.inner, "vector")
    inside = {id(op) for op in parts.inner.walk()}
    names = names_in(func)
    registers = [
        _into_lanes(s, within, loop_var(parts.inner), lanes, names) for s in before if id(s.store) in inside
    ]  # fmt: skip
    return Lanes(parts.outer, parts.inner, parts.tail, registers)


def _accumulations(loop: Op, within: Op) -> list[Accumulation]:
    """The accumulations of the loop into elements that stand still in `within` and are used nowhere else in
    it."""
    moving = {loop_var(o) for o in within.walk() if is_loop(o)} | bound_in([within])
    everywhere = accesses(within)
    sums: list[Accumulation] = []
    for op in body_of(loop).walk():
        found = accumulation_of(op) if op.name == "store" else None
        if found is None:
            continue
        users = {a.op for a in everywhere if a.buffer is found.buffer}
        if users != {found.store, found.load}:
            refuse(
                REDUCTION,
                loop,
                f"{describe(found.buffer)} is used by more than one accumulation in {describe(within)}",
            )
        for i in found.idx:
            if i.vars & moving:
                refuse(REDUCTION, loop, f"the accumulated element of {describe(found.buffer)} moves with {i}")
        sums.append(found)
    if not sums:
        refuse(REDUCTION, loop, "it accumulates nothing by an associative operation")
    return sums


def _into_lanes(found: Accumulation, within: Op, lane: Sym, lanes: int, names: TakenNames) -> Value:
    """Accumulate in a register of `lanes` elements, which is added up after `within`."""
    dtype = buffer_type(found.buffer).dtype
    scalar = ScalarType(dtype)
    target, idx, combine = found.buffer, found.idx, found.combine.name
    alloc = Op("alloc", [], [dense(dtype, (lanes,), "reg")])
    register = alloc.result
    register.name = f"{target.name}_lanes"
    v = fresh_var(names, "lane", sym(lanes))
    neutral = Op("const", [], [scalar], {"value": identity(combine, dtype)})
    clear = new_loop(
        v, sym(lanes), [neutral, Op("store", [neutral.result, register], [], {"idx": (v,)})], "vector"
    )
    insert_before(within, [alloc, clear])
    for op in (found.load, found.store):
        op.set_operands([*op.operands[:-1], register])
        op.attrs["idx"] = (lane,)
    total = Op("lanes_reduce", [register], [scalar], {"combine": combine})
    old = Op("load", [target], [scalar], {"idx": idx})
    new = Op(combine, [old.result, total.result], [scalar])
    insert_after(within, [total, old, new, Op("store", [new.result, target], [], {"idx": idx})])
    return register
