"""Allocating a buffer in another memory."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.core import Func, Value
from tilewright.loops.edit import buffer_type, enclosing_loops, kind_of, refuse
from tilewright.loops.primitive import primitive
from tilewright.loops.spec import why_not_shared
from tilewright.target.machine import GLOBAL, REGISTERS

STEP = "set_space"


@primitive
def set_space(func: Func, buffer: Value, space: str) -> Value:
    """Allocate a local buffer in the memory of a name.

        alloc t: scratch f32[n]    ->    alloc t: space f32[n]

    ScheduleError for an argument, for the memory of arguments, for registers without a constant size or that other
    threads see, and when something reads the lanes of the buffer.
    """
    if buffer.op is None:
        refuse(STEP, buffer, "it is an argument of the kernel")
    if space == GLOBAL.name:
        refuse(STEP, buffer, f"'{space}' is the memory of arguments")
    type = buffer_type(buffer)
    if any(u.name == "lanes_reduce" for u in buffer.users):
        refuse(STEP, buffer, "its lanes are added up, which are in registers")
    if space == REGISTERS.name and not all(d.is_const for d in type.shape):
        refuse(STEP, buffer, "registers have a constant size")
    before = buffer.type
    buffer.type = replace(type, space=space)
    around = enclosing_loops(buffer.op)
    for loop in (o for u in buffer.users for o in enclosing_loops(u) if o not in around and kind_of(o) == "parallel"):
        reason = why_not_shared(loop, loop.attrs.get("level", ""))
        if reason is not None:
            buffer.type = before
            refuse(STEP, buffer, reason)
    return buffer
