"""Marking loops to be written out."""

from __future__ import annotations

from tilewright.ir.core import Func, Op
from tilewright.loops.edit import extent_of, holds_parallel, kind_of, refuse, set_kind
from tilewright.loops.primitive import primitive


@primitive
def unroll(func: Func, loop: Op) -> Op:
    """Repeat the body for each iteration; registers then have constant indices.

        for i in 0..2 { S(i) }    ->    for i in 0..2 unroll { S(i) }

    ScheduleError when the extent is not a constant, when the loop is parallel or a vector already, or when it holds a
    parallel one.
    """
    if not extent_of(loop).is_const:
        refuse("unroll", loop, "its extent is not a constant; split it first")
    if kind_of(loop) not in ("serial", "unroll"):
        refuse("unroll", loop, f"it is a {kind_of(loop)} loop already")
    if holds_parallel(loop):
        refuse("unroll", loop, "threads share a loop in it")
    set_kind(loop, "unroll")
    return loop
