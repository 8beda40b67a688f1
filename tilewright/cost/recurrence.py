"""Steps of recurrent networks: which batch entries go through time together, the register tile of a step, and in which
order weights are read."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.core import chains, is_kept, line_elements
from tilewright.target.target import Target

GROUPS = (6, 4, 3, 2, 1)
"""Numbers of batch entries that may go through time together where weights are few."""

WEIGHTS_COST = 2
"""Entries that one more group costs, as it reads all weights again."""

MANY_WEIGHTS = 1 << 18
"""Recurrent weights above which all entries go through time together, so that each step reads them once: a MiB, which
groups that take turns would push out of L2."""

SOME_WEIGHTS = 1 << 16
"""Recurrent weights from which on all entries go through time together where groups would compute some entries twice:
fewer are multiplied so fast that threads do not wait for each other at each step."""

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


def entries_together(batch: int, weights: int | None) -> int:
    """How many of `batch` entries go through time together, with so many recurrent weights (None: not known)."""
    entries = max(1, batch)
    size = min((n for n in GROUPS if n <= entries), key=lambda n: -(-entries // n) * (n + WEIGHTS_COST))
    few = weights is None or weights <= (SOME_WEIGHTS if entries % size else MANY_WEIGHTS)
    return size if few else entries


def step_tile(entries: int, gates: int, units: int, target: Target) -> StepTile:
    """As few tiles of entries as there are registers for (with one for the weights and one for each entry's state), of
    equal sizes as far as they can be; several vectors of units where an addition would wait for the one before."""
    most = max(1, (target.vector_registers - 1) // (gates + 1))
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
