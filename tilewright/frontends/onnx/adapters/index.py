"""Reading and writing at computed positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, bound
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, TypeRuleError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType, product, tensor
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops.composites import positions
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.define import constant
from tilewright.ops.define.staged import host
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import expand, reshape, shape_of


def _check_known(node: Node, columns: Sequence[np.ndarray], sizes: Sequence[Sym]) -> None:
    """TypeRuleError when known indices, a column for each axis, are out of range."""
    for known, size in zip(columns, sizes, strict=True):
        low, high = (int(known.min()), int(known.max())) if known.size else (0, -1)
        if size.is_const and high >= low and (low < -size.value or high >= size.value):
            raise TypeRuleError(f"{node.op}: an index ({low} to {high}) is out of range for {size} elements")


@adapter("Gather", "GatherElements", "Scatter", "ScatterElements")
def along_axis(node: Node) -> Value:
    axis = node.axis_attr()
    known = node.constant_or_none(1)
    if known is not None and node.rank(0):
        _check_known(node, [known], [node.shape(0)[axis]])
    return bound(node)


@adapter("GatherND", "ScatterND")
def at_vectors(node: Node) -> Value:
    known, batch = node.constant_or_none(1), node.attr("batch_dims", 0)
    if known is not None and known.ndim and batch + known.shape[-1] <= node.rank(0):
        columns = np.moveaxis(known, -1, 0)
        _check_known(node, list(columns), node.shape(0)[batch : batch + len(columns)])
    return bound(node)


@adapter("OneHot")
def one_hot(node: Node) -> Value:
    require(node.translation, s.eq(node.type(2).size, 2), f"OneHot has values {node.type(2)}, which must be two")
    depth = node.whole_number(1)
    axis = node.axis_attr(rank=node.rank(0) + 1)
    checked_shape((*node.shape(0), depth), "OneHot")
    if depth.is_const and depth.value < 1:
        raise ModelError(f"OneHot: a depth of {depth} is not possible")
    return ix.one_hot(node.input(0), node.input(2), depth=depth, axis=axis)


def _positions(shape: Sequence[Sym], axis: int) -> Value:
    """0, 1, ... along an axis; the other axes have one element."""
    return iota(shape=tuple(d if k == axis else sym(1) for k, d in enumerate(shape)), axis=axis)


@adapter("ReverseSequence")
def reverse_sequence(node: Node) -> Value:
    """The first `sequence_lens[b]` elements along the time axis in reverse order, for each b."""
    batch, time = node.attr("batch_axis"), node.attr("time_axis")
    if {batch, time} != {0, 1} or node.rank(0) < 2 or node.rank(1) != 1:
        raise ModelError(f"ReverseSequence: batch axis {batch} and time axis {time} of {node.type(0)}")
    shape = node.shape(0)
    known, most = node.constant_or_none(1), shape[time]
    if known is not None and most.is_const and ((known < 0) | (known > most.value)).any():
        raise ModelError(f"ReverseSequence: lengths of {known.min()} to {known.max()} for {most} steps")
    given = node.input(1)
    if known is None or not most.is_const:
        what = "ReverseSequence: a length is not one of 0 to the number of steps"
        given = ix.within(given, low=0, high=most, what=what)
    lengths = reshape(given, shape=tuple(d if k == batch else sym(1) for k, d in enumerate(shape)))
    steps = _positions(shape, time)
    flipped = ew.sub(ew.sub(lengths, 1), steps)
    places = ew.select(ew.lt(steps, lengths), flipped, steps)
    return ix.gather_elements(node.input(0), expand(places, shape=shape), axis=time)


@adapter("TensorScatter")
def tensor_scatter(node: Node) -> Value:
    """`update` written into a cache along an axis, from a position of its own for each batch entry on."""
    cache, update = node.input(0), node.input(1)
    shape, axis = shape_of(cache), node.axis_attr()
    if axis == 0:
        raise ModelError("TensorScatter cannot write along the batch axis")
    size, written = (sym_tensor(values=(shape_of(x)[axis],), scalar=True) for x in (cache, update))
    offset = _positions(shape, axis)
    if node.optional(2) is not None:
        offset = ew.sub(offset, reshape(node.input(2), shape=(shape[0], *[sym(1)] * (len(shape) - 1))))
    if node.attr("mode") == "circular":
        offset = ew.mod(offset, size)
    inside = ew.and_(ew.ge(offset, 0), ew.lt(offset, written))
    nearest = ew.min_(ew.max_(offset, 0), ew.sub(written, 1))
    moved = ix.gather_elements(update, expand(nearest, shape=shape), axis=axis)
    return ew.select(inside, moved, cache)


@adapter("NonZero")
def nonzero(node: Node) -> Value:
    if (known := node.constant_or_none(0)) is not None:
        return constant(np.array(np.nonzero(known), np.int64), "nonzero")
    return positions.nonzero(node.input(0), node.translation.new_size())


@adapter("Compress")
def compress(node: Node) -> Value:
    flat = not node.has("axis")
    x = reshape(node.input(0), shape=(product(node.shape(0)),)) if flat else node.input(0)
    if (known := node.constant_or_none(1)) is not None:
        places = constant(np.flatnonzero(known), "places")
    else:
        places = positions.places(node.input(1), node.translation.new_size())
    return ix.gather(x, places, axis=0 if flat else node.axis_attr())


@adapter("Unique")
def unique(node: Node) -> tuple[Value, ...]:
    """Sorted, or in the order in which they come; along an axis the host compares slices, and it compares texts."""
    given, axis = node.type(0), node.axis_attr() if node.has("axis") else None
    if given.dtype.kind != "string" and (axis is None or given.rank == 1):
        flat = reshape(node.input(0), shape=(given.size,))
        return positions.unique(flat, node.translation.new_size(), node.flag("sorted"))
    count = node.translation.new_size()
    shape = (count,) if axis is None else (*given.shape[:axis], count, *given.shape[axis + 1 :])
    size = given.size if axis is None else given.shape[axis]
    places = [tensor(dt.i64, (d,)) for d in (count, size, count)]
    parameters = {"axis": axis, "in_order": node.flag("sorted")}
    return host("unique", [node.input(0)], [TensorType(given.dtype, shape), *places], parameters)


@adapter("NonMaxSuppression")
def non_max_suppression(node: Node) -> Value:
    def scalar(k: int, default: float) -> Value:
        if node.optional(k) is None:
            return full(value=default, dtype=node.dtype(0), shape=())
        return reshape(node.input(k), shape=())

    most = sym(0) if node.optional(2) is None else node.one_symbol(2)
    limits = scalar(3, 0.0), scalar(4, -np.inf)
    boxes, scores = node.input(0), node.input(1)
    centred, number = node.flag("center_point_box"), node.translation.new_size()
    return positions.non_max_suppression(boxes, scores, most, *limits, number, center_point_box=centred)
