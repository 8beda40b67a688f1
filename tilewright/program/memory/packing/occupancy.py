"""What is taken of a range of numbers over time: which bytes of the arena, or which of its slots, at which steps.

The steps are the leaves of a tree. Each node knows what is taken at all of its steps and what at any of them, as
intervals that are merged where they touch; a question about some steps looks at the few nodes that they consist of
and at those above, however many tensors live then.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_SHIFT = 3
"""Bits of a step's number that a level of the tree takes: a node has eight children."""


class _Intervals:
    """Numbers as sorted half-open intervals that neither overlap nor touch."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    def add(self, start: int, end: int) -> None:
        first, after = bisect_left(self.ends, start), bisect_right(self.starts, end)
        if first < after:
            start, end = min(start, self.starts[first]), max(end, self.ends[after - 1])
        self.starts[first:after] = (start,)
        self.ends[first:after] = (end,)

    def blocked_until(self, start: int, end: int) -> int:
        """`start` if the numbers from there to `end` are free, else the end of the last interval among them."""
        last = bisect_left(self.starts, end) - 1
        return start if last < 0 else max(start, self.ends[last])


_Nodes = dict[tuple[int, int], _Intervals]


class Occupancy:
    """Which numbers are taken at which of the steps from 0 on."""

    def __init__(self, steps: int) -> None:
        self._levels = range(-(-max(1, steps - 1).bit_length() // _SHIFT) + 1)
        self._always: _Nodes = {}
        self._ever: _Nodes = {}

    def take(self, first: int, last: int, size: int) -> int:
        """Take the lowest `size` numbers that are free at all of the steps `first` to `last`; the first of them."""
        parts, above = self._nodes(first, last)
        found = [n for part in parts if (n := self._ever.get(part)) is not None]
        found += [n for node in above if (n := self._always.get(node)) is not None]
        start, blocked = 0, -1
        while blocked != start:
            blocked = start
            for intervals in found:
                start = intervals.blocked_until(start, start + size)
        self.hold(first, last, start, size)
        return start

    def hold(self, first: int, last: int, start: int, size: int) -> None:
        """Take `size` numbers from `start` on, which are free at all of the steps."""
        if size:
            parts, above = self._nodes(first, last)
            _add(self._always, parts, start, start + size)
            _add(self._ever, {*parts, *above}, start, start + size)

    def _nodes(self, first: int, last: int) -> tuple[list[tuple[int, int]], set[tuple[int, int]]]:
        return list(_parts(first, last)), self._above(first, last)

    def _above(self, first: int, last: int) -> set[tuple[int, int]]:
        """The nodes, each its level and its number there, of the two ends."""
        return {(level, step >> _SHIFT * level) for level in self._levels for step in (first, last)}


def _parts(first: int, last: int) -> Iterator[tuple[int, int]]:
    """The fewest nodes that have the steps `first` to `last` and no others."""
    level, start, end = 0, first, last + 1
    mask = (1 << _SHIFT) - 1
    while start < end:
        while start < end and start & mask:
            yield level, start
            start += 1
        while start < end and end & mask:
            end -= 1
            yield level, end
        level, start, end = level + 1, start >> _SHIFT, end >> _SHIFT


def _add(nodes: _Nodes, keys: list[tuple[int, int]] | set[tuple[int, int]], start: int, end: int) -> None:
    for key in keys:
        found = nodes.get(key)
        if found is None:
            found = nodes[key] = _Intervals()
        found.add(start, end)
