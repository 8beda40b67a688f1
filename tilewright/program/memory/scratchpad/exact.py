"""The shortest schedule of few operations, by branch and bound over states of the scratchpad.

Actions are taken in the order in which they start, so that all that lies in the scratchpad when one starts is known. A
state that another one with the same tensors inside is never behind of is given up, and so is one that cannot end before
the best schedule so far. Bytes are counted, not addresses: a schedule that is complete gets its addresses from the
packing of arenas, and one whose tensors cannot be placed is no schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from tilewright.program.memory.packing.boxes import TimedBox
from tilewright.program.memory.packing.pack import pack
from tilewright.program.memory.scratchpad.bound import areas, behind, beside, in_a_row, waits_of
from tilewright.program.memory.scratchpad.problem import ScratchpadProblem
from tilewright.program.memory.scratchpad.schedule import Action, simulate

_PACKING = 2_000_000
"""Work of one packing, in units of about a tenth of a microsecond."""


_Inside = dict[int, tuple[int, int]]
"""Tensors of the scratchpad: since when they are ready, and until when an action uses them."""

_Pending = tuple[tuple[int, int], ...]
"""Times at which bytes become free, and how many."""


@dataclass(frozen=True)
class Exact:
    """The best schedule, None where there is none that is shorter than what was known; `is_complete` if the search came
    to its end."""

    actions: tuple[Action, ...] | None
    is_complete: bool


@dataclass(frozen=True, slots=True)
class _State:
    """What is done, and when things are ready: queues of loads, operations and stores (`load`, `compute`, `store`), the
    tensors inside with when they are ready and until when they are used, those that the large memory has, and bytes
    that become free, each with its time. No later action starts before `now`."""

    now: int
    load: int
    compute: int
    store: int
    done: int
    inside: tuple[tuple[int, int, int], ...]
    outside: tuple[tuple[int, int], ...]
    free: int
    pending: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Step:
    """An action of a path, the times of its start and of the tensors it frees, and the step before it."""

    before: _Step | None
    kind: str
    index: int
    start: int


def best_actions(problem: ScratchpadProblem, known: int | None, states: int) -> Exact:
    """The shortest schedule that is shorter than `known` cycles, looking at so many states at most."""
    return _Search(problem, known, states).run()


class _Search:
    def __init__(self, problem: ScratchpadProblem, known: int | None, states: int) -> None:
        self.problem = problem
        self.best = known if known is not None else 1 << 62
        self.left = states
        self.found: tuple[Action, ...] | None = None
        self.all = (1 << len(problem.operations)) - 1
        self.needs = [sum(1 << k for k in before) for before in problem.before]
        self.behind = behind(problem)
        self.wanted = frozenset(problem.stored)
        self.read_by = [sum(1 << n for n in readers) for readers in problem.readers]
        self.seen: dict[object, list[_State]] = {}
        self.is_complete = True
        self.fits_whole = sum(map(problem.bytes_of, range(len(problem.tensors)))) <= problem.capacity
        self.areas = areas(problem)
        self.waits = waits_of(problem)
        self.beside = beside(problem)
        self.stores = [
            sum(problem.store_cycles(t) for t in op.writes if t in self.wanted) for op in problem.operations
        ]
        self.load_areas = {t: problem.bytes_of(t) * problem.load_cycles(t) for t in problem.loaded}

    def run(self) -> Exact:
        problem = self.problem
        outside = tuple((n, 0) for n, t in enumerate(problem.tensors) if t.given)
        start = _State(0, 0, 0, 0, 0, (), outside, problem.capacity, ())
        self._visit(start, None)
        return Exact(self.found, self.is_complete)

    def _visit(self, first: _State, path: _Step | None) -> None:
        waiting = [(first, path)]
        while waiting:
            state, path = waiting.pop()
            if self._bound(state) >= self.best:
                continue
            if self.left <= 0:
                self.is_complete = False
                return
            self.left -= 1
            if state.done == self.all and not self._unstored(state):
                self._complete(state, path)
                continue
            if self._is_behind(state):
                continue
            following = sorted(self._following(state, path), key=lambda found: -found[0])
            waiting += [(after, step) for _, after, step in following]

    # Bounds

    def _bound(self, state: _State) -> int:
        """Cycles before which nothing that follows a state ends: as `least_cycles`, of what is left to do."""
        problem, now, done = self.problem, state.now, state.done
        rest = [n for n in range(len(problem.operations)) if not done >> n & 1]
        inside = {t: ready for t, ready, _ in state.inside}
        outside = {t for t, _ in state.outside}
        load, compute, store = (max(now, at) for at in (state.load, state.compute, state.store))
        stores = [t for t in self.wanted if t not in outside]
        ends = [state.load, state.compute, state.store]
        if stores:
            ends.append(store + sum(map(problem.store_cycles, stores)))
        if not rest:
            return max(ends)
        loads = {t: problem.load_cycles(t) for t in problem.loaded if t not in inside and self.read_by[t] & ~done}
        jobs = []
        own = dict.fromkeys(rest, 0)
        for t, cycles in loads.items():
            readers = [n for n in problem.readers[t] if not done >> n & 1]
            if len(readers) == 1:
                own[readers[0]] += cycles
        for n in rest:
            op, (ops, given) = problem.operations[n], self.waits[n]
            jobs.append((own[n], op.cycles))
            ready = max((inside.get(t, 0) for t in op.reads), default=0)
            loading = load + sum(loads[t] for t in given if t in loads) if loads else 0
            computing = compute + sum(problem.operations[k].cycles for k in ops if k != n and not done >> k & 1)
            ends.append(self.behind[n] + max(ready, loading, computing))
        ends.append(in_a_row(jobs, load, compute) + self._last(rest))
        ends.append(in_a_row([(problem.operations[n].cycles, self.stores[n]) for n in rest], compute, store))
        remaining = self.all & ~done
        alone = sum(cycles for t, cycles in loads.items() if not self.beside[t] & remaining)
        ends.append(now + sum(problem.operations[n].cycles for n in rest) + alone + self._last(rest))
        if problem.capacity:
            area = sum(self.areas[n] for n in rest) + sum(self.load_areas[t] for t in loads)
            ends.append(now - (-area // problem.capacity))
        return max(ends)

    def _last(self, rest: Sequence[int]) -> int:
        """The least cycles of stores behind the last of these operations."""
        return min(self.stores[n] for n in rest)

    def _is_behind(self, state: _State) -> bool:
        """Whether a state that was looked at is as far, and nowhere later."""
        key = state.done, tuple(t for t, *_ in state.inside), tuple(t for t, _ in state.outside)
        others = self.seen.setdefault(key, [])
        if any(_dominates(other, state) for other in others):
            return True
        others[:] = [other for other in others if not _dominates(state, other)]
        others.append(state)
        return False

    # Actions

    def _following(self, state: _State, path: _Step | None) -> list[tuple[int, _State, _Step]]:
        """What can start next, each with a bound. A store of what is wanted takes no bytes and may free some: nothing
        but a store comes next where one has ended before anything is made that could be stored in its place."""
        inside = {t: (ready, busy) for t, ready, busy in state.inside}
        outside = dict(state.outside)
        stores = list(self._stores(state, path, inside, outside))
        others = [*self._operations(state, path, inside, outside), *self._loads(state, path, inside, outside)]
        soonest = min((after.now for _, after, _ in others), default=1 << 62)
        rest = [op.cycles for n, op in enumerate(self.problem.operations) if not state.done >> n & 1]
        made = soonest + min(rest, default=0)
        if any(step.index in self.wanted and after.now <= soonest and after.store <= made for _, after, step in stores):
            return stores
        return [*others, *stores]

    def _operations(
        self, state: _State, path: _Step | None, inside: _Inside, outside: dict[int, int]
    ) -> Iterator[tuple[int, _State, _Step]]:
        problem = self.problem
        for n, op in enumerate(problem.operations):
            if state.done >> n & 1 or self.needs[n] & ~state.done or any(t not in inside for t in op.reads):
                continue
            size = sum(map(problem.bytes_of, op.writes))
            soonest = max([state.compute, state.now, *(inside[t][0] for t in op.reads)])
            for room, held, pending, steps in self._rooms(state, path, inside, outside, size, soonest, op.reads):
                start = max(soonest, room)
                end = start + op.cycles
                read = {t: (held[t][0], max(held[t][1], end)) for t in op.reads}
                now = held | read | dict.fromkeys(op.writes, (end, end))
                after = replace(
                    state, now=start, compute=end, done=state.done | 1 << n, free=state.free - size, pending=pending
                )
                yield self._ready(after, now, outside, _Step(steps, "R", n, start))

    def _loads(
        self, state: _State, path: _Step | None, inside: _Inside, outside: dict[int, int]
    ) -> Iterator[tuple[int, _State, _Step]]:
        for t, since in outside.items():
            if t in inside or not self.read_by[t] & ~state.done:
                continue
            size = self.problem.bytes_of(t)
            soonest = max(state.load, state.now, since)
            for room, held, pending, steps in self._rooms(state, path, inside, outside, size, soonest, ()):
                start = max(soonest, room)
                end = start + self.problem.load_cycles(t)
                after = replace(state, now=start, load=end, free=state.free - size, pending=pending)
                yield self._ready(after, held | {t: (end, end)}, outside, _Step(steps, "L", t, start))

    def _stores(
        self, state: _State, path: _Step | None, inside: _Inside, outside: dict[int, int]
    ) -> Iterator[tuple[int, _State, _Step]]:
        for t, (ready, busy) in inside.items():
            if t in outside or (self.fits_whole and t not in self.wanted):
                continue
            start = max(state.store, state.now, ready)
            end = start + self.problem.store_cycles(t)
            after = replace(state, now=start, store=end)
            held = inside | {t: (ready, max(busy, end))}
            yield self._ready(after, held, outside | {t: end}, _Step(path, "S", t, start))

    def _rooms(
        self, state: _State, path: _Step | None, inside: _Inside, outside: dict[int, int], size: int, soonest: int,
        kept: Sequence[int],
    ) -> Iterator[tuple[int, _Inside, _Pending, _Step | None]]:  # fmt: skip
        """Ways to have `size` bytes: since when they are free, what is inside, what becomes free, and the path with the
        tensors that leave. They leave only for an earlier start, and none that is not needed for it."""
        room = _room_at(state.free, state.pending, size)
        if room is not None:
            yield room, inside, state.pending, path
            if room <= soonest:
                return
        may_leave = [t for t in inside if t in outside and t not in kept and self.problem.bytes_of(t)]
        starts: dict[tuple[int, ...], int] = {(): 1 << 62 if room is None else room}
        for count in range(1, len(may_leave) + 1):
            for leaving in combinations(may_leave, count):
                pending = tuple(sorted([*state.pending, *((inside[t][1], self.problem.bytes_of(t)) for t in leaving)]))
                found = _room_at(state.free, pending, size)
                found = 1 << 62 if found is None else max(found, soonest)
                starts[leaving] = found
                if found < min(starts[fewer] for fewer in combinations(leaving, count - 1)):
                    steps = path
                    for t in leaving:
                        steps = _Step(steps, "F", t, inside[t][1])
                    yield found, {t: times for t, times in inside.items() if t not in leaving}, pending, steps

    def _ready(
        self, state: _State, inside: dict[int, tuple[int, int]], outside: dict[int, int], step: _Step
    ) -> tuple[int, _State, _Step]:
        """The state after an action, without the tensors that nothing needs any more."""
        pending = list(state.pending)
        for t in [t for t in inside if not self.read_by[t] & ~state.done and (t in outside or t not in self.wanted)]:
            pending.append((inside.pop(t)[1], self.problem.bytes_of(t)) if t in inside else (0, 0))
        free = state.free + sum(size for time, size in pending if time <= state.now)
        after = _State(
            state.now, state.load, state.compute, state.store, state.done,
            tuple(sorted((t, *times) for t, times in inside.items())),
            tuple(sorted((t, at) for t, at in outside.items() if self.read_by[t] & ~state.done or t in self.wanted)),
            free, tuple(sorted((time, size) for time, size in pending if time > state.now and size)),
        )  # fmt: skip
        return self._bound(after), after, step

    def _unstored(self, state: _State) -> bool:
        return not self.wanted <= {t for t, _ in state.outside}

    # Addresses

    def _complete(self, state: _State, path: _Step | None) -> None:
        """Take a schedule that is shorter, if its tensors can be placed."""
        end = max(state.load, state.compute, state.store)
        if end >= self.best:
            return
        actions = self._placed(path)
        if actions is None:
            self.is_complete = False  # the packing is a search, too, and may have missed a place
            return
        line = simulate(self.problem, actions)
        assert line.cycles <= end, "addresses are free when their bytes are"
        self.best, self.found = line.cycles, actions

    def _placed(self, path: _Step | None) -> tuple[Action, ...] | None:
        return place(self.problem, steps_of(path))


def steps_of(path: _Step | None) -> list[tuple[str, int, int]]:
    """The actions of a path, from the first on: kind, number, start."""
    found = []
    while path is not None:
        found.append((path.kind, path.index, path.start))
        path = path.before
    return found[::-1]


def place(problem: ScratchpadProblem, steps: Sequence[tuple[str, int, int]]) -> tuple[Action, ...] | None:
    """Actions with addresses; None where the tensors find none."""
    stays = _Stays(problem, steps)
    events = sorted({event for stay in stays.all for event in (stay.start, stay.end)})
    step_of = {event: k for k, event in enumerate(events)}
    boxes = [
        TimedBox(problem.bytes_of(s.tensor) // problem.align, step_of[s.start], step_of[s.end] - 1) for s in stays.all
    ]
    packed = pack(boxes, _PACKING)
    if packed.total * problem.align > problem.capacity:
        return None
    return stays.actions([offset * problem.align for offset in packed.offsets])


@dataclass
class _Interval:
    """A tensor in the scratchpad. `start` and `end` are times, each with the number of its line, by which those of the
    same time are ordered."""

    tensor: int
    start: tuple[int, int]
    end: tuple[int, int]


class _Stays:
    """When each tensor lies in the scratchpad, from actions without addresses."""

    def __init__(self, problem: ScratchpadProblem, steps: Sequence[tuple[str, int, int]]) -> None:
        self.problem, self.steps = problem, steps
        self.all: list[_Interval] = []
        self.here: dict[int, int] = {}
        last_use = self._last_uses()
        self.lines: list[tuple[str, int, tuple[int, ...]]] = []
        self.now = 0
        for k, (kind, index, start) in enumerate(steps):
            if kind == "F":
                self._free(index)
                continue
            self.now = start
            end = start + self._cycles(kind, index)
            made: tuple[int, ...] = ()
            if kind == "L":
                made = (self._begin(index, start, end),)
            elif kind == "R":
                op = problem.operations[index]
                for t in op.reads:
                    self._use(t, end)
                made = tuple(self._begin(t, start, end) for t in op.writes)
            elif kind == "S":
                self._use(index, end)
            self.lines.append((kind, index, made))
            for t in [t for t in self.here if last_use.get(t, -1) <= k]:
                self._free(t)

    def _last_uses(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for k, (kind, index, _) in enumerate(self.steps):
            op = self.problem.operations[index] if kind == "R" else None
            for t in (*op.reads, *op.writes) if op is not None else (index,):
                found[t] = k
        return found

    def _cycles(self, kind: str, index: int) -> int:
        match kind:
            case "L":
                return self.problem.load_cycles(index)
            case "R":
                return self.problem.operations[index].cycles
            case "S":
                return self.problem.store_cycles(index)
        return 0

    def _begin(self, tensor: int, start: int, end: int) -> int:
        self.here[tensor] = len(self.all)
        self.all.append(_Interval(tensor, (start, len(self.lines)), (end, 0)))
        return self.here[tensor]

    def _use(self, tensor: int, end: int) -> None:
        stay = self.all[self.here[tensor]]
        stay.end = max(stay.end, (end, 0))

    def _free(self, tensor: int) -> None:
        stay = self.all[self.here.pop(tensor)]
        stay.end = max(stay.end[0], self.now), len(self.lines)
        self.lines.append(("F", tensor, ()))

    def actions(self, offsets: Sequence[int]) -> tuple[Action, ...]:
        return tuple(Action(kind, index, tuple(offsets[m] for m in made)) for kind, index, made in self.lines)  # type: ignore[arg-type]


def _room_at(free: int, pending: _Pending, size: int) -> int | None:
    """When so many bytes are free; None if they never are without an action."""
    time = 0
    for time_of, freed in pending:
        if free >= size:
            break
        free, time = free + freed, time_of
    return time if free >= size else None


def _dominates(a: _State, b: _State) -> bool:
    """Whether nothing in `a` is later than in `b`, of the same tensors; times before `now` are the same as now."""
    now = b.now
    if a.now > now or max(a.load, now) > max(b.load, now):
        return False
    if max(a.compute, now) > max(b.compute, now) or max(a.store, now) > max(b.store, now):
        return False
    for (_, ready, busy), (_, other, until) in zip(a.inside, b.inside, strict=True):
        if max(ready, now) > max(other, now) or max(busy, now) > max(until, now):
            return False
    if any(max(x, now) > max(y, now) for (_, x), (_, y) in zip(a.outside, b.outside, strict=True)):
        return False
    times = sorted({now, *(time for time, _ in (*a.pending, *b.pending) if time > now)})
    return all(_free_at(a, time) >= _free_at(b, time) for time in times)


def _free_at(state: _State, time: int) -> int:
    return state.free + sum(size for when, size in state.pending if when <= time)
