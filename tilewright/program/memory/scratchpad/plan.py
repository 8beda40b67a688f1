"""The best schedule that is found: proved for few operations, near the bound for many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tilewright.program.memory.scratchpad.bound import least_cycles
from tilewright.program.memory.scratchpad.exact import best_actions
from tilewright.program.memory.scratchpad.listing import list_actions
from tilewright.program.memory.scratchpad.problem import ScratchpadProblem, check
from tilewright.program.memory.scratchpad.schedule import Action, TimeLine, simulate

MOST_EXACT = 12
"""Problems of more operations are not searched to the end: the states that a search meets double with each."""

TRIES = 400
"""Orders that are listed at most where the first one is above the bound."""

LISTED = 16_000
"""Operations that are listed in all of these orders; about a tenth of a millisecond each."""

AHEAD = (0, 2, 8)
"""How many operations further loads may be for, where those for the next operation have no room yet."""

LARGE, SMALL = 16, 3
"""A tensor is large, or small, that has more, or less, than such a part of the scratchpad."""

NEAR = 4
"""A tensor is near the largest that has more than such a part of its bytes."""

KINDS = (2, 4, 4)
"""How often an operation is moved, tensors are put on the other side, and come earlier or later."""

BLIND = 0.3
"""How often that is tried anywhere, and not where operations stand still."""

AROUND = 4
"""Operations before and behind one that stands still whose tensors may be in the way."""

STATES = 50_000
"""States that the exact search looks at; about a tenth of a millisecond each."""


@dataclass(frozen=True)
class Plan:
    """A schedule, its time line, and cycles below which no schedule ends (`bound`)."""

    actions: tuple[Action, ...]
    line: TimeLine
    bound: int

    @property
    def is_best(self) -> bool:
        """Whether no schedule is shorter."""
        return self.line.cycles <= self.bound


def plan(problem: ScratchpadProblem, tries: int = TRIES, states: int = STATES) -> Plan:
    """The shortest schedule found. InputError where an operation does not fit into the scratchpad. The work is
    counted, not timed, so that a plan does not depend on the machine."""
    check(problem)
    bound = least_cycles(problem)
    found = _best_listing(problem, bound, tries)
    line = simulate(problem, found)
    if line.cycles > bound and len(problem.operations) <= MOST_EXACT:
        exact = best_actions(problem, line.cycles, states)
        if exact.actions is not None:
            found, line = exact.actions, simulate(problem, exact.actions)
        if exact.is_complete:
            bound = line.cycles
    return Plan(found, line, bound)


@dataclass(frozen=True)
class _Way:
    """What a listing follows: the order of operations, how far ahead it loads, and the tensors that lie high and that
    come early."""

    order: tuple[int, ...]
    ahead: int
    high: frozenset[int] = frozenset()
    early: frozenset[int] = frozenset()


def _best_listing(problem: ScratchpadProblem, bound: int, tries: int) -> tuple[Action, ...]:
    """The best listing of the program's order, with tensors on either side, and of those that lead from it: one
    operation moved at a time, or a few tensors put on the other side around an operation that stands still."""
    random = Random(0)
    first = list(_first_ways(problem))
    best: tuple[Action, ...] = ()
    least, current, still = 1 << 62, first[0], [0]
    for n in range(max(1, min(tries, LISTED // max(1, len(problem.operations))))):
        way = first[n] if n < len(first) else _changed(problem, current, still, random)
        actions = list_actions(problem, way.order, way.ahead, way.high, way.early)
        line = simulate(problem, actions)
        if line.cycles <= least:
            best, least, current = actions, line.cycles, way
            still = _stillness(actions, line)
        if least <= bound:
            break
    return best


def _stillness(actions: Sequence[Action], line: TimeLine) -> list[int]:
    """The cycles that operations stand still before each of them, in their order."""
    found, last = [], 0
    for action, start, end in zip(actions, line.starts, line.ends, strict=True):
        if action.kind == "R":
            found.append(start - last)
            last = end
    return found


def _first_ways(problem: ScratchpadProblem) -> Iterator[_Way]:
    """The program's order, loading more or less ahead; with all tensors low, with small ones high, and with every other
    one of the large ones that are loaded: of two weights in a row one then leaves the place of the next but one. Then
    the same with large loads early, and with those alone that are near the largest."""
    order = tuple(range(len(problem.operations)))
    loads = dict.fromkeys(t for op in problem.operations for t in op.reads if problem.tensors[t].given)
    large = [t for t in loads if problem.bytes_of(t) * LARGE > problem.capacity]
    largest = max(map(problem.bytes_of, large), default=0)
    near = frozenset(t for t in large if problem.bytes_of(t) * NEAR > largest)
    small = frozenset(t for t in range(len(problem.tensors)) if problem.bytes_of(t) * SMALL < problem.capacity)
    sides = (frozenset[int](), frozenset(large[::2]), frozenset(large[1::2]), small)
    for early in dict.fromkeys((frozenset[int](), near, frozenset(large))):
        yield from (_Way(order, ahead, high, early) for high in sides for ahead in AHEAD)


def _changed(problem: ScratchpadProblem, way: _Way, still: Sequence[int], random: Random) -> _Way:
    """Another way: an operation is moved, or up to four tensors come earlier or later or lie on the other side, which
    are used around an operation; the longer all stand still before it, the more often."""
    kind = random.choices(("order", "high", "early"), KINDS)[0]
    if kind == "order":
        return replace(way, order=_moved(problem, way.order, random), ahead=random.choice(AHEAD))
    is_blind = random.random() < BLIND
    (k,) = random.choices(range(len(still)), None if is_blind else [n + 1 for n in still])
    near = [problem.operations[n] for n in way.order[max(0, k - AROUND) : k + AROUND]]
    if kind == "early":
        tensors = {t for op in near for t in op.reads if problem.tensors[t].given}
        return replace(way, early=way.early ^ _some(tensors, random))
    return replace(way, high=way.high ^ _some({t for op in near for t in (*op.reads, *op.writes)}, random))


def _some(tensors: set[int], random: Random) -> set[int]:
    return set(random.sample(sorted(tensors), min(len(tensors), random.randint(1, 4))))


def _moved(problem: ScratchpadProblem, order: Sequence[int], random: Random) -> tuple[int, ...]:
    """An order with one operation elsewhere, between those that it waits for and those that wait for it."""
    if len(order) < 2:
        return tuple(order)
    k = random.randrange(len(order))
    n, rest = order[k], [*order[:k], *order[k + 1 :]]
    at = {op: p for p, op in enumerate(rest)}
    low = max((at[b] + 1 for b in problem.before[n]), default=0)
    followers = {r for t in problem.operations[n].writes for r in problem.readers[t]}
    high = min((at[f] for f in followers), default=len(rest))
    to = random.randint(low, high)
    return (*rest[:to], n, *rest[to:])
