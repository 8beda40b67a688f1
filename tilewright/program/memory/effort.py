"""How much work a plan of memory is worth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlanEffort:
    """What is spent where the first plan is not known to be the best one: tasks that the search for an order tries, and
    the work of a search for offsets in units of about a tenth of a microsecond. Both are counted, not timed, so that
    a plan does not depend on the machine."""

    order: int
    offsets: int


FAST = PlanEffort(order=50_000, offsets=1_000_000)
"""A fraction of a second for programs of some hundred kernels, where nothing is proved earlier."""

SEARCH = PlanEffort(order=2_000_000, offsets=50_000_000)
"""Some seconds."""

EFFORTS = {"fast": FAST, "search": SEARCH}
"""By the names that users give."""
