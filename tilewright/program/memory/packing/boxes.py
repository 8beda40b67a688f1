"""Boxes: something of a size that is needed for some steps, and their places above one another.

It does not matter here in what unit sizes are, nor what steps are. Some steps have something `on_top`: so much must be
free above all boxes of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

NOTHING_ON_TOP: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TimedBox:
    """`size` from step `first` to step `last` (inclusive)."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class PackedBoxes:
    """Where each box begins, and where all ends, with what is on top."""

    offsets: tuple[int, ...]
    total: int


class Alive:
    """How much is needed at each step, with what is on top."""

    def __init__(self, boxes: Sequence[TimedBox], on_top: Mapping[int, int] = NOTHING_ON_TOP) -> None:
        changes = np.zeros(2 + max((*(box.last for box in boxes), *on_top), default=0), np.int64)
        for box in boxes:
            changes[box.first] += box.size
            changes[box.last + 1] -= box.size
        self.at = changes.cumsum()
        for step, size in on_top.items():
            self.at[step] += size

    def most(self, box: TimedBox) -> int:
        """The most at a step of a box."""
        return int(self.at[box.first : box.last + 1].max())


def most_alive(boxes: Sequence[TimedBox], on_top: Mapping[int, int] = NOTHING_ON_TOP) -> int:
    """The most that is needed at a step, below which no packing ends."""
    return int(Alive(boxes, on_top).at.max())


def heights(boxes: Sequence[TimedBox], offsets: Sequence[int], steps: int) -> np.ndarray:
    """Where the highest box of each step ends, of at least so many steps."""
    found = np.zeros(max(steps, 1 + max((box.last for box in boxes), default=0)), np.int64)
    for box, start in zip(boxes, offsets, strict=True):
        if box.size:
            at = found[box.first : box.last + 1]
            np.maximum(at, start + box.size, out=at)
    return found


def packed(boxes: Sequence[TimedBox], offsets: Sequence[int], on_top: Mapping[int, int]) -> PackedBoxes:
    """Boxes at these offsets, and where all ends."""
    ends = heights(boxes, offsets, 1 + max(on_top, default=0))
    for step, size in on_top.items():
        ends[step] += size
    return PackedBoxes(tuple(offsets), int(ends.max()))


def overlapping(boxes: Sequence[TimedBox], packing: PackedBoxes) -> tuple[int, int] | None:
    """Two boxes that lie over each other at a step, if there are any."""
    alive: list[int] = []
    for n in sorted(range(len(boxes)), key=lambda n: boxes[n].first):
        box, start = boxes[n], packing.offsets[n]
        alive = [k for k in alive if boxes[k].last >= box.first]
        for k in alive:
            if packing.offsets[k] < start + box.size and start < packing.offsets[k] + boxes[k].size:
                return k, n
        alive.append(n)
    return None
