"""Boxes: something of a size that is needed for some steps, and their places above one another.

It does not matter here in what unit sizes are, nor what steps are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class TimedBox:
    """`size` from step `first` to step `last` (inclusive)."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class PackedBoxes:
    """Where each box begins, and where the highest ends."""

    offsets: tuple[int, ...]
    total: int


class Alive:
    """How much is needed at each step."""

    def __init__(self, boxes: Sequence[TimedBox]) -> None:
        changes = np.zeros(2 + max((box.last for box in boxes), default=0), np.int64)
        for box in boxes:
            changes[box.first] += box.size
            changes[box.last + 1] -= box.size
        self.at = changes.cumsum()

    def most(self, box: TimedBox) -> int:
        """The most at a step of a box."""
        return int(self.at[box.first : box.last + 1].max())


def most_alive(boxes: Sequence[TimedBox]) -> int:
    """The most that is needed at a step, below which no packing ends."""
    return int(Alive(boxes).at.max())


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
