"""The arena: byte offsets for all intermediate tensors, so that tensors that live at different times share memory.

Static sizes are packed exactly (greedy by size: Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020). As soon as a size is symbolic, tensors share slots instead: a slot is as large as the largest of
its tensors, slots lie one after the other, and their offsets are expressions evaluated at call time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.sym import Sym, maximum, sym

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

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


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


def plan_apart(lifetimes: Iterable[Lifetime]) -> ArenaPlan:
    """The tensors one after the other: none of them shares memory."""
    total = sym(0)
    offsets: dict[int, Sym] = {}
    for t in lifetimes:
        offsets[t.key] = total
        total = total + _aligned(t.size)
    return ArenaPlan(offsets, total, total)


def unshared_bytes(lifetimes: Iterable[Lifetime]) -> Sym:
    """What the tensors would take if none of them shared memory."""
    return plan_apart(lifetimes).total


def typical_total(lifetimes: Collection[Lifetime]) -> int:
    """About the bytes of the arena that `plan_arena` would give, for typical dims; quicker."""
    known = [replace(t, size=sym(typical(t.size))) for t in lifetimes]
    pack = _packed if all(t.size.is_const for t in lifetimes) else _slotted
    return pack(known, sym(0)).total.value


def _aligned(size: Sym) -> Sym:
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT


def _packed(lifetimes: Sequence[Lifetime], unshared: Sym) -> ArenaPlan:
    """Largest first, each at the lowest offset that is free for all of its life."""
    placed: list[tuple[int, int, Lifetime]] = []  # (offset, end, tensor)
    offsets: dict[int, Sym] = {}
    total = 0
    for t in sorted(lifetimes, key=lambda t: (-t.size.value, t.first, t.key)):
        size = _aligned(t.size).value
        offset = 0
        for start, end, _ in sorted((p for p in placed if p[2].overlaps(t)), key=lambda p: p[0]):
            if offset + size <= start:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, t))
        offsets[t.key] = sym(offset)
        total = max(total, offset + size)
    return ArenaPlan(offsets, sym(total), unshared)


@dataclass
class _Slot:
    """Memory of tensors that live one after the other, in this order."""

    size: Sym
    tensors: list[Lifetime]

    def position(self, t: Lifetime) -> int | None:
        """Where a tensor comes among the others; None where one of them lives at the same time."""
        at = bisect_right(self.tensors, t.last, key=lambda other: other.first)
        return None if at and self.tensors[at - 1].last >= t.first else at


def _slotted(lifetimes: Sequence[Lifetime], unshared: Sym) -> ArenaPlan:
    """Largest (estimated) first, each into the first slot that is free for all of its life."""
    slots: list[_Slot] = []
    for t in sorted(lifetimes, key=lambda t: (-typical(t.size), t.first, t.key)):
        free = ((s, at) for s in slots if (at := s.position(t)) is not None)
        slot, at = next(free, (None, 0))
        if slot is None:
            slots.append(_Slot(_aligned(t.size), [t]))
            continue
        slot.size = maximum(slot.size, _aligned(t.size))
        slot.tensors.insert(at, t)
    offsets: dict[int, Sym] = {}
    start = sym(0)
    for slot in slots:
        offsets |= {t.key: start for t in slot.tensors}
        start = start + slot.size
    return ArenaPlan(offsets, start, unshared)


def typical(size: Sym) -> int:
    """A size where every unknown dim has a typical value, to compare sizes by."""
    return size.evaluate({v.name: TYPICAL_DIM for v in size.vars})
