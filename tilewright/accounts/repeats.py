"""Intervals of a list of operators or nodes that repeat: equal ones that follow each other."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEAST_NODES = 3
"""Nodes of a block at least; shorter ones repeat in any model."""

LONGEST = 2000
"""Nodes of a block at most, and of lists that are looked at ten times as many."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """`copies` intervals of `period` nodes each, of which the first begins at `start`."""

    start: int
    period: int
    copies: int

    @property
    def end(self) -> int:
        """Behind the last copy."""
        return self.start + self.period * self.copies


def repeats(kinds: Sequence[Hashable], reads: Sequence[Sequence[int]], least: int = 0) -> list[Repeat]:
    """What repeats in a list of nodes, in its order; none overlaps another, and each covers at least `least` nodes.

    `kinds` are equal for nodes that compute alike, and `reads` are the places of what each reads, in the order of its
    operands (-1 for what is not in the list). What covers most counts first, and of periods that cover alike the
    shortest. Of the starts that are possible the one is taken where fewest values are handed on."""
    if not 2 * LEAST_NODES <= len(kinds) <= 10 * LONGEST:
        return []
    taken = np.zeros(len(kinds), bool)
    found = []
    for repeat in _candidates(kinds, reads, least):
        span = slice(repeat.start, repeat.end)
        if not taken[span].any():
            taken[span] = True
            found.append(repeat)
    return sorted(found, key=lambda each: each.start)


def numbered(labels: Sequence[Hashable]) -> np.ndarray:
    """Equal numbers for equal labels."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(label, len(known)) for label in labels], int)


def crossing(reads: Sequence[Sequence[int]]) -> np.ndarray:
    """How many nodes before each place (and the end) are read at or behind it: few where blocks meet."""
    last = [*range(len(reads))]
    for reader, places in enumerate(reads):
        for place in places:
            if 0 <= place < reader:
                last[place] = reader
    change = np.zeros(len(reads) + 2, int)
    for place, reader in enumerate(last):
        change[place + 1] += 1
        change[reader + 1] -= 1
    return np.cumsum(change[:-1])


def _candidates(kinds: Sequence[Hashable], reads: Sequence[Sequence[int]], least: int) -> list[Repeat]:
    """All that repeats, what covers most first."""
    crossed = crossing(reads)
    labels = _Labels.of(kinds, reads)
    found = []
    for period in range(LEAST_NODES, min(len(kinds) // 2, LONGEST) + 1):
        within = labels.within(period)
        equal = within[:-period] == within[period:]
        if int(equal.sum()) < period:
            continue
        for begin, end in _runs(equal):
            copies = (end - begin) // period + 1
            length = period * copies
            if copies > 1 and length >= least and not _is_of_one(within[begin : begin + period]):
                starts = range(begin, begin + (end - begin) % period + 1)
                start = min(starts, key=lambda s: (int(crossed[s : s + length + 1 : period].sum()), -s))
                found.append(Repeat(start, period, copies))
    return sorted(found, key=lambda each: (-each.period * each.copies, each.period))


@dataclass(frozen=True)
class _Labels:
    """What nodes are compared by: `kinds` as numbers, and for all operands the `readers`, the `distances` to what they
    read (0 for what is not in the list), and a random number for their `places` among those of the reader. Sums of
    random numbers, which are equal for equal nodes, are faster to compare than tuples."""

    kinds: np.ndarray
    readers: np.ndarray
    distances: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, kinds: Sequence[Hashable], reads: Sequence[Sequence[int]]) -> _Labels:
        random = np.random.default_rng(0).integers(1, 1 << 62, 1 + max(map(len, reads)))
        operands = [(n, read, place) for n, own in enumerate(reads) for place, read in enumerate(own)]
        readers, read, places = np.array(operands, np.int64).reshape(-1, 3).T
        distances = np.where((read >= 0) & (read < readers), readers - read, 0)
        return cls(numbered(kinds) * random[-1], readers, distances, random[places])

    def within(self, period: int) -> np.ndarray:
        """Labels that do not tell apart what is further away than a period, such as masks and tables that all copies of
        a block read."""
        found = self.kinds.copy()
        np.add.at(found, self.readers, np.where(self.distances <= period, self.distances, -1) * self.places)
        return found


def _runs(equal: np.ndarray) -> Iterator[tuple[int, int]]:
    """Begin and end of what is true."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], equal, [False]]).astype(np.int8)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def _is_of_one(labels: np.ndarray) -> bool:
    """Whether all nodes are alike: a chain of one operator is no block."""
    return bool((labels == labels[0]).all())
