"""The order with the fewest bytes alive at once, by a search over the sets of tasks that are done.

What is alive depends on what is done alone, not on its order: so a set is looked at once, with the fewest bytes by
which it can be reached. Sets are taken in the order of these bytes, the ones with more tasks done first among equals;
the first with all tasks is the best order. Three facts keep the sets few:

- A task that takes no more than was taken before, while it runs, and leaves no more alive, is run at once. What it
  frees it frees at any later time, and until then it would only be alive: an order that does it first is as good.
- All that takes no more than the bound of the problem counts as equal, so that what is not hard is done straight away.
- Behind a set that every order comes through, only the way that comes there first is followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from tilewright.program.memory.ordering.greedy import greedy_order
from tilewright.program.memory.ordering.tasks import Tasks, members


@dataclass(frozen=True)
class Ordered:
    """An order, the most bytes alive at once in it, and whether no order has fewer; `looked_at` counts the tasks that
    were tried, which is what a search costs."""

    order: tuple[int, ...]
    peak: int
    is_best: bool
    looked_at: int


@dataclass(slots=True)
class _State:
    """Tasks that are done, of those the ones that `order` begins with after what `parent` has done."""

    done: int
    ready: int
    alive: int
    peak: int
    order: tuple[int, ...]
    parent: _State | None

    def whole_order(self) -> tuple[int, ...]:
        found: list[tuple[int, ...]] = []
        state: _State | None = self
        while state is not None:
            found.append(state.order)
            state = state.parent
        return tuple(n for part in reversed(found) for n in part)


def best_order(tasks: Tasks, budget: int) -> Ordered:
    """The best order, or the best that was found by the time that `budget` tasks were tried: never a worse one than
    that of the tasks, which stays where none is better."""
    given = tuple(range(len(tasks.tasks)))
    peak = tasks.peak(given)
    if peak > tasks.bound:
        quick = greedy_order(tasks)
        if (other := tasks.peak(quick)) < peak:
            given, peak = quick, other
    if peak <= tasks.bound:
        return Ordered(given, peak, True, len(given))
    return _Search(tasks, given, peak, budget).run()


class _Search:
    def __init__(self, tasks: Tasks, given: tuple[int, ...], peak: int, budget: int) -> None:
        self.tasks, self.best, self.peak, self.budget = tasks, given, peak, budget
        self.bound = tasks.bound
        self.tried = len(given)
        self.cuts = tasks.cuts

    def run(self) -> Ordered:
        start = self._settled(_State(0, self.tasks.starts, 0, self.bound, (), None))
        heap: list[tuple[int, int, int, int, _State]] = []
        seen = {start.done: start.peak}
        count = passed = 0
        heappush(heap, (start.peak, 0, 0, count, start))
        while heap and self.tried < self.budget:
            *_, state = heappop(heap)
            if state.peak > seen[state.done]:
                continue
            if state.done == self.tasks.all:
                return Ordered(state.whole_order(), state.peak, True, self.tried)
            while passed < len(self.cuts) and not self.cuts[passed] & ~state.done:
                passed += 1
                heap.clear()
            for n in members(state.ready):
                if self.tried >= self.budget:
                    return Ordered(self.best, self.peak, False, self.tried)
                after = self._after(state, n)
                if after.peak >= self.peak or after.peak >= seen.get(after.done, after.peak + 1):
                    continue
                seen[after.done] = after.peak
                count += 1
                heappush(heap, (after.peak, -after.done.bit_count(), after.alive, count, after))
        return Ordered(self.best, self.peak, not heap, self.tried)

    def _after(self, state: _State, n: int) -> _State:
        during, alive = self.tasks.grown(n, state.done, state.alive)
        self.tried += 1
        done, ready = self._done(n, state.done, state.ready)
        return self._settled(_State(done, ready, alive, max(state.peak, during), (n,), state))

    def _done(self, n: int, done: int, ready: int) -> tuple[int, int]:
        done |= 1 << n
        ready &= ~(1 << n)
        needed = self.tasks.needed
        for follower in self.tasks.followers[n]:
            if not needed[follower] & ~done:
                ready |= 1 << follower
        return done, ready

    def _settled(self, state: _State) -> _State:
        """With all tasks done that cost nothing, or as many as the budget allows."""
        order = list(state.order)
        changed = True
        while changed and self.tried < self.budget:
            changed = False
            for n in members(state.ready):
                during, alive = self.tasks.grown(n, state.done, state.alive)
                self.tried += 1
                if during <= state.peak and alive <= state.alive:
                    state.done, state.ready = self._done(n, state.done, state.ready)
                    state.alive = alive
                    order.append(n)
                    changed = True
        state.order = tuple(order)
        return state
