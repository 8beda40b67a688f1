"""Seeing two axes of a buffer as one."""

from __future__ import annotations

from tilewright.ir.core import Func, Value
from tilewright.ir.sym import ZERO, Sym
from tilewright.ir.sym import simplify as simplify_sym
from tilewright.ir.types import buffer as dense
from tilewright.loops.analysis.bounds import relevant
from tilewright.loops.edit import buffer_type, places_of, ranges_at, refuse
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.primitive import primitive


@primitive
def merge_axes(func: Func, buffer: Value, axis: int) -> Value:
    """Make one axis of `axis` and the next, which lie one behind the other in memory.

        S(x[v // 56, v % 56])    ->    S(x[v])        for x: f32[56, 56] seen as f32[3136]

    An argument's type changes; its caller passes the same memory. ScheduleError when the buffer is not dense, has no
    such axes, or is expected in packed layout.
    """
    type = buffer_type(buffer)
    if not type.is_dense or type.offset is not ZERO:
        refuse("merge_axes", buffer, "it is not dense")
    if not 0 <= axis < type.rank - 1:
        refuse("merge_axes", buffer, f"it has no axes {axis} and {axis + 1}")
    if any(func.args[k] is buffer for k in kernel_info(func).packed):
        refuse("merge_axes", buffer, "it is packed")
    n = type.shape[axis + 1]
    for op in places_of(buffer):
        idx: tuple[Sym, ...] = op.attrs["idx"]
        merged = idx[axis] * n + idx[axis + 1]
        merged = simplify_sym(merged, relevant(ranges_at(op), merged))
        op.attrs["idx"] = (*idx[:axis], merged, *idx[axis + 2 :])
    shape = (*type.shape[:axis], type.shape[axis] * n, *type.shape[axis + 2 :])
    buffer.type = dense(type.dtype, shape, type.space)
    return buffer


def merge_alike(func: Func, buffer: Value, other: Func, same: Value) -> None:
    """Merge axes of a buffer of `func` and of `same`, the same memory in `other`, until both see the same axes.

        f32[4, 7, 8] and f32[28, 8]    ->    f32[28, 8]

    ScheduleError where `merge_axes` refuses.
    """
    while (shape := buffer_type(buffer).shape) != (others := buffer_type(same).shape):
        first = next(k for k, (n, m) in enumerate(zip(shape, others, strict=False)) if n is not m)
        if len(shape) >= len(others):
            merge_axes(func, buffer, first)
        else:
            merge_axes(other, same, first)
