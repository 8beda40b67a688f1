"""Copies in several runs, each of which is waited for where what it brings is read."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, insert_before
from tilewright.ir.sym import sym
from tilewright.loops.analysis.deps import accesses, conflicts
from tilewright.loops.edit import (
    ancestor_in,
    block_of,
    body_of,
    describe,
    enclosing_loops,
    extent_of,
    insert_after,
    is_in_run,
    kind_of,
    loop_var,
    names_in,
    refuse,
    rename_vars,
    substitute_in,
)
from tilewright.loops.machine.copies import copy_in
from tilewright.loops.primitive import primitive


@primitive
def split_run(func: Func, run: Op, loop: Op, position: int) -> Op:
    """Two runs in the place of one that copies: the first, which keeps its identity, up to a position of one of its
    loops; the second, which is returned, behind the runs that follow. What waits for the one waits for both.

        run copy on dma as t { for i in 0..n { a[i] = x[i] } }; run copy on dma as s { .. }; wait t, s

    becomes

        run copy on dma as t { for i in 0..p { a[i] = x[i] } }; run copy on dma as s { .. }
        run copy on dma as u { for i in 0..n - p { a[i + p] = x[i + p] } }; wait t, s, u

    ScheduleError when the run is no copy on a queue, when the position is not inside of the loop for certain, or when
    runs that follow wait for it, or use what it copies.
    """
    if run.name != "run" or not run.results or isinstance(copy_in(body_of(run).ops), str):
        refuse("split_run", run, "it is no copy on a queue")
    n = extent_of(loop)
    if loop not in body_of(run).walk() or not n.is_const or not 0 < position < n.value:
        refuse("split_run", run, f"{describe(loop)} is no loop of it with a position {position} inside")
    ops = block_of(run).ops
    last = ops.index(run)
    while last + 1 < len(ops) and ops[last + 1].name == "run":
        last += 1
    passed = ops[ops.index(run) + 1 : last + 1]
    if any(run.result in o.operands for o in passed) or [*conflicts(accesses([run]), accesses(passed))]:
        refuse("split_run", run, "runs that follow it use what it copies")
    place = list(body_of(run).walk()).index(loop)
    second = run.clone({})
    inner = list(body_of(second).walk())[place]
    v = loop_var(inner)
    inner.attrs["extent"] = n - position
    substitute_in(body_of(inner), {v: v + position})
    loop.attrs["extent"] = sym(position)
    rename_vars(body_of(second).ops, names_in(func))
    insert_after(ops[last], [second])
    for user in dict.fromkeys(run.result.users):
        user.set_operands([*user.operands, second.result])
    return second


@primitive
def wait_later(func: Func, waiting: Op, run: Op, anchor: Op) -> Op:
    """Wait for a run before an op that follows, and no longer where it was waited for; returns what waits now: a run
    itself where it is one, as with `wait`.

        wait t, u; S; T    ->    wait t; S; wait u; T

    ScheduleError when `waiting` does not wait for the run, or the op does not follow the run in its block or in a loop
    of that. Whether what reads the copy still comes after it is looked at when the kernel is verified.
    """
    if not run.results or run.result not in waiting.operands or anchor is waiting:
        refuse("wait_later", run, f"{describe(waiting)} does not wait for it, or does so already")
    follows = ancestor_in(anchor, block_of(run))
    ops = block_of(run).ops
    in_lanes = any(kind_of(o) == "vector" for o in enclosing_loops(anchor))
    if follows is None or ops.index(follows) <= ops.index(run) or is_in_run(anchor) or in_lanes:
        refuse("wait_later", run, f"{describe(anchor)} does not follow it, in its block or in a loop of that")
    waiting.set_operands([v for v in waiting.operands if v is not run.result])
    if waiting.name == "wait" and not waiting.operands:
        waiting.erase()
    if anchor.name == "run":
        anchor.set_operands(list(dict.fromkeys([*anchor.operands, run.result])))
        return anchor
    made = Op("wait", [run.result])
    insert_before(anchor, [made])
    return made
