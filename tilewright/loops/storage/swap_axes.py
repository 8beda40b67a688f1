"""Laying a local buffer out in another order."""

from __future__ import annotations

from tilewright.ir.core import Func, Value
from tilewright.ir.types import buffer as dense
from tilewright.loops.edit import buffer_type, places_of, refuse
from tilewright.loops.primitive import primitive


@primitive
def swap_axes(func: Func, buffer: Value, first: int, second: int) -> Value:
    """Exchange two axes of a buffer that the kernel allocates, in its type and in all accesses.

        t: f32[8, 30]; S(t[i, j])    ->    t: f32[30, 8]; S(t[j, i])

    ScheduleError when the buffer is an argument, or has no such axes.
    """
    type = buffer_type(buffer)
    if buffer.op is None:
        refuse("swap_axes", buffer, "its caller knows its order")
    if not (0 <= first < type.rank and 0 <= second < type.rank):
        refuse("swap_axes", buffer, f"it has no axes {first} and {second}")
    order = list(range(type.rank))
    order[first], order[second] = second, first
    for op in places_of(buffer):
        op.attrs["idx"] = tuple(op.attrs["idx"][k] for k in order)
    buffer.type = dense(type.dtype, tuple(type.shape[k] for k in order), type.space)
    return buffer
