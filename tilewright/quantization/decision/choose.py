"""Which units become smaller: those that save the most time for the noise that they add, as long as the bound of the
drop stays within the budget.

The order comes from samples that the judgement does not see. Forms are judged one unit larger at a time, and the first
that fails ends it: so each is judged at the full confidence, though many are (a test in fixed sequence).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

STEP = 1.1
"""Ratio of predicted energies of choices that are judged one after the other: a twentieth in the drop."""

LARGE_STEP = 4.0
LARGE_STEP_BELOW = 0.25
"""The same as long as the predicted drop is below this share of the budget: predictions are not so far off."""


@dataclass(frozen=True)
class Alternative:
    """A unit in a smaller kind: seconds that it saves, and the energy of its drop alone, which is predicted with a
    factor of `caution`."""

    unit: str
    kind: str
    gain: float
    energy: float
    caution: float = 1.0

    @property
    def drop(self) -> float:
        return math.sqrt(self.energy) if self.energy < math.inf else math.inf


    @property
    def expected(self) -> float:
        return self.drop / self.caution


def order(
    candidates: Sequence[Alternative], budget: float, least: float = 0.0
) -> tuple[list[Alternative], list[Alternative]]:
    """Candidates by noise for each second saved, without those that exceed the budget alone, which come second. Where
    the others save less than `least` seconds together, which is nothing, those that are expected to be within it may
    as well be tried: few items exclude nearly everything with caution."""
    able = [c for c in candidates if c.gain > 0]
    fits = [c for c in able if c.drop <= budget]
    gains: dict[str, float] = {}
    for c in fits:
        gains[c.unit] = max(gains.get(c.unit, 0.0), c.gain)
    if sum(gains.values()) < least:
        fits = [c for c in able if c.expected <= budget]
    others = [c for c in able if c not in fits]
    return sorted(fits, key=lambda c: (c.energy / c.gain, c.unit)), others


Choice = Mapping[str, Alternative]


def steps(ordered: Sequence[Alternative], budget: float) -> list[dict[str, Alternative]]:
    """The choices that are judged, each larger than the one before, by a share of its predicted energy: candidates that
    add next to nothing are taken together, as each judgement runs the model on all held-back samples. A unit that has a
    kind gets another one only where that saves more."""
    found: list[dict[str, Alternative]] = []
    chosen: dict[str, Alternative] = {}
    last = 0.0
    for candidate in ordered:
        present = chosen.get(candidate.unit)
        if present is not None and present.gain >= candidate.gain:
            continue
        chosen = {**chosen, candidate.unit: candidate}
        energy = math.fsum(c.energy for c in chosen.values())
        step = LARGE_STEP if math.sqrt(energy) < LARGE_STEP_BELOW * budget else STEP
        if not found or energy > step * last:
            found.append(chosen)
            last = energy
        else:
            found[-1] = chosen
    return found


def grow(
    choices: Sequence[Choice], is_within: Callable[[Choice], bool], progress: Callable[[int, int], None]
) -> list[Choice]:
    """The choices that are within the budget, up to the first that is not."""
    for place, choice in enumerate(choices):
        progress(place, len(choices))
        if not is_within(choice):
            return list(choices[:place])
    progress(len(choices), len(choices))
    return list(choices)
