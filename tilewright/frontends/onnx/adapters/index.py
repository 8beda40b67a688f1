"""Reading and writing at computed positions."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.onnx.adapters.source import checked_shape
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops.define import constant
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.view import expand, reshape, shape_of


def _checked(node: Node, k: int, axis: int) -> None:
    """ModelError when known indices (operand k) are out of range."""
    known, size = node.constant_or_none(k), node.shape(0)[axis]
    if known is None or not size.is_const or not known.size:
        return
    if int(known.min()) < -size.value or int(known.max()) >= size.value:
        raise ModelError(
            f"{node.op}: an index ({known.min()} to {known.max()}) is out of range for {size} elements"
        )


@adapter("Gather")
def gather(node: Node) -> Value:
    if node.rank(0) == 0:
        raise ModelError("Gather takes no scalars")
    axis = node.axis(default=0)
    _checked(node, 1, axis)
    return ix.gather(node.input(0), node.input(1), axis=axis)


@adapter("GatherElements", since=11)
def gather_elements(node: Node) -> Value:
    axis = node.axis(default=0)
    _checked(node, 1, axis)
    return ix.gather_elements(node.input(0), node.input(1), axis=axis)


@adapter("GatherND", since=11)
def gather_nd(node: Node) -> Value:
    batch = node.attr("batch_dims", 0)
    _checked_nd(node, batch)
    return ix.gather_nd(node.input(0), node.input(1), batch_dims=batch)


def _checked_nd(node: Node, batch: int) -> None:
    if node.rank(1) < 1:
        raise ModelError(f"{node.op} takes indices of one or more axes, not {node.type(1)}")
    depth = node.shape(1)[-1]
    if not depth.is_const or not 0 <= depth.value <= node.rank(0) - batch:
        raise ModelError(f"{node.op}: indices {node.type(1)} do not fit {node.type(0)}")
    known = node.constant_or_none(1)
    if known is None or not known.size:
        return
    for k in range(depth.value):
        size, column = node.shape(0)[batch + k], known[..., k]
        if size.is_const and (int(column.min()) < -size.value or int(column.max()) >= size.value):
            raise ModelError(
                f"{node.op}: an index ({column.min()} to {column.max()}) is out of range for {size}"
            )


@adapter("Scatter", "ScatterElements", since=9)
def scatter_elements(node: Node) -> Value:
    axis = node.axis(default=0)
    _checked(node, 1, axis)
    return ix.scatter_elements(
        node.input(0), node.input(1), node.input(2), axis=axis, reduction=node.attr("reduction", "none")
    )


@adapter("ScatterND", since=11)
def scatter_nd(node: Node) -> Value:
    _checked_nd(node, 0)
    return ix.scatter_nd(
        node.input(0), node.input(1), node.input(2), reduction=node.attr("reduction", "none")
    )


@adapter("OneHot", since=9)
def one_hot(node: Node) -> Value:
    if node.type(1).size != 1 or node.type(2).size != 2:
        raise ModelError(f"OneHot: depth {node.type(1)} must be one number, values {node.type(2)} two")
    if node.dtype(1).is_int:
        (depth,) = node.symbols(1)
    else:
        depth = sym(int(node.constant(1).reshape(())))
    axis = node.checked_axis(node.attr("axis", -1), node.rank(0) + 1)
    checked_shape((*node.shape(0), depth), "OneHot")
    if depth.is_const and depth.value < 1:
        raise ModelError(f"OneHot: a depth of {depth} is not possible")
    return ix.one_hot(node.input(0), node.input(2), depth=depth, axis=axis)


@adapter("ReverseSequence", since=10)
def reverse_sequence(node: Node) -> Value:
    """The first `sequence_lens[b]` elements along the time axis in reverse order, for each b."""
    batch, time = node.attr("batch_axis", 1), node.attr("time_axis", 0)
    if {batch, time} != {0, 1} or node.rank(0) < 2 or node.rank(1) != 1:
        raise ModelError(f"ReverseSequence: batch axis {batch} and time axis {time} of {node.type(0)}")
    shape = node.shape(0)
    ones = [sym(1)] * (len(shape) - 2)
    lengths = reshape(
        node.input(1), shape=(shape[0], sym(1), *ones) if batch == 0 else (sym(1), shape[1], *ones)
    )
    steps = iota(shape=tuple(d if k == time else sym(1) for k, d in enumerate(shape)), axis=time)
    flipped = ew.sub(ew.sub(lengths, 1), steps)
    places = ew.select(ew.lt(steps, lengths), flipped, steps)
    return ix.gather_elements(node.input(0), expand(places, shape=shape), axis=time)


@adapter("TensorScatter", since=24)
def tensor_scatter(node: Node) -> Value:
    """`update` written into a cache along an axis, from a position of its own for each batch entry on."""
    cache, update = node.input(0), node.input(1)
    shape, written = shape_of(cache), shape_of(update)
    axis = node.checked_axis(node.attr("axis", -2))
    if axis == 0:
        raise ModelError("TensorScatter cannot write along the batch axis")
    positions = iota(shape=tuple(d if k == axis else sym(1) for k, d in enumerate(shape)), axis=axis)
    if node.optional(2) is not None:
        first = reshape(node.input(2), shape=(shape[0], *[sym(1)] * (len(shape) - 1)))
        offset = ew.sub(positions, first)
    else:
        offset = positions
    if node.attr("mode", "linear") == "circular":
        offset = ew.mod(offset, size_tensor(shape[axis]))
    inside = ew.and_(ew.ge(offset, 0), ew.lt(offset, size_tensor(written[axis])))
    nearest = ew.min_(ew.max_(offset, 0), ew.sub(size_tensor(written[axis]), 1))
    moved = ix.gather_elements(update, expand(nearest, shape=shape), axis=axis)
    return ew.select(inside, moved, cache)


def size_tensor(d: Sym) -> Value:
    """A dim as an i64 scalar tensor."""
    return sym_tensor(values=(d,), scalar=True)


@adapter("NonZero", "Compress")
def positions_known(node: Node) -> Value:
    """Of known operands: the shape of the result depends on their values."""
    deciding = node.constant_or_none(0 if node.op == "NonZero" else 1)
    if deciding is None:
        raise node.needs_constant(0 if node.op == "NonZero" else 1)
    if node.op == "NonZero":
        return constant(np.array(np.nonzero(deciding), np.int64), "nonzero")
    places = constant(np.flatnonzero(deciding), "places")
    if node.has("axis"):
        return ix.gather(node.input(0), places, axis=node.axis())
    return ix.gather(reshape(node.input(0), shape=(product(node.shape(0)),)), places, axis=0)


@adapter("NonMaxSuppression", "Unique", "TfIdfVectorizer")
def data_dependent(node: Node) -> Value:
    raise UnsupportedError(f"the shape of what {node.op} gives depends on data, which is not supported")
