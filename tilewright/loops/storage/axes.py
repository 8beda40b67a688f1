"""Seeing two axes of a buffer as one, or one as two."""

from __future__ import annotations

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import ZERO, Sym, sym
from tilewright.ir.sym import simplify as simplify_sym
from tilewright.ir.types import BufferType
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
    type = _type_of_plain(func, buffer, "merge_axes")
    if not 0 <= axis < type.rank - 1:
        refuse("merge_axes", buffer, f"it has no axes {axis} and {axis + 1}")
    n = type.shape[axis + 1]
    for op in places_of(buffer):
        idx: tuple[Sym, ...] = op.attrs["idx"]
        merged = idx[axis] * n + idx[axis + 1]
        merged = simplify_sym(merged, relevant(ranges_at(op), merged))
        op.attrs["idx"] = (*idx[:axis], merged, *idx[axis + 2 :])
    shape = (*type.shape[:axis], type.shape[axis] * n, *type.shape[axis + 2 :])
    buffer.type = dense(type.dtype, shape, type.space)
    return buffer


@primitive
def split_axis(func: Func, buffer: Value, axis: int, size: int) -> Value:
    """Make two axes of one, the second of `size` elements: the opposite of `merge_axes`.

        S(x[8*i + j])    ->    S(x[i, j])        for j in 0..8, and x: f32[64] seen as f32[8, 8]

    An argument's type changes; its caller passes the same memory. ScheduleError when the buffer is not dense, has no
    such axis, is expected in packed layout or taken as a whole by an op, or an index would have to be taken apart.
    """
    type = _type_of_plain(func, buffer, "split_axis")
    if not 0 <= axis < type.rank or size < 1 or type.shape[axis] % size != 0:
        refuse("split_axis", buffer, f"it has no axis {axis} of a multiple of {size} elements")
    places = places_of(buffer)
    if not set(buffer.users) <= set(places):
        refuse("split_axis", buffer, "an op takes it as a whole")
    parts = {op: split_index(op, axis, size) for op in places}
    for op, split in parts.items():
        if split is None:
            refuse("split_axis", buffer, f"{op.attrs['idx'][axis]} is no sum of a multiple of {size} and a rest")
    for op, split in parts.items():
        idx = op.attrs["idx"]
        op.attrs["idx"] = (*idx[:axis], *(split or ()), *idx[axis + 1 :])
    shape = (*type.shape[:axis], type.shape[axis] // size, sym(size), *type.shape[axis + 1 :])
    buffer.type = dense(type.dtype, shape, type.space)
    return buffer


@primitive
def pad_axis(func: Func, buffer: Value, axis: int, size: int) -> Value:
    """Give an axis of a buffer that the kernel allocates `size` elements, of which those behind its own are never
    touched: what lies one behind the other then begins in other banks of a memory.

        t: f32[8, 64]; S(t[i, j])    ->    t: f32[8, 68]; S(t[i, j])

    ScheduleError when the buffer is an argument, an op takes it as a whole, or the axis has more elements.
    """
    type = _type_of_plain(func, buffer, "pad_axis")
    if buffer.op is None or not set(buffer.users) <= set(places_of(buffer)):
        refuse("pad_axis", buffer, "its caller, or an op that takes it as a whole, knows its size")
    if not 0 <= axis < type.rank or not type.shape[axis].is_const or type.shape[axis].value > size:
        refuse("pad_axis", buffer, f"it has no axis {axis} of up to {size} elements")
    shape = (*type.shape[:axis], sym(size), *type.shape[axis + 1 :])
    buffer.type = dense(type.dtype, shape, type.space)
    return buffer


def split_index(access: Op, axis: int, size: int) -> tuple[Sym, Sym] | None:
    """An index as a multiple of a size and the rest; None where one of these is only known as a quotient or a remainder
    that the index has not."""
    index = access.attrs["idx"][axis]
    ranges = relevant(ranges_at(access), index)
    split = simplify_sym(index // size, ranges), simplify_sym(index % size, ranges)
    had = _divisions(index)
    return split if all(_divisions(part) <= had for part in split) else None


def _divisions(e: Sym) -> frozenset[Sym]:
    """The quotients and remainders in an expression."""
    found = frozenset[Sym]().union(*map(_divisions, e.args))
    return found | {e} if e.kind in ("floordiv", "mod") else found


def _type_of_plain(func: Func, buffer: Value, name: str) -> BufferType:
    """The type of a buffer whose axes may be seen otherwise."""
    type = buffer_type(buffer)
    if not type.is_dense or type.offset is not ZERO:
        refuse(name, buffer, "it is not dense")
    if any(func.args[k] is buffer for k in kernel_info(func).packed):
        refuse(name, buffer, "it is packed")
    return type


def merge_alike(func: Func, buffer: Value, other: Func, same: Value) -> None:
    """Merge axes of a buffer of `func` and of `same`, the same memory in `other`, until both see the same axes.

        f32[4, 7, 8] and f32[28, 8]    ->    f32[28, 8]

    ScheduleError where `merge_axes` refuses.
    """
    while (shape := buffer_type(buffer).shape) != (others := buffer_type(same).shape):
        first = next((k for k, (n, m) in enumerate(zip(shape, others, strict=False)) if n is not m), None)
        if first is None:  # one has axes behind those of both, which are 1 where both kernels run
            refuse("merge_alike", buffer, f"the other kernel sees it as {buffer_type(same)}")
        if len(shape) >= len(others):
            merge_axes(func, buffer, first)
        else:
            merge_axes(other, same, first)
