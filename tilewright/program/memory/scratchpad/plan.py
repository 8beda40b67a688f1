"""The best schedule that is found: proved for few operations, near the bound for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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

LISTED = 8_000
"""Operations that are listed in all of these orders; about a tenth of a millisecond each."""

AHEAD = (0, 2, 8)
"""How many operations further loads may be for, where those for the next operation have no room yet."""

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
    found = _best_order(problem, bound, tries)
    line = simulate(problem, found)
    if line.cycles > bound and len(problem.operations) <= MOST_EXACT:
        exact = best_actions(problem, line.cycles, states)
        if exact.actions is not None:
            found, line = exact.actions, simulate(problem, exact.actions)
        if exact.is_complete:
            bound = line.cycles
    return Plan(found, line, bound)


def _best_order(problem: ScratchpadProblem, bound: int, tries: int) -> tuple[Action, ...]:
    """The best listing of the program's order and of those that lead from it, one operation moved at a time."""
    current = order = tuple(range(len(problem.operations)))
    best: tuple[Action, ...] = ()
    least, random = 1 << 62, Random(0)
    ahead = 0
    for n in range(max(1, min(tries, LISTED // max(1, len(order))))):
        if n < len(AHEAD):
            ahead = AHEAD[n]
        else:
            order, ahead = _moved(problem, current, random), random.choice(AHEAD)
        actions = list_actions(problem, order, ahead)
        cycles = simulate(problem, actions).cycles
        if cycles <= least:
            best, least, current = actions, cycles, order
        if least <= bound:
            break
    return best


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
