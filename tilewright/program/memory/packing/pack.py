"""The ways to pack boxes, from the quickest to the most thorough: the next one is tried where one ends above the bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tilewright.program.memory.packing.boxes import NOTHING_ON_TOP, Alive, PackedBoxes, TimedBox, packed
from tilewright.program.memory.packing.occupancy import Occupancy
from tilewright.program.memory.packing.search import search

_CORES = (0.85, 0.6, 0.0)
"""Shares of the bound: the boxes of steps where at least so much is alive are searched by themselves, the others are
put around them. Most programs are hard to pack at few steps."""

_MOST = 0.8
"""Where the boxes of such steps are more than this share of all, all are searched at once."""


def pack(boxes: Sequence[TimedBox], budget: int, on_top: Mapping[int, int] = NOTHING_ON_TOP) -> PackedBoxes:
    """Offsets such that no two boxes of the same step overlap, with so much free above the boxes of some steps.
    `budget` is the work that a search for better ones than those of `by_size` may take, in units of about a tenth of a
    microsecond."""
    found = by_size(boxes, on_top=on_top)
    alive = Alive(boxes, on_top)
    bound = int(alive.at.max())
    for k, share in enumerate(_CORES):
        core = [n for n, box in enumerate(boxes) if alive.most(box) >= share * bound]
        if found.total > bound and (share == 0 or len(core) <= _MOST * len(boxes)):
            found = _around(boxes, core, found, bound, budget // (len(_CORES) - k), on_top)
    if on_top and found.total > bound:  # where that is hard, never more than with all of it above all boxes
        other = packed(boxes, pack(boxes, budget).offsets, on_top)
        found = min(found, other, key=lambda packing: packing.total)
    return found


def _around(
    boxes: Sequence[TimedBox], core: Sequence[int], known: PackedBoxes, bound: int, budget: int,
    on_top: Mapping[int, int],
) -> PackedBoxes:  # fmt: skip
    """A packing with the boxes of the `core` as a search packs them, or `known` where that ends higher."""
    inner = PackedBoxes(tuple(known.offsets[n] for n in core), known.total)
    found = search([boxes[n] for n in core], inner, bound, budget, on_top)
    if found is inner:
        return known
    packing = by_size(boxes, dict(zip(core, found.offsets, strict=True)), on_top)
    return packing if packing.total < known.total else known


def in_turns(boxes: Sequence[TimedBox]) -> int:
    """Where boxes end that take slots in turn, each in the order of steps the free slot that is nearest in size."""
    slots: list[tuple[int, int]] = []  # the step until which each is taken, and its size
    for box in sorted(boxes, key=lambda box: box.first):
        free = [k for k, (last, _) in enumerate(slots) if last < box.first]
        if free:
            k = min(free, key=lambda k: abs(slots[k][1] - box.size))
            slots[k] = box.last, max(slots[k][1], box.size)
        else:
            slots.append((box.last, box.size))
    return sum(size for _, size in slots)


_NONE: Mapping[int, int] = MappingProxyType({})


def by_size(
    boxes: Sequence[TimedBox], fixed: Mapping[int, int] = _NONE, on_top: Mapping[int, int] = NOTHING_ON_TOP
) -> PackedBoxes:
    """The largest first, each at the lowest place that is free for all of its steps (Pisarchyk & Lee, "Efficient Memory
    Management for Deep Neural Net Inference", 2020), around those whose offsets are `fixed`."""
    taken = Occupancy(1 + max((box.last for box in boxes), default=0))
    offsets = [0] * len(boxes)
    for n, start in fixed.items():
        offsets[n] = start
        taken.hold(boxes[n].first, boxes[n].last, start, boxes[n].size)
    for n in sorted(range(len(boxes)), key=lambda n: (-boxes[n].size, boxes[n].first)):
        if boxes[n].size and n not in fixed:
            offsets[n] = taken.take(boxes[n].first, boxes[n].last, boxes[n].size)
    return packed(boxes, offsets, on_top)
