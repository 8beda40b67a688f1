"""Which units become smaller: those that save the most time for the noise that they add, as long as the bound of the
drop stays within the budget.

The order comes from samples that the judgement does not see. Forms are judged one unit larger at a time, and the first
that fails ends it: so each is judged at the full confidence, though many are (a test in fixed sequence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Alternative:
    """A unit in a smaller kind: seconds that it saves, and the energy of its drop alone."""

    unit: str
    kind: str
    gain: float
    energy: float

    @property
    def drop(self) -> float:
        return math.sqrt(self.energy) if self.energy < math.inf else math.inf


def order(candidates: Sequence[Alternative], budget: float) -> tuple[list[Alternative], list[Alternative]]:
    """Candidates by noise for each second saved, without those that exceed the budget alone, which come second."""
    fits = [c for c in candidates if c.gain > 0 and c.drop <= budget]
    others = [c for c in candidates if c.gain > 0 and c.drop > budget]
    return sorted(fits, key=lambda c: (c.energy / c.gain, c.unit)), others


Choice = Mapping[str, Alternative]


def grow(
    ordered: Sequence[Alternative], is_within: Callable[[Choice], bool], progress: Callable[[int, int], None]
) -> tuple[dict[str, Alternative], Alternative | None]:
    """The largest choice that is within the budget, and the candidate at which it ended (None: all were taken). A unit
    that has a kind gets another one only where that saves more."""
    chosen: dict[str, Alternative] = {}
    for place, candidate in enumerate(ordered):
        progress(place, len(ordered))
        present = chosen.get(candidate.unit)
        if present is not None and present.gain >= candidate.gain:
            continue
        trial = {**chosen, candidate.unit: candidate}
        if not is_within(trial):
            return chosen, candidate
        chosen = trial
    progress(len(ordered), len(ordered))
    return chosen, None
