"""A quick order: of the tasks that can run, always the one by which the fewest bytes more are alive."""

from __future__ import annotations

from heapq import heappop, heappush

from tilewright.program.memory.ordering.tasks import Tasks


def greedy_order(tasks: Tasks) -> tuple[int, ...]:
    """Such an order; among equals the first task. A task is looked at again only when one of its buffers has come to
    life, or has no other task left, by which it may add less than before."""
    return _Greedy(tasks).run()


class _Greedy:
    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.touching = [list[int]() for _ in tasks.sizes]
        for n, task in enumerate(tasks.tasks):
            for buffer in task.touches:
                self.touching[buffer].append(n)
        self.left = [len(by) + (b in tasks.kept) for b, by in enumerate(self.touching)]
        self.waiting = [len(set(task.after)) for task in tasks.tasks]
        self.alive = [False] * len(tasks.sizes)
        self.done = [False] * len(tasks.tasks)
        self.heap: list[tuple[int, int]] = []

    def run(self) -> tuple[int, ...]:
        order: list[int] = []
        for n, count in enumerate(self.waiting):
            if not count:
                self._offer(n)
        while self.heap:
            growth, n = heappop(self.heap)
            if self.done[n]:
                continue
            if growth != self._growth(n):
                self._offer(n)
                continue
            order.append(n)
            self._finish(n)
        return tuple(order)

    def _offer(self, n: int) -> None:
        heappush(self.heap, (self._growth(n), n))

    def _growth(self, n: int) -> int:
        total = 0
        for buffer in self.tasks.tasks[n].touches:
            total += self.tasks.sizes[buffer] * ((not self.alive[buffer]) - (self.left[buffer] == 1))
        return total

    def _finish(self, n: int) -> None:
        self.done[n] = True
        for buffer in self.tasks.tasks[n].touches:
            began = not self.alive[buffer]
            self.alive[buffer] = True
            self.left[buffer] -= 1
            if began or self.left[buffer] == 1:
                for other in self.touching[buffer]:
                    if not self.waiting[other] and not self.done[other]:
                        self._offer(other)
        for follower in self.tasks.followers[n]:
            self.waiting[follower] -= 1
            if not self.waiting[follower]:
                self._offer(follower)
