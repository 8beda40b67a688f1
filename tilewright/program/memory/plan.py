"""The arena: byte offsets for all intermediate tensors, so that tensors that live at different times share memory.

Static sizes are packed as boxes (`packing`). Where a size is symbolic, offsets are expressions that are evaluated at
call time (`symbolic`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tilewright.ir.sym import Sym, maximum, sym
from tilewright.program.memory.effort import FAST, PlanEffort
from tilewright.program.memory.packing.boxes import TimedBox, most_alive
from tilewright.program.memory.packing.pack import pack
from tilewright.program.memory.packing.symbolic import pack_symbolic
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
    """Byte offset of each tensor by key, the arena's total bytes, and what all tensors would take without sharing."""

    offsets: dict[int, Sym]
    total: Sym
    unshared: Sym


def plan_arena(lifetimes: Sequence[Lifetime], effort: PlanEffort = FAST) -> ArenaPlan:
    """Offsets for tensors such that no two that live at the same time overlap."""
    if all(t.size.is_const for t in lifetimes):
        packing = pack([_typical_box(t) for t in lifetimes], effort.offsets)
        offsets, total = [sym(start * ALIGNMENT) for start in packing.offsets], sym(packing.total * ALIGNMENT)
    else:
        spans = [(t.first, t.last) for t in lifetimes]
        offsets, total = pack_symbolic([_aligned(t.size) for t in lifetimes], spans, effort.offsets)
    return ArenaPlan({t.key: at for t, at in zip(lifetimes, offsets, strict=True)}, total, unshared_bytes(lifetimes))


def plan_in_order(lifetimes: Collection[Lifetime]) -> ArenaPlan:
    """A simple plan, for where no better one can be made: in the order of the program each tensor takes the slot of
    about its size whose last tensor is not needed any more, or a new one. A slot is as large as its largest tensor."""
    slots: list[tuple[int, Sym]] = []  # the step until which each is taken, and its size
    chosen: dict[int, int] = {}
    for t in sorted(lifetimes, key=lambda t: (t.first, t.key)):
        free = [k for k, (last, _) in enumerate(slots) if last < t.first]
        if free:
            k = min(free, key=lambda k: abs(typical(slots[k][1]) - typical(t.size)))
            slots[k] = t.last, maximum(slots[k][1], _aligned(t.size))
        else:
            k = len(slots)
            slots.append((t.last, _aligned(t.size)))
        chosen[t.key] = k
    starts = list(accumulate((size for _, size in slots), initial=sym(0)))
    return ArenaPlan({key: starts[k] for key, k in chosen.items()}, starts[-1], unshared_bytes(lifetimes))


def plan_apart(lifetimes: Iterable[Lifetime]) -> ArenaPlan:
    """Each tensor at the end of pages of its own, but for what aligns it, with a page behind that is closed."""
    held, start, offsets = tuple(lifetimes), sym(0), {}
    for t in held:
        end = start + (t.size + (PAGE - 1)) // PAGE * PAGE
        offsets[t.key] = end - _aligned(t.size)
        start = end + PAGE
    return ArenaPlan(offsets, start, unshared_bytes(held))


def unshared_bytes(lifetimes: Iterable[Lifetime]) -> Sym:
    """What the tensors would take if none of them shared memory."""
    total = sym(0)
    for t in lifetimes:
        total = total + _aligned(t.size)
    return total


def bytes_needed(lifetimes: Collection[Lifetime]) -> int:
    """The most bytes that are needed at a step, for typical dims: no arena is smaller."""
    return most_alive([_typical_box(t) for t in lifetimes]) * ALIGNMENT


def aligned_units(size: Sym) -> int:
    """Units of alignment that a tensor of so many bytes takes, for typical dims."""
    return -(-typical(size) // ALIGNMENT)


def _typical_box(t: Lifetime) -> TimedBox:
    return TimedBox(aligned_units(t.size), t.first, t.last)


def _aligned(size: Sym) -> Sym:
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def typical(size: Sym) -> int:
    """A size where every unknown dim has a typical value, to compare sizes by; 0 where such values do not define it."""
    try:
        return size.evaluate({v.name: TYPICAL_DIM for v in size.vars})
    except ZeroDivisionError:
        return 0
