"""Tasks that touch buffers, without what they compute: what an order of execution is searched on.

A buffer is alive from the first task that touches it to the last. So one that several tasks write, such as the parts of
a tensor that lie in its memory, is there from the first of them on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Task:
    """`touches` are numbers of buffers that it reads or writes, each once; `after` are earlier tasks that must be done
    before. Of each pair in `reuses` the second buffer takes the memory of the first where this task is the last to
    touch the first and the first to touch the second; a buffer gives its memory once."""

    touches: tuple[int, ...]
    after: tuple[int, ...] = ()
    reuses: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Tasks:
    """Tasks in an order that is possible, the bytes of their buffers, and which of these are `kept` to the end.

    Sets of tasks are integers with a bit for each.
    """

    tasks: tuple[Task, ...]
    sizes: tuple[int, ...]
    kept: frozenset[int] = field(default=frozenset())

    @cached_property
    def all(self) -> int:
        return (1 << len(self.tasks)) - 1

    @cached_property
    def touching(self) -> list[int]:
        """The tasks that touch each buffer; for one that is kept also one task behind the last."""
        found = [0] * len(self.sizes)
        for n, task in enumerate(self.tasks):
            for buffer in task.touches:
                found[buffer] |= 1 << n
        for buffer in self.kept:
            found[buffer] |= 1 << len(self.tasks)
        return found

    @cached_property
    def needed(self) -> list[int]:
        """The tasks that each task waits for itself."""
        return [sum(1 << n for n in set(task.after)) for task in self.tasks]

    @cached_property
    def followers(self) -> list[list[int]]:
        """The tasks that wait for each task themselves."""
        found: list[list[int]] = [[] for _ in self.tasks]
        for n, task in enumerate(self.tasks):
            for before in dict.fromkeys(task.after):
                found[before].append(n)
        return found

    @cached_property
    def before(self) -> list[int]:
        """All tasks that come before each task in every order."""
        found: list[int] = []
        for task in self.tasks:
            mask = 0
            for n in task.after:
                mask |= found[n] | 1 << n
            found.append(mask)
        return found

    @cached_property
    def behind(self) -> list[int]:
        """All tasks that come after each task in every order, one behind the last included."""
        found = [1 << len(self.tasks)] * len(self.tasks)
        for n in reversed(range(len(self.tasks))):
            for before in self.tasks[n].after:
                found[before] |= found[n] | 1 << n
        return found

    @cached_property
    def starts(self) -> int:
        """The tasks that wait for none."""
        return sum(1 << n for n, task in enumerate(self.tasks) if not task.after)

    @cached_property
    def cuts(self) -> list[int]:
        """Sets of tasks that are what is done at some time in every order, from small to large: a task that is ordered
        with all others, and all before it."""
        whole = self.all | 1 << len(self.tasks)
        found = [
            before | 1 << n
            for n, (before, behind) in enumerate(zip(self.before, self.behind, strict=True))
            if before | behind | 1 << n == whole
        ]
        return sorted(found, key=int.bit_count)

    def grown(self, n: int, done: int, alive: int) -> tuple[int, int]:
        """Bytes that are alive while task `n` runs, and after it, where `alive` bytes are after the tasks `done`."""
        sizes, touching, task = self.sizes, self.touching, self.tasks[n]
        during, after = alive, done | 1 << n
        gone = 0
        for buffer in task.touches:
            by = touching[buffer]
            if not by & done:
                during += sizes[buffer]
            if not by & ~after:
                gone += sizes[buffer]
        if not task.reuses:
            return during, during - gone
        shared, given = 0, set()
        for old, new in task.reuses:
            if old not in given and new not in given and not touching[old] & ~after and not touching[new] & done:
                shared += sizes[new]
                given |= {old, new}
        return during - shared, during - gone

    def profile(self, order: Sequence[int]) -> Iterator[int]:
        """Bytes alive at each task of an order."""
        done = alive = 0
        for n in order:
            during, alive = self.grown(n, done, alive)
            done |= 1 << n
            yield during

    def peak(self, order: Sequence[int]) -> int:
        """The most bytes alive at once in an order."""
        return max(self.profile(order), default=0)

    @cached_property
    def bound(self) -> int:
        """Bytes that are alive at once in every order: at each task its own buffers, and those that a task before it
        has touched and a task behind it will."""
        count = len(self.tasks)
        alive = np.zeros(count, np.int64)
        for size, by in zip(self.sizes, self.touching, strict=True):
            alive += size * _bits(self._forced(by), count)
        return max((total - self._given(n) for n, total in enumerate(alive.tolist())), default=0)

    def _forced(self, touching: int) -> int:
        """The tasks during which a buffer of these is alive in every order."""
        came = comes = 0
        for n in members(touching & self.all):
            came |= self.behind[n] | 1 << n
            comes |= self.before[n] | 1 << n
        return came & (self.all if touching & ~self.all else comes)

    def _given(self, n: int) -> int:
        """Bytes that a task need not have twice, in whatever order."""
        total = 0
        given: set[int] = set()
        for old, new in self.tasks[n].reuses:
            is_free = not self.touching[old] & self.behind[n] and not self.touching[new] & self.before[n]
            if is_free and not given & {old, new}:
                total += self.sizes[new]
                given |= {old, new}
        return total


def members(mask: int) -> list[int]:
    """The tasks of a set, in their order."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def _bits(mask: int, count: int) -> np.ndarray:
    """The lowest bits of a set, each as a number."""
    held = (mask & (1 << count) - 1).to_bytes(-(-count // 8), "little")
    return np.unpackbits(np.frombuffer(held, np.uint8), count=count, bitorder="little").astype(np.int64)


def is_possible(tasks: Tasks, order: Iterable[int]) -> bool:
    """Whether an order has every task once, each after those that it waits for."""
    done = 0
    for n in order:
        if done >> n & 1 or tasks.needed[n] & ~done:
            return False
        done |= 1 << n
    return done == tasks.all
