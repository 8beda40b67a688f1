"""A search for a packing that ends lower: boxes are put where least lies so far, and those in the way of success come
earlier in the next try.

One try fills from below. Of the steps in a row where least lies (a gap) it takes, of the boxes that fit into the row,
the one of the highest priority, better where it touches an end of the row; where none fits, the gap is lost up to the
lower of its neighbours. It is given up as soon as what is lost at a step and what is still to come there would end no
lower than the best packing so far. The boxes of that step then get higher priorities (the "squeaky wheel" of Joslin &
Clements, 1999, for the decoder of Burke's best fit for strip packing, 2004, with boxes that cannot be moved sideways).
Priorities begin as random mixtures of a box's duration, its size, and how much is alive at its steps; what has led to
a better packing is varied.

All random numbers follow from a fixed seed, and work is counted, not timed: a plan does not depend on the machine.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tilewright.program.memory.packing.boxes import NOTHING_ON_TOP, PackedBoxes, TimedBox, packed

T = TypeVar("T")

_NEVER = 1 << 62
"""Above whatever is packed."""

_KEPT = 4
"""Mixtures that led to the last better packings, which are varied."""

_FRESH = 0.3
"""Share of starts with a new mixture."""

_PATIENCE = (10, 25, 60)
"""After so many tries that got no further than one before, another mixture is begun with; one of them is drawn."""

_SHARE = (0.2, 0.5)
"""Which part of the boxes in the way is put forward after a try; one of them is drawn."""

_STEP = (0.05, 0.15)
"""By which part of the range of priorities at most; one of them is drawn."""


def search(
    boxes: Sequence[TimedBox], known: PackedBoxes, bound: int, budget: int, on_top: Mapping[int, int] = NOTHING_ON_TOP
) -> PackedBoxes:
    """The lowest packing found within the `budget` (in tenths of a microsecond, about), or `known`. It is over
    where one ends at the `bound`."""
    if not 0 < _cost(boxes) <= budget:
        return known
    return _Search(boxes, on_top, known, bound, budget).run()


def _cost(boxes: Sequence[TimedBox]) -> int:
    """About the work of one try."""
    starts = [box.first for box in boxes if box.size]
    return len(starts) * (20 + len(set(starts)) // 8)


@dataclass(frozen=True)
class _Problem:
    """Boxes over steps that are numbered anew, so that one begins at each of them, or something is on top there:
    `starting` at each of these, `crossing` it, what is `on_top`, and how much is `alive` with that. Boxes of no size
    are left out."""

    boxes: list[tuple[int, int, int]]
    numbers: list[int]
    starting: list[list[int]]
    crossing: list[list[int]]
    alive: list[int]
    on_top: list[int]

    @classmethod
    def of(cls, boxes: Sequence[TimedBox], on_top: Mapping[int, int]) -> _Problem:
        numbers = [n for n, box in enumerate(boxes) if box.size]
        starts = sorted({*(boxes[n].first for n in numbers), *on_top})
        found = [
            (boxes[n].size, bisect_left(starts, boxes[n].first), bisect_right(starts, boxes[n].last)) for n in numbers
        ]
        starting: list[list[int]] = [[] for _ in starts]
        crossing: list[list[int]] = [[] for _ in starts]
        above = [on_top.get(step, 0) for step in starts]
        alive = above[:]
        for k, (size, first, end) in enumerate(found):
            starting[first].append(k)
            for t in range(first, end):
                crossing[t].append(k)
                alive[t] += size
        return cls(found, numbers, starting, crossing, alive, above)


class _Search:
    def __init__(
        self, boxes: Sequence[TimedBox], on_top: Mapping[int, int], known: PackedBoxes, bound: int, budget: int
    ) -> None:
        self.boxes, self.on_top = boxes, on_top
        self.problem = problem = _Problem.of(boxes, on_top)
        self.bound, self.left = bound, budget
        self.found, self.limit = known, known.total
        self.random = Random(0).random
        self.good: list[tuple[float, ...]] = []
        most = max(problem.alive)
        self.traits = [
            (
                (end - first) / len(problem.alive),
                size / most,
                max(problem.alive[first:end]) / most,
                sum(problem.alive[first:end]) / (end - first) / most,
            )
            for size, first, end in problem.boxes
        ]

    def run(self) -> PackedBoxes:
        while self.left > 0 and self.limit > self.bound:
            self._follow(self._mixture())
        return self.found

    def _drawn(self, values: Sequence[T]) -> T:
        return values[int(self.random() * len(values))]

    def _mixture(self) -> tuple[float, ...]:
        """Weights of the traits of boxes, and of the ends of gaps."""
        if not self.good or self.random() < _FRESH:
            return tuple(self.random() ** 2 if self.random() < 0.5 else 0.0 for _ in range(5))
        return tuple(weight * (0.5 + self.random()) for weight in self._drawn(self.good))

    def _follow(self, mixture: tuple[float, ...]) -> None:
        """Try priorities, and change them after each try, until that leads no further."""
        count = len(self.problem.boxes)
        base = [sum(w * x for w, x in zip(mixture[:-1], traits, strict=True)) for traits in self.traits]
        step = self._drawn(_STEP) * (max(base) - min(base) + 0.01)
        share, patience = self._drawn(_SHARE), self._drawn(_PATIENCE)
        priorities, fewest, stale = base, count + 1, 0
        while stale < patience and self.left > 0 and self.limit > self.bound:
            offsets, step_of_failure, remaining = self._try(priorities, mixture[-1])
            if offsets is not None:
                self._take(offsets)
                self.good = [*self.good, mixture][-_KEPT:]
                base, fewest, stale = priorities, count + 1, 0
                continue
            if remaining < fewest:
                base, fewest, stale = priorities, remaining, 0
            else:
                stale += 1
            priorities = base[:]
            for k in self.problem.crossing[step_of_failure]:
                if self.random() < share:
                    priorities[k] += step * self.random()
            for _ in range(2):
                priorities[int(self.random() * count)] += 2 * step * (self.random() - 0.5)

    def _take(self, offsets: list[int]) -> None:
        placed = list(self.found.offsets)
        for number, offset in zip(self.problem.numbers, offsets, strict=True):
            placed[number] = offset
        self.found = packed(self.boxes, placed, self.on_top)
        self.limit = self.found.total

    def _try(self, priorities: list[float], at_end: float) -> tuple[list[int] | None, int, int]:
        """Offsets with which all boxes end below the limit; or the step where some would not, and the number of boxes
        that were left then."""
        boxes, limit, steps = self.problem.boxes, self.limit, len(self.problem.alive)
        to_come, waiting = self.problem.alive[:], [row[:] for row in self.problem.starting]
        on_top = self.problem.on_top
        heights = [0 if here else _NEVER for here in self.problem.crossing]  # where no box comes, never the lowest
        offsets, left = [0] * len(boxes), len(boxes)
        while left:
            low = min(heights)
            first = heights.index(low)
            end = first + 1
            while end < steps and heights[end] == low:
                end += 1
            best, highest = -1, -1e300
            for t in range(first, end):
                for k in waiting[t]:
                    to = boxes[k][2]
                    if to <= end:
                        priority = priorities[k] + at_end * ((t == first) + (to == end))
                        if priority > highest:
                            best, highest = k, priority
            self.left -= 20 + steps // 8 + 2 * (end - first)
            if best < 0:
                low = min(heights[first - 1] if first else _NEVER, heights[end] if end < steps else _NEVER)
                for t in range(first, end):
                    if low + to_come[t] >= limit:
                        return None, t, left
                    heights[t] = low
                continue
            size, begin, to = boxes[best]
            waiting[begin].remove(best)
            offsets[best] = low
            left -= 1
            for t in range(begin, to):
                to_come[t] -= size
                heights[t] = low + size if to_come[t] > on_top[t] else _NEVER
        return offsets, 0, 0
