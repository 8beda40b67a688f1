"""The default schedule of operators that bring their own loops: vectors where an innermost loop allows them.

The order of the loops is the operator's. An accumulation (the products of a recurrent network) goes into separate
lanes; independent elements go side by side; loops that allow neither stay as they are.
"""

from __future__ import annotations

from tilewright.loops.lower import Lowered
from tilewright.loops.nest import body_of, is_loop
from tilewright.schedule.rows import vectorize_inner
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def schedule_own_loops(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Vectorise innermost loops where that is right."""
    s.simplify()
    for loop in [op for op in s.func.body.walk() if is_loop(op)]:
        if loop.parent is not None and not any(is_loop(op) for op in body_of(loop).walk()):
            vectorize_inner(s, loop, target)
    s.simplify()
