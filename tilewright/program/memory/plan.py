"""The arena: byte offsets for all intermediate tensors, so that tensors that live at different times share memory.

Static sizes are packed as boxes (`packing`). Where a size is symbolic, offsets are expressions that are evaluated at
call time (`symbolic`). Scratch memory of a kernel lies above all tensors that are needed at its step, so that there is
room for any number of threads, or wherever that of a given number fits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tilewright.ir.sym import Sym, maximum, sym
from tilewright.program.memory.effort import FAST, PlanEffort
from tilewright.program.memory.packing.boxes import TimedBox, heights, most_alive
from tilewright.program.memory.packing.pack import pack
from tilewright.program.memory.packing.symbolic import NOTHING, pack_symbolic
from tilewright.runtime.guarded import PAGE

ALIGNMENT = 64
"""Bytes to a multiple of which buffers are aligned: a cache line, and the widest vector."""

TYPICAL_DIM = 64
"""Value that is assumed of an unknown dim where sizes must be compared while planning."""


@dataclass(frozen=True)
class Lifetime:
    """A tensor that needs memory from step `first` to step `last` (inclusive); `size` in bytes."""

    key: int
    size: Sym
    first: int
    last: int


@dataclass(frozen=True)
class ArenaPlan:
    """Byte offset of each tensor by key, the arena's total bytes, and what all tensors would take without sharing.
    `scratch` are the offsets of scratch memory by step; the total counts that of one thread. Of known sizes, `alive` is
    the most that is needed at a step."""

    offsets: dict[int, Sym]
    total: Sym
    unshared: Sym
    scratch: dict[int, Sym] = field(default_factory=dict)
    alive: int = 0


def plan_arena(
    lifetimes: Sequence[Lifetime], effort: PlanEffort = FAST, scratch: Mapping[int, Sym] = NOTHING
) -> ArenaPlan:
    """Offsets for tensors such that no two that live at the same time overlap, and for so many bytes of `scratch`
    memory of one thread at some steps, above all tensors of the step."""
    if all(size.is_const for size in (*(t.size for t in lifetimes), *scratch.values())):
        boxes = [_typical_box(t) for t in lifetimes]
        on_top = {step: aligned_units(size) for step, size in scratch.items()}
        packing, alive = pack(boxes, effort.offsets, on_top), most_alive(boxes, on_top) * ALIGNMENT
        offsets, total = [sym(start * ALIGNMENT) for start in packing.offsets], sym(packing.total * ALIGNMENT)
        ends = heights(boxes, packing.offsets, 1 + max(scratch, default=0))
        tops = {step: sym(int(ends[step]) * ALIGNMENT) for step in scratch}
    else:
        spans = [(t.first, t.last) for t in lifetimes]
        needed = {step: aligned(size) for step, size in scratch.items()}
        placed = pack_symbolic([aligned(t.size) for t in lifetimes], spans, effort.offsets, needed)
        offsets, total, tops, alive = placed.offsets, placed.total, placed.tops, 0
    by_key = {t.key: at for t, at in zip(lifetimes, offsets, strict=True)}
    return ArenaPlan(by_key, total, unshared_bytes(lifetimes), tops, alive)


def plan_for_threads(
    lifetimes: Sequence[Lifetime], effort: PlanEffort, scratch: Mapping[int, Sym], threads: int
) -> ArenaPlan:
    """The same with scratch memory of so many threads wherever there is room for it at its step; the total counts that
    of all."""
    first_key = 1 + max((t.key for t in lifetimes), default=0)
    key_of = {step: first_key + k for k, step in enumerate(scratch)}
    own = [Lifetime(key_of[step], aligned(size) * threads, step, step) for step, size in scratch.items()]
    found = plan_arena([*lifetimes, *own], effort)
    places = {step: found.offsets.pop(key) for step, key in key_of.items()}
    return replace(found, unshared=unshared_bytes(lifetimes), scratch=places)


def plan_in_order(lifetimes: Collection[Lifetime]) -> ArenaPlan:
    """A simple plan, for where no better one can be made: in the order of the program each tensor takes the slot of
    about its size whose last tensor is not needed any more, or a new one. A slot is as large as its largest tensor."""
    slots: list[tuple[int, Sym]] = []  # the step until which each is taken, and its size
    chosen: dict[int, int] = {}
    for t in sorted(lifetimes, key=lambda t: (t.first, t.key)):
        free = [k for k, (last, _) in enumerate(slots) if last < t.first]
        if free:
            k = min(free, key=lambda k: abs(typical(slots[k][1]) - typical(t.size)))
            slots[k] = t.last, maximum(slots[k][1], aligned(t.size))
        else:
            k = len(slots)
            slots.append((t.last, aligned(t.size)))
        chosen[t.key] = k
    starts = list(accumulate((size for _, size in slots), initial=sym(0)))
    return ArenaPlan({key: starts[k] for key, k in chosen.items()}, starts[-1], unshared_bytes(lifetimes))


def plan_apart(lifetimes: Iterable[Lifetime]) -> ArenaPlan:
    """Each tensor at the end of pages of its own, but for what aligns it, with a page behind that is closed."""
    held, start, offsets = tuple(lifetimes), sym(0), {}
    for t in held:
        end = start + (t.size + (PAGE - 1)) // PAGE * PAGE
        offsets[t.key] = end - aligned(t.size)
        start = end + PAGE
    return ArenaPlan(offsets, start, unshared_bytes(held))


def unshared_bytes(lifetimes: Iterable[Lifetime]) -> Sym:
    """What the tensors would take if none of them shared memory."""
    total = sym(0)
    for t in lifetimes:
        total = total + aligned(t.size)
    return total


def bytes_needed(lifetimes: Collection[Lifetime], scratch: Mapping[int, Sym] = NOTHING) -> int:
    """The most bytes that are needed at a step, for typical dims, with scratch memory of one thread: no arena is
    smaller."""
    on_top = {step: aligned_units(size) for step, size in scratch.items()}
    return most_alive([_typical_box(t) for t in lifetimes], on_top) * ALIGNMENT


def aligned_units(size: Sym) -> int:
    """Units of alignment that a tensor of so many bytes takes, for typical dims."""
    return -(-typical(size) // ALIGNMENT)


def _typical_box(t: Lifetime) -> TimedBox:
    return TimedBox(aligned_units(t.size), t.first, t.last)


def aligned(size: Sym) -> Sym:
    """A size with what aligns the next one."""
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def typical(size: Sym) -> int:
    """A size where every unknown dim has a typical value, to compare sizes by; 0 where such values do not define it."""
    try:
        return size.evaluate({v.name: TYPICAL_DIM for v in size.vars})
    except ZeroDivisionError:
        return 0
