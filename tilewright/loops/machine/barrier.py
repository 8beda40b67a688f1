"""Letting the threads of a level wait for each other."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, insert_before
from tilewright.loops.edit import enclosing, insert_after, is_in_run, is_loop, kind_of, loop_var, refuse
from tilewright.loops.machine.async_copy import PLACES
from tilewright.loops.primitive import primitive


@primitive
def barrier(func: Func, anchor: Op, level: str, place: str = "after") -> Op:
    """Let all threads of a level come together after an op, or before it; returns the barrier.

        for i parallel { S }; for j parallel { T }    ->    for i parallel { S }; barrier level; for j parallel { T }

    ScheduleError in a run, in a loop of that level, in a vector loop, or under a condition that is computed from data.
    """
    if is_in_run(anchor):
        refuse("barrier", anchor, "it is in a run, which one thread starts")
    if place not in PLACES:
        refuse("barrier", anchor, f"place='{place}' is none of {', '.join(PLACES)}")
    if place == "after" and anchor.name == "return":
        refuse("barrier", anchor, "nothing follows it")
    for o in enclosing(anchor):
        if o.name == "if" and o.operands:
            refuse("barrier", anchor, "it is under a condition that is computed from data, by which threads may differ")
        if is_loop(o) and (o.attrs.get("level") == level or kind_of(o) == "vector"):
            refuse("barrier", anchor, f"it is in loop '{loop_var(o)}', whose iterations cannot wait for each other")
    made = Op("barrier", attrs={"level": level})
    (insert_after if place == "after" else insert_before)(anchor, [made])
    return made
