"""Handing a loop nest to an intrinsic of the machine."""

from __future__ import annotations

from tilewright.ir.core import Block, Func, Op
from tilewright.ir.types import TokenType
from tilewright.loops.edit import block_of, enclosing_loops, is_in_run, kind_of, refuse
from tilewright.loops.machine.match_intrinsic import match_intrinsic
from tilewright.loops.machine.vector_unit import why_not_in_lanes
from tilewright.loops.primitive import primitive
from tilewright.loops.spec import why_not_apart
from tilewright.target.machine import Intrinsic, VectorUnit


@primitive
def tensorize(func: Func, loop: Op, intrinsic: Intrinsic | VectorUnit) -> Op:
    """Let an intrinsic, or a vector unit, do what a nest does; returns the run.

        for i in 0..16 { for j in 0..16 { for k in 0..16 { c[i, j] += a[i, k] * b[k, j] } } }

    becomes, with an intrinsic `mma` on queue `tensor` whose body is such a nest,

        run mma on tensor as t { for i in 0..16 { ... } }

    Nobody waits for a run on a queue yet (see `wait`). ScheduleError when the nest does anything else than the body of
    the intrinsic (the same ops up to names; extents, strides and memories that it takes), or is in a run already.
    """
    if isinstance(intrinsic, VectorUnit):
        found: object = why_not_in_lanes(intrinsic, [loop])
    else:
        found = match_intrinsic(intrinsic, loop)
    if isinstance(found, str):
        refuse("tensorize", loop, f"it is not intrinsic '{intrinsic.name}': {found}")
    return put_in_run("tensorize", loop, intrinsic.name, intrinsic.queue)


def put_in_run(step: str, loop: Op, intrinsic: str, queue: str) -> Op:
    """A run in the place of a loop, which becomes its body."""
    if is_in_run(loop):
        refuse(step, loop, "it is in a run already")
    if any(kind_of(o) == "vector" for o in enclosing_loops(loop)):
        refuse(step, loop, "it is in a vector loop")
    reason = why_not_apart(loop, is_run=True)
    if reason is not None:
        refuse(step, loop, reason)
    around = block_of(loop)
    position = around.ops.index(loop)
    body = Block()
    types = [TokenType()] if queue else []
    run = Op("run", [], types, {"intrinsic": intrinsic, "queue": queue}, [body], loop.loc)
    run.parent = around
    around.ops[position] = run
    body.append(loop)
    return run
