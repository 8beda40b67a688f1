"""Schedules for a given order of operations: loads as early as the addresses that they get are free.

Actions are listed operation by operation; as loads and stores have queues of their own, a load whose bytes are free
long before is done long before, beside earlier operations. So an address is chosen by when it will be free, and what
leaves where nothing is free is what is read again last (Belady, "A study of replacement algorithms for a
virtual-storage computer", 1966), at the least cycles of stores and loads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.program.memory.scratchpad.problem import Operation, ScratchpadProblem
from tilewright.program.memory.scratchpad.schedule import Action

_NEVER = 1 << 62


class NoRoom(Exception):
    """No addresses for an operation's tensors: those that it needs lie in the way of each other."""


@dataclass
class _Resident:
    offset: int
    end: int
    ready: int
    busy: int  # until when an action uses it


_Saved = tuple[int, dict[int, _Resident], dict[int, int], list[tuple[int, int, int]], tuple[int, int, int]]


def list_actions(
    problem: ScratchpadProblem,
    order: Sequence[int],
    ahead: int = 0,
    high: Container[int] = (),
    early: Container[int] = (),
) -> tuple[Action, ...]:
    """A schedule with the operations in this order. Where what the next operation reads has no room beside one, what
    the `ahead` operations behind it read may come meanwhile. Tensors in `high` lie at the highest addresses that are
    free when they come, others at the lowest: so the bytes between stay in one piece. Those in `early` come before what
    operations read that run before their readers, as soon as there is room for them beside these."""
    return _Listing(problem, order, ahead, high, early).run()


EARLY = 16
"""Operations before the first reader of a tensor, at most, behind which it comes early."""


class _Listing:
    def __init__(
        self,
        problem: ScratchpadProblem,
        order: Sequence[int],
        ahead: int = 0,
        high: Container[int] = (),
        early: Container[int] = (),
    ) -> None:
        self.problem = problem
        self.ahead = ahead
        self.high = high
        self.early = early
        self.order = order
        at = {n: k for k, n in enumerate(order)}
        self.reads = [sorted(at[n] for n in readers) for readers in problem.readers]
        self.wanted = set(problem.stored)
        self.actions: list[Action] = []
        self.resident: dict[int, _Resident] = {}
        self.outside = {n: 0 for n, t in enumerate(problem.tensors) if t.given}  # since when the large memory has them
        whole = problem.capacity // problem.align * problem.align
        self.freed: list[tuple[int, int, int]] = [(0, whole, 0)]  # free bytes, and since when
        self.load = self.compute = self.store = 0
        self.step = 0
        self.fixed: dict[int, int] = {}  # addresses that were chosen beforehand

    def run(self) -> tuple[Action, ...]:
        for step, n in enumerate(self.order):
            self.step = step
            before = self._saved()
            try:
                self._operation(n)
            except NoRoom:
                self._restore(before)
                self._make_way(self.problem.operations[n])
                self._operation(n)
                self.fixed = {}
        return tuple(self.actions)

    def _operation(self, n: int) -> None:
        op = self.problem.operations[n]
        needed = {*op.reads, *op.writes}
        for t in dict.fromkeys(op.reads):
            if t not in self.resident:
                self._load(t, needed)
        start = max([self.compute, *(self.resident[t].ready for t in op.reads)])
        places = []
        for t in op.writes:
            offset, free = self._room(t, needed)
            start = max(start, free)
            places.append(offset)
            self._take(t, offset, 0)
        self.compute = start + op.cycles
        self.actions.append(Action("R", n, tuple(places)))
        for t in op.writes:
            self.resident[t].ready = self.resident[t].busy = self.compute
        for t in op.reads:
            self.resident[t].busy = max(self.resident[t].busy, self.compute)
        for t in op.writes:
            if t in self.wanted:
                self._store(t)
        if self.early:
            self._load_early()
        if self.ahead:
            self._load_ahead()
        for t in needed:
            if self._next_read(t, self.step + 1) == _NEVER:
                self._free(t)

    def _load_ahead(self) -> None:
        """Loads for later operations that end while this one runs, in bytes that are free and that none before them
        needs."""
        for t in self._outside_for(self.ahead):
            gap = min(self._gaps(self.problem.bytes_of(t)), default=None)
            start = max(self.load, self.outside[t], 0 if gap is None else gap[0])
            if gap is None or start + self.problem.load_cycles(t) > self.compute:
                continue
            if self._leaves_room(t, self._next_read(t, self.step + 1)):
                self._load(t, set())

    def _load_early(self) -> None:
        """Loads of what comes early, in bytes that are free or become free."""
        for t in self._outside_for(EARLY):
            has_gap = t in self.early and self._gap(t, self.problem.bytes_of(t)) is not None
            if has_gap and self._leaves_room(t, self._next_read(t, self.step + 1)):
                self._load(t, set())

    def _outside_for(self, ahead: int) -> list[int]:
        """What the next operation and so many behind it read, and has to be loaded."""
        following = self.order[self.step + 1 : self.step + 2 + ahead]
        reads = dict.fromkeys(t for n in following for t in self.problem.operations[n].reads)
        return [t for t in reads if t in self.outside and t not in self.resident]

    def _leaves_room(self, t: int, until: int) -> bool:
        """Whether all operations before a step have room beside a tensor and what is there and is read later."""
        for step in range(self.step + 1, until):
            op = self.problem.operations[self.order[step]]
            kept = {u for u in self.resident if self._next_read(u, step) != _NEVER}
            if sum(map(self.problem.bytes_of, {t, *kept, *op.reads, *op.writes})) > self.problem.capacity:
                return False
        return True

    def _make_way(self, op: Operation) -> None:
        """All leaves the scratchpad, and the tensors of an operation get addresses one behind the other."""
        for t in list(self.resident):
            self._leave(t)
        offset = 0
        for t in dict.fromkeys((*op.reads, *op.writes)):
            self.fixed[t] = offset
            offset += self.problem.bytes_of(t)

    def _saved(self) -> _Saved:
        resident = {t: replace(r) for t, r in self.resident.items()}
        queues = self.load, self.compute, self.store
        return len(self.actions), resident, dict(self.outside), list(self.freed), queues

    def _restore(self, saved: _Saved) -> None:
        length, self.resident, self.outside, self.freed, (self.load, self.compute, self.store) = saved
        del self.actions[length:]

    def _load(self, t: int, needed: set[int]) -> None:
        offset, free = self._room(t, needed)
        self.load = max(self.load, free, self.outside[t]) + self.problem.load_cycles(t)
        self.actions.append(Action("L", t, (offset,)))
        self._take(t, offset, self.load)

    def _store(self, t: int) -> None:
        held = self.resident[t]
        self.store = max(self.store, held.ready) + self.problem.store_cycles(t)
        held.busy = max(held.busy, self.store)
        self.actions.append(Action("S", t))
        self.outside[t] = self.store

    def _take(self, t: int, offset: int, ready: int) -> None:
        end = offset + self.problem.bytes_of(t)
        self.resident[t] = _Resident(offset, end, ready, ready)
        pieces = []
        for a, b, since in self.freed:
            if b <= offset or end <= a:
                pieces.append((a, b, since))
                continue
            pieces += [(x, y, since) for x, y in ((a, offset), (end, b)) if x < y]
        self.freed = pieces

    def _free(self, t: int) -> None:
        held = self.resident.pop(t)
        self.actions.append(Action("F", t))
        self.freed = sorted([*self.freed, (held.offset, held.end, held.busy)])

    def _leave(self, t: int) -> None:
        if t not in self.outside and self._next_read(t, self.step) != _NEVER:
            self._store(t)
        self._free(t)

    # Addresses

    def _room(self, t: int, needed: set[int]) -> tuple[int, int]:
        """Bytes for a tensor, and since when they are free: those that are free first, of these the tightest; where
        there are none, those whose tensors cost least to bring back."""
        size = self.problem.bytes_of(t)
        if t in self.fixed:
            offset = self.fixed[t]
            return offset, max((since for a, b, since in self.freed if a < offset + size and offset < b), default=0)
        if not size:
            return 0, 0
        found = self._gap(t, size)
        if found is None:
            for victim in self._victims(size, needed):
                self._leave(victim)
            found = self._gap(t, size)
        if found is None:
            raise NoRoom
        return found

    def _gap(self, t: int, size: int) -> tuple[int, int] | None:
        """Where the bytes are free first: in the tightest gap, at the side that a tensor prefers."""
        side = -1 if t in self.high else 1
        found = min(((since, more, side * offset) for since, more, offset in self._gaps(size)), default=None)
        return None if found is None else (side * found[2], found[0])

    def _gaps(self, size: int) -> Iterator[tuple[int, int, int]]:
        """Places of `size` free bytes: since when they are free, by how much the gap is larger, and the address."""
        pieces = self.freed
        for k in range(len(pieces)):
            a, since = pieces[k][0], 0
            for m in range(k, len(pieces)):
                if m > k and pieces[m][0] != pieces[m - 1][1]:
                    break
                since = max(since, pieces[m][2])
                if pieces[m][1] - a >= size:
                    yield since, pieces[m][1] - a - size, a
                    if m == k:
                        yield since, pieces[m][1] - a - size, pieces[m][1] - size
                    break

    def _victims(self, size: int, needed: set[int]) -> list[int]:
        """The tensors that leave so that `size` bytes in a row are free."""
        ranges = sorted((r.offset, r.end, t) for t, r in self.resident.items() if r.end > r.offset)
        best: tuple[float, list[int]] | None = None
        for start in {0, *(b for _, b, _ in ranges), *(a for a, _, _ in ranges)}:
            end = start + size
            if end > self.problem.capacity // self.problem.align * self.problem.align:
                continue
            inside = [t for a, b, t in ranges if a < end and start < b]
            if not needed.isdisjoint(inside):
                continue
            cost = sum(map(self._cost, inside))
            if best is None or (cost, inside) < best:
                best = cost, inside
        if best is None:
            raise NoRoom
        return best[1]

    def _cost(self, t: int) -> float:
        """Cycles to bring a tensor back, less for those that are read late."""
        again = self._next_read(t, self.step + 1)
        if again == _NEVER:
            return 0.0
        cycles = self.problem.load_cycles(t) + (0 if t in self.outside else self.problem.store_cycles(t))
        return cycles / (again - self.step)

    def _next_read(self, t: int, step: int) -> int:
        reads = self.reads[t]
        k = bisect_right(reads, step - 1)
        return reads[k] if k < len(reads) else _NEVER
