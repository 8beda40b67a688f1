"""The arena: byte offsets for all intermediate tensors, so that tensors that live at different times share memory.

Static sizes are packed exactly (greedy by size: Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020). As soon as a size is symbolic, tensors share slots instead: a slot is as large as the largest of
its tensors, slots lie one after the other, and their offsets are expressions evaluated at call time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tilewright.ir.sym import Sym, maximum, sym
from tilewright.program.memory.occupancy import Occupancy

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


def plan_arena(lifetimes: Sequence[Lifetime]) -> ArenaPlan:
    """Offsets for tensors such that no two that live at the same time overlap."""
    unshared = unshared_bytes(lifetimes)
    if all(t.size.is_const for t in lifetimes):
        return _packed(lifetimes, unshared)
    return _slotted(lifetimes, unshared)


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


def unshared_bytes(lifetimes: Iterable[Lifetime]) -> Sym:
    """What the tensors would take if none of them shared memory."""
    total = sym(0)
    for t in lifetimes:
        total = total + _aligned(t.size)
    return total


def typical_total(lifetimes: Collection[Lifetime]) -> int:
    """About the bytes of the arena that `plan_arena` would give, for typical dims; quicker."""
    if all(t.size.is_const for t in lifetimes):
        return _offsets(lifetimes)[1]
    return _slotted([replace(t, size=sym(typical(t.size))) for t in lifetimes], sym(0)).total.value


def _aligned(size: Sym) -> Sym:
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def _packed(lifetimes: Sequence[Lifetime], unshared: Sym) -> ArenaPlan:
    offsets, total = _offsets(lifetimes)
    return ArenaPlan({key: sym(offset) for key, offset in offsets.items()}, sym(total), unshared)


def _offsets(lifetimes: Collection[Lifetime]) -> tuple[dict[int, int], int]:
    """Where tensors of known sizes lie, and the bytes of all: largest first, each at the lowest offset that is free for
    all of its life."""
    taken = Occupancy(_steps(lifetimes))
    offsets: dict[int, int] = {}
    total = 0
    for t in sorted(lifetimes, key=lambda t: (-t.size.value, t.first, t.key)):
        size = -(-t.size.value // ALIGNMENT) * ALIGNMENT
        offset = offsets[t.key] = taken.take(t.first, t.last, size)
        total = max(total, offset + size)
    return offsets, total


def _slotted(lifetimes: Sequence[Lifetime], unshared: Sym) -> ArenaPlan:
    """Largest (estimated) first, each into the first slot that is free for all of its life."""
    taken = Occupancy(_steps(lifetimes))
    sizes: list[Sym] = []
    slots: dict[int, int] = {}
    for t in sorted(lifetimes, key=lambda t: (-typical(t.size), t.first, t.key)):
        slot = slots[t.key] = taken.take(t.first, t.last, 1)
        size = _aligned(t.size)
        if slot == len(sizes):
            sizes.append(size)
        else:
            sizes[slot] = maximum(sizes[slot], size)
    starts = list(accumulate(sizes, initial=sym(0)))
    return ArenaPlan({key: starts[slot] for key, slot in slots.items()}, starts[-1], unshared)


def _steps(lifetimes: Iterable[Lifetime]) -> int:
    return 1 + max((t.last for t in lifetimes), default=0)


def typical(size: Sym) -> int:
    """A size where every unknown dim has a typical value, to compare sizes by; 0 where such values do not define it."""
    try:
        return size.evaluate({v.name: TYPICAL_DIM for v in size.vars})
    except ZeroDivisionError:
        return 0
