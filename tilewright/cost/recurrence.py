"""Steps of recurrent networks: which batch entries go through time together, the register tile of a step, and in which
order weights are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.cost.core import (
    chains,
    exchange_cycles,
    is_kept,
    line_elements,
    multiply_cycles,
    stay_for_turns,
)
from tilewright.cost.parallel import exceeds_forks, is_worth_a_fork, share_of_greatest, threads
from tilewright.target.dots import Dot
from tilewright.target.target import Target

GROUPS = (6, 4, 3, 2, 1)
"""Numbers of batch entries that may go through time together where weights are few."""

USUAL_BATCH = 4
"""Entries that a batch of unknown size is taken to have: groups of them divide most larger batches."""

WEIGHTS_COST = 2
"""Entries that one more group costs, as it reads all weights again."""

FORKS_OF_STEP = 2
"""Times that waking threads may take, in the time of multiplying the recurrent weights once, for all entries to go
through time together where groups would compute some entries twice: fewer are multiplied so fast that threads do not
wait for each other at each step."""

LEAST_LINES = 4
"""Cache lines of units of a gate from which on the last one is filled up."""

ELEMENT = 4
"""Bytes of a state."""

MOST_LANES = 64
"""Lanes of one vector loop at most."""


@dataclass(frozen=True, slots=True)
class StepTile:
    """Entries and units whose sums are in registers at once."""

    entries: int
    units: int


@dataclass(frozen=True, slots=True)
class StepProduct:
    """A product of the state of a step: for each of `entries`, `gates` x `units` sums over `terms`."""

    entries: int
    gates: int
    units: int
    terms: int

    @property
    def multiplications(self) -> int:
        """Of one step."""
        return prod((self.entries, self.gates, self.units, self.terms))


def why_entries_are_shared(products: Sequence[StepProduct], groups: Sequence[int], target: Target) -> str:
    """Why threads share groups of batch entries, which do not wait for each other, rather than the products of each
    step; empty where they share the steps. `groups` are the numbers of groups of each loop over such."""
    n = threads(target)
    mean = sum(p.multiplications for p in products) // len(products)
    if not is_worth_a_fork(mean, target, (n + 4) / 2):
        return f"{mean} multiplications at a time are too few for {n} threads to wait for each other"
    best = min(groups, key=lambda count: share_of_greatest(count, n), default=1)
    if best == 1:
        return ""
    by_groups = sum(multiply_cycles(p.multiplications, ELEMENT, target) for p in products) / n
    if by_groups * share_of_greatest(best, n) > sum(_cycles_of_shared_step(p, target) for p in products):
        return ""
    return f"they get {best} groups of entries, and need not read what others write in each step"


def _cycles_of_shared_step(p: StepProduct, target: Target) -> float:
    """Cycles of one core for its tiles of units, and for the states of the units of all others, which it reads."""
    n = threads(target)
    tiles = -(-p.units // step_tile(p.entries, p.gates, p.units, target).units)
    lines = p.entries * -(-p.terms // line_elements(ELEMENT)) * (n - 1) / n
    multiplying = multiply_cycles(p.multiplications, ELEMENT, target) / n
    return multiplying * share_of_greatest(tiles, n) + exchange_cycles(lines, target)


def entries_together(batch: int, weights: int | None, target: Target) -> int:
    """How many of `batch` entries go through time together, with so many recurrent weights (None: not known). With
    weights that groups which take turns would push out of L2 all of them, so that each step reads them once."""
    entries = max(1, batch)
    size = min((n for n in GROUPS if n <= entries), key=lambda n: -(-entries // n) * (n + WEIGHTS_COST))
    if weights is None:
        return size
    is_short = not exceeds_forks(weights, FORKS_OF_STEP, target)
    return size if (is_short if entries % size else stay_for_turns(weights * ELEMENT, target)) else entries


def step_tile(entries: int, gates: int, units: int, target: Target, dot: Dot | None = None) -> StepTile:
    """As few tiles of entries as there are registers for (with one for the weights, one for products that `dot` does
    not add up itself, and one for each entry's state), of equal sizes as far as they can be; several vectors of units
    where an addition would wait for the one before."""
    spare = 1 if dot is None or dot.accumulates else 2
    most = max(1, (target.vector_registers - spare) // (gates + 1))
    rows = -(-entries // -(-entries // most))
    lanes = target.f32_lanes
    while (
        (lanes // target.f32_lanes) * rows * gates < chains(target)
        and 2 * lanes <= MOST_LANES
        and lanes < units
    ):
        lanes *= 2
    return StepTile(rows, lanes)


def reads_in_turns(weights: int, target: Target) -> bool:
    """Whether steps read weights of so many bytes in opposite orders, in turns: what L2 holds of them is still there.
    In one order all of them would push one another out. What fits needs no order."""
    return not is_kept(weights, target)


def floats_of_line() -> int:
    """Floats of a cache line: states of each entry begin with a line, and gates may."""
    return line_elements(ELEMENT)


def columns_of_gate(units: int) -> int:
    """Columns that a gate of so many units gets in the product of the inputs: whole cache lines, where that is little
    more to compute."""
    line = floats_of_line()
    return -(-units // line) * line if units >= LEAST_LINES * line else units
