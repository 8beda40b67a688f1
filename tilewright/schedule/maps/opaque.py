"""The default schedule of operators that bring their own loops: vectors where an innermost loop allows them.

The order of the loops is the operator's. An accumulation (the products of a recurrent network) goes into separate
lanes; independent elements go side by side; loops that allow neither stay as they are.
"""

from __future__ import annotations

from tilewright.loops.lower import Lowered
from tilewright.schedule.steps.vectorize import innermost_loops, vectorize_inner
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def schedule_own_loops(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Vectorise innermost loops where that is right."""
    s.simplify()
    for loop in innermost_loops(s):
        vectorize_inner(s, loop, target)
    s.simplify()
