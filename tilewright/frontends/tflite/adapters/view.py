"""Slices, pads, joins and splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.axes import require
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.frontends.tflite.schema import MIRRORS
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.shapes import checked_shape, slice_bounds
from tilewright.ops.define import constant
from tilewright.ops.view import concat, expand, pad, reshape, reverse, shape_of, slice_, split, unsqueeze


@tflite("CONCATENATION", moves=True)
def concatenation(node: OperatorNode) -> Value:
    axis = node.axis(node.integer("axis"), node.rank(0))
    parts = node.inputs
    return node.activated(concat(*parts, axis=axis) if len(parts) > 1 else parts[0])


@tflite("PACK", moves=True)
def pack(node: OperatorNode) -> Value:
    axis = node.axis(node.integer("axis"), node.rank(0) + 1)
    parts = [unsqueeze(x, axes=(axis,)) for x in node.inputs]
    return concat(*parts, axis=axis) if len(parts) > 1 else parts[0]


@tflite("UNPACK", moves=True)
def unpack(node: OperatorNode) -> tuple[Value, ...]:
    axis, x = node.axis(node.integer("axis"), node.rank(0)), node.input(0)
    shape, count = shape_of(x), len(node.results)
    if not shape or (shape[axis].is_const and shape[axis] != count):
        raise ModelError(f"UNPACK of {node.type(0)} along axis {axis} into {count} results")
    parts = split(x, sizes=(1,) * count, axis=axis)
    return tuple(reshape(p, shape=(*shape[:axis], *shape[axis + 1 :])) for p in parts)


@tflite("SPLIT", moves=True)
def split_evenly(node: OperatorNode) -> tuple[Value, ...]:
    """The axis is operand 0."""
    (axis,), count = node.ints(0), len(node.results)
    axis = node.axis(axis, node.rank(1))
    size = node.shape(1)[axis]
    if count < 1 or (size.is_const and size.value % count):
        raise ModelError(f"SPLIT of {node.type(1)} along axis {axis} into {count} parts")
    return tuple(split(node.input(1), sizes=(s.floordiv(size, count),) * count, axis=axis))


@tflite("SPLIT_V", moves=True)
def split_by_sizes(node: OperatorNode) -> tuple[Value, ...]:
    """Sizes are operand 1, of which one may be -1; the axis is operand 2."""
    (axis,), sizes = node.ints(2), list(node.symbols(1))
    axis = node.axis(axis, node.rank(0))
    total = node.shape(0)[axis]
    if len(sizes) != len(node.results) or sum(d == -1 for d in sizes) > 1:
        raise ModelError(f"SPLIT_V into [{', '.join(map(str, sizes))}] with {len(node.results)} results")
    left = total - sum((d for d in sizes if d != -1), sym(0))
    sizes = [left if d == -1 else d for d in sizes]
    if any(d.is_const and d.value < 0 for d in sizes):
        raise ModelError(f"SPLIT_V of {node.type(0)} into [{', '.join(map(str, sizes))}]")
    for d in sizes:
        require(node.translation, s.le(0, d), "SPLIT_V has a negative size")
    require(
        node.translation, s.eq(sum(sizes, sym(0)), total), f"the sizes of SPLIT_V do not add up to {total}"
    )
    return tuple(split(node.input(0), sizes=tuple(sizes), axis=axis))


@tflite("SLICE", moves=True)
def slice_from(node: OperatorNode) -> Value:
    """Begins and sizes; a size of -1 goes to the end."""
    begins, sizes, shape = node.symbols(1), node.symbols(2), node.shape(0)
    if not len(begins) == len(sizes) == len(shape):
        raise ModelError(f"SLICE of {node.type(0)} with {len(begins)} begins and {len(sizes)} sizes")
    counts = []
    for begin, size, d in zip(begins, sizes, shape, strict=True):
        count = (
            d - begin if size == -1 else size if size.is_const else s.select(s.eq(size, -1), d - begin, size)
        )
        inside = s.logical_and(s.le(0, begin), s.logical_and(s.le(0, count), s.le(begin + count, d)))
        require(
            node.translation, inside, f"SLICE from {begin} on, of {count} elements, leaves an axis of {d}"
        )
        counts.append(count)
    return _sliced(node.input(0), begins, counts, [1] * len(shape))


@tflite("STRIDED_SLICE", moves=True)
def strided_slice(node: OperatorNode) -> Value:
    """NumPy's x[begin:end:step, ...]; bits of masks say which entries are left out, or stand for something else."""
    begins, ends, steps = (node.symbols(k) for k in (1, 2, 3))
    if not len(begins) == len(ends) == len(steps) or not all(d.is_const and d.value for d in steps):
        raise ModelError(
            f"STRIDED_SLICE with {len(begins)} begins, {len(ends)} ends and steps {list(map(str, steps))}"
        )
    shape, x = node.shape(0), node.input(0)
    first, count, stride = [sym(0)] * len(shape), list(shape), [1] * len(shape)
    result: list[Sym] = []
    axis = 0
    entries = _entries(node, len(begins), len(shape))
    for k in entries:
        if k is None:
            result.append(shape[axis])
            axis += 1
            continue
        if _bit(node, "new_axis_mask", k):
            result.append(sym(1))
            continue
        if axis >= len(shape):
            raise ModelError(f"STRIDED_SLICE of {node.type(0)} with {len(begins)} entries")
        size, step = shape[axis], steps[k].value
        if _bit(node, "shrink_axis_mask", k):
            first[axis], count[axis] = _from_front(begins[k], size), sym(1)
            inside = s.logical_and(s.le(0, first[axis]), s.lt(first[axis], size))
            require(node.translation, inside, f"STRIDED_SLICE takes element {begins[k]} of {size}")
        else:
            end = begins[k] + ends[k] if node.flag("offset") else ends[k]
            start = (sym(0) if step > 0 else size - 1) if _bit(node, "begin_mask", k) else begins[k]
            if _bit(node, "end_mask", k):
                end = size if step > 0 else -size - 1
            first[axis], count[axis] = slice_bounds(start, end, step, size)
            stride[axis] = step
            result.append(count[axis])
        axis += 1
    made = _sliced(x, first, count, stride)
    return made if tuple(result) == shape_of(made) else reshape(made, shape=tuple(result))


def _entries(node: OperatorNode, count: int, rank: int) -> list[int | None]:
    """Entries of the slice, in place of the ellipsis and behind the last one None for each axis that is taken whole."""
    dots = [k for k in range(count) if _bit(node, "ellipsis_mask", k)]
    if len(dots) > 1:
        raise ModelError("STRIDED_SLICE has two ellipses")
    used = sum(not _bit(node, "new_axis_mask", k) for k in range(count) if k not in dots)
    whole: list[int | None] = [None] * max(rank - used, 0)
    at = dots[0] if dots else count
    return [*range(at), *whole, *range(at + 1, count)]


def _bit(node: OperatorNode, mask: str, k: int) -> bool:
    return bool(node.integer(mask) >> k & 1)


def _from_front(position: Sym, size: Sym) -> Sym:
    if position.is_const:
        return position + size if position.value < 0 else position
    return s.select(s.lt(position, 0), position + size, position)


def _sliced(x: Value, first: Sequence[Sym], count: Sequence[Sym], stride: Sequence[int]) -> Value:
    unchanged = zip(count, shape_of(x), first, stride, strict=True)
    if all(c == d and f == 0 and step == 1 for c, d, f, step in unchanged):
        return x
    return slice_(x, starts=tuple(first), sizes=tuple(count), steps=tuple(stride))


@tflite("REVERSE_V2", moves=True)
def reverse_v2(node: OperatorNode) -> Value:
    axes = tuple(dict.fromkeys(node.axis(a, node.rank(0)) for a in node.ints(1)))
    return reverse(node.input(0), axes=axes) if axes else node.input(0)


@tflite("PAD", "PADV2")
def padded(node: OperatorNode) -> Value:
    """Before and after each axis; of PADV2 operand 2 is what is put there."""
    before, after = _amounts(node)
    x = node.input(0)
    if node.op == "PAD" or not node.has(2):
        return pad(x, before=before, after=after, value=0)
    filler = node.input(2)
    known = node.translation.constant_of(filler)
    if known is not None and known.size == 1:
        return pad(x, before=before, after=after, value=known.reshape(()).item())
    inside = expand(constant(np.array(True), "inside"), shape=shape_of(x))
    sides = {"before": before, "after": after, "value": 0}
    return ew.select(pad(inside, **sides), pad(x, **sides), reshape(filler, shape=()))


@tflite("MIRROR_PAD", moves=True)
def mirror_pad(node: OperatorNode) -> Value:
    """With `symmetric` the border itself is repeated."""
    before, after = _amounts(node)
    x, mode = node.input(0), node.named("mode", MIRRORS)
    if mode == "reflect":
        return pad(x, before=before, after=after, mode="reflect")
    for axis, (b, a) in enumerate(zip(before, after, strict=True)):
        size = shape_of(x)[axis]
        if b == 0 and a == 0:
            continue
        inside = s.logical_and(s.le(b, size), s.le(a, size))
        require(node.translation, inside, f"MIRROR_PAD of {b} and {a} elements to an axis of {size}")
        ends = [_part(x, axis, sym(0), b), _part(x, axis, size - a, a)]
        x = concat(reverse(ends[0], axes=(axis,)), x, reverse(ends[1], axes=(axis,)), axis=axis)
    return x


def _part(x: Value, axis: int, start: Sym, size: Sym) -> Value:
    starts = [start if k == axis else sym(0) for k in range(len(shape_of(x)))]
    sizes = [size if k == axis else d for k, d in enumerate(shape_of(x))]
    return _sliced(x, starts, sizes, [1] * len(sizes))


def _amounts(node: OperatorNode) -> tuple[tuple[Sym, ...], tuple[Sym, ...]]:
    amounts = node.measured_operand(1)
    if amounts.shape != (node.rank(0), 2):
        raise ModelError(f"{node.op} of {node.type(0)} with amounts {node.type(1)}")
    if any(d.is_const and d.value < 0 for d in amounts.reshape(-1)):
        raise ModelError(f"{node.op} with a negative amount")
    before, after = tuple(amounts[:, 0]), tuple(amounts[:, 1])
    checked_shape(tuple(d + b + a for d, b, a in zip(node.shape(0), before, after, strict=True)), node.op)
    return before, after
