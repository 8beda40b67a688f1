"""What queues ask of a scheduled kernel: no wait or barrier that nothing needs, and events for those that are left."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Func, Op
from tilewright.loops.analysis.happens_before import Order
from tilewright.loops.queues.events import assign_events
from tilewright.target.machine import Machine


def finish_queues(func: Func, machine: Machine) -> None:
    """Complete a scheduled kernel for a machine with queues: waits that nothing needs are left out, and tokens have
    their events."""
    if machine.queues() and any(op.name in _MARKS for op in func.body.walk()):
        drop_needless_waits(func, [level.name for level in machine.levels])
        assign_events(func, machine)


_MARKS = ("run", "wait", "barrier")


def drop_needless_waits(func: Func, levels: Sequence[str]) -> int:
    """Take out tokens that nobody has to wait for, and barriers, one after the other, as long as all that meets in the
    kernel stays ordered; returns how many. Where one of two would do, the later one stays, so that nothing is later
    than before. Where the kernel is not ordered, nothing is done.

        wait t; wait u    ->    wait u    (where the run that gives u follows the one that gives t on its queue)
    """
    order = Order(func, levels)
    if order.why_not() is not None:
        return 0
    dropped = 0
    for op in [o for o in func.body.walk() if o.name in _MARKS]:
        if op.name == "barrier":
            dropped += _is_needless_barrier(op, order)
            continue
        for value in op.operands:
            kept = op.operands
            op.set_operands([v for v in kept if v is not value])
            if order.why_not() is None:
                dropped += 1
            else:
                op.set_operands(kept)
        if op.name == "wait" and not op.operands:
            op.erase()
    return dropped


def _is_needless_barrier(op: Op, order: Order) -> bool:
    """Whether a barrier is one, which is then gone."""
    block = op.parent
    assert block is not None
    at = block.ops.index(op)
    del block.ops[at]
    if order.why_not() is None:
        op.drop()
        return True
    block.ops.insert(at, op)
    return False
