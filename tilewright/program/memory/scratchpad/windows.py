"""Cycles in which no operation can run, between operations that all others are before or behind.

Between two of these, all that is read for the first time behind the first one comes beside the operations between, or
beside none, but for what comes before the first one ends: that has room beside its tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tilewright.program.memory.ordering.tasks import members
from tilewright.program.memory.scratchpad.overlap import most_beside
from tilewright.program.memory.scratchpad.problem import ScratchpadProblem

LONGEST = 10
"""Of such operations in a row that are looked at together; more of them have other loads in their way."""

MOST_EXACT = 12
"""Loads of which all sets are looked at; of more a bound is taken for what comes before."""


def least_idle(
    problem: ScratchpadProblem, before: Sequence[int], after: Sequence[int], beside: Mapping[int, int]
) -> int:
    """Cycles that operations stand still at least until the last has ended. `before` and `after` are the operations
    that each one waits for and that wait for it, as bits; `beside` has those that a load may run beside."""
    every = (1 << len(problem.operations)) - 1
    ends = [n for n in range(len(problem.operations)) if before[n] | after[n] | 1 << n == every]
    windows = _Windows(problem, before, after, beside, every)
    places = [None, *ends, None]
    least = [0] * len(places)
    for k in range(1, len(places)):
        for first in range(max(0, k - LONGEST), k):
            least[k] = max(least[k], least[first] + windows.idle(places[first], places[k]))
    return least[-1]


class _Windows:
    """What is between two operations; None is the beginning, or the end."""

    def __init__(
        self,
        problem: ScratchpadProblem,
        before: Sequence[int],
        after: Sequence[int],
        beside: Mapping[int, int],
        every: int,
    ) -> None:
        self.problem, self.before, self.after, self.beside, self.every = problem, before, after, beside, every
        self.readers = {t: sum(1 << n for n in problem.readers[t]) for t in beside}

    def idle(self, first: int | None, last: int | None) -> int:
        behind = self.every if first is None else self.after[first]
        inside = behind & (self.every if last is None else self.before[last])
        until = inside | (0 if last is None else 1 << last)
        loads = [t for t, ops in self.readers.items() if ops & until and not ops & ~behind]
        cycles = [self.problem.load_cycles(t) for t in loads]
        room = 0 if first is None else self.room(first)
        early = [t for t in loads if self.problem.bytes_of(t) <= room]
        numbers = {n: k for k, n in enumerate(members(inside))}
        allowed = [[numbers[n] for n in members(self.beside[t] & inside)] for t in loads]
        for t, ops in zip(loads, allowed, strict=True):
            if t in early:
                ops.append(len(numbers))
        slots = [*(self.problem.operations[n].cycles for n in numbers), self.before_it(early, room)]
        return sum(cycles) - most_beside(cycles, slots, allowed)

    def room(self, n: int) -> int:
        op = self.problem.operations[n]
        return self.problem.capacity - sum(map(self.problem.bytes_of, {*op.reads, *op.writes}))

    def before_it(self, loads: Sequence[int], room: int) -> int:
        """The most cycles of loads whose tensors have room at the same time."""
        sizes = [(self.problem.bytes_of(t), self.problem.load_cycles(t)) for t in loads]
        if len(sizes) <= MOST_EXACT:
            return max(cycles for size, cycles in _sums(sizes) if size <= room)
        total, left = 0, room
        for size, cycles in sorted(sizes, key=lambda each: each[0] / max(1, each[1])):
            total += cycles if size <= left else -(-cycles * left // size)
            left -= min(size, left)
        return total


def _sums(sizes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Bytes and cycles of each set."""
    found = [(0, 0)]
    for size, cycles in sizes:
        found += [(a + size, b + cycles) for a, b in found]
    return iter(found)
