"""Copies that go on beside the thread that starts them, and waiting for what runs so."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, insert_before
from tilewright.loops.edit import (
    ancestor_in,
    block_of,
    describe,
    enclosing_loops,
    insert_after,
    is_in_run,
    kind_of,
    refuse,
)
from tilewright.loops.machine.copies import copy_in, why_not_on
from tilewright.loops.machine.tensorize import put_in_run
from tilewright.loops.primitive import primitive
from tilewright.target.machine import COPY, Route

PLACES = ("before", "after")
"""Where what waits stands, as seen from another op."""


@primitive
def async_copy(func: Func, loop: Op, route: Route) -> Op:
    """Let a copy run on the queue of a route; returns the run.

        for i in 0..n { a[i] = x[i] }    ->    run copy on dma as t { for i in 0..n { a[i] = x[i] } }

    Nobody waits for it yet (see `wait`). ScheduleError when the nest does more than to copy one buffer to another, or
    when their memories or the bytes that follow each other are not those of the route.
    """
    copy = copy_in([loop])
    problem = copy if isinstance(copy, str) else why_not_on(copy, route)
    if problem is not None:
        refuse("async_copy", loop, problem)
    return put_in_run("async_copy", loop, COPY, route.queue)


@primitive
def wait(func: Func, run: Op, anchor: Op, place: str = "before") -> Op:
    """Wait for a run on a queue before an op is done, or after it; returns the wait, or `anchor` where it is a run that
    starts only when the other has ended.

        run copy on dma as t { .. }; S    ->    run copy on dma as t { .. }; wait t; S

    ScheduleError when the run gives no token, or when the op does not follow it in the same block or in a loop there.
    """
    if run.name != "run" or not run.results:
        refuse("wait", run, "it is no run on a queue")
    if place not in PLACES:
        refuse("wait", run, f"place='{place}' is none of {', '.join(PLACES)}")
    follows = ancestor_in(anchor, block_of(run))
    ops = block_of(run).ops
    if follows is None or ops.index(follows) < ops.index(run) or (follows is run and (anchor, place) != (run, "after")):
        refuse("wait", run, f"{describe(anchor)} does not follow it, in its block or in a loop of that")
    if is_in_run(anchor) or any(kind_of(o) == "vector" for o in enclosing_loops(anchor)):
        refuse("wait", run, f"{describe(anchor)} is in a run or a vector loop")
    if place == "after" and (anchor.name == "return" or (anchor.results and anchor.name != "run")):
        refuse("wait", run, f"{describe(anchor)} is no statement that something follows")
    if anchor.name == "run" and place == "before":
        anchor.set_operands(list(dict.fromkeys([*anchor.operands, run.result])))
        return anchor
    waiting = Op("wait", [run.result])
    (insert_before if place == "before" else insert_after)(anchor, [waiting])
    return waiting
