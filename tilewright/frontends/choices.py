"""Which of several ranks a value has, where that follows from dims: decided once, for all calls of the model.

`Squeeze` without axes, and `If` on a dim whose branches differ in shape, give tensors of one rank or of another. A
compiled model has one; which one the rest of the model wants is found by trying.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import sym as s
from tilewright.ir.sym import Sym

MAX_ATTEMPTS = 16
"""Times that a model is translated at most, with other decisions each time."""

_LARGE = 1009
"""What dims are taken to be when nothing else tells which way a condition goes (counted up, so that they differ)."""


class Choices:
    """The decisions of one attempt: those of `plan`, then that each condition is what it is for large dims."""

    def __init__(self, plan: Sequence[bool] = ()) -> None:
        self._plan = tuple(plan)
        self._as_for_large: list[bool] = []
        self._decided: dict[Sym, bool] = {}

    def decide(self, condition: Sym) -> bool:
        """Whether `condition` is taken to hold; the same for the same condition and its opposite."""
        if condition not in self._decided:
            k = len(self._as_for_large)
            self._as_for_large.append(self._plan[k] if k < len(self._plan) else True)
            holds = self._as_for_large[k] == _holds_for_large(condition)
            self._decided[condition] = holds
            self._decided[s.logical_not(condition)] = not holds
        return self._decided[condition]

    @property
    def are_any(self) -> bool:
        return bool(self._as_for_large)

    def other_plan(self) -> tuple[bool, ...] | None:
        """The next decisions to try: the last that can be reversed is reversed; None when all have been tried."""
        plan = list(self._as_for_large)
        while plan and not plan[-1]:
            plan.pop()
        return (*plan[:-1], False) if plan else None


def _holds_for_large(condition: Sym) -> bool:
    names = sorted(v.name for v in condition.vars)
    return bool(condition.evaluate({name: _LARGE + k for k, name in enumerate(names)}))
