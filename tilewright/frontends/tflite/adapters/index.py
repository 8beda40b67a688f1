"""Reading and writing at computed positions, and sorting."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import index as ix
from tilewright.ops.composites import positions
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.define import constant
from tilewright.ops.reduce import dtype_of
from tilewright.ops.sort import topk
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, expand, reshape, shape_of, slice_, transpose, unsqueeze


@tflite("GATHER", moves=True)
def gather(node: OperatorNode) -> Value:
    """Slices along an axis; the first `batch_dims` axes of both operands go in step."""
    rank, batch = node.rank(0), node.integer("batch_dims")
    axis = node.axis(node.integer("axis"), rank)
    x, indices, inner = node.input(0), node.raw(1), node.rank(1)
    batch = batch + inner if batch < 0 else batch
    if not 0 <= batch <= min(inner, axis):
        raise ModelError(f"GATHER of {node.type(0)} by {node.type(1)}, axis {axis}, {batch} batch axes")
    if not batch:
        return ix.gather(x, indices, axis=axis)
    between = axis - batch
    order = (*range(batch), axis, *range(batch, axis), *range(axis + 1, rank))
    found = ix.gather_nd(transpose(x, perm=order), unsqueeze(indices, axes=(inner,)), batch_dims=batch)
    back = (*range(batch), *range(inner, inner + between), *range(batch, inner))
    return transpose(found, perm=(*back, *range(inner + between, len(shape_of(found)))))


@tflite("EMBEDDING_LOOKUP")
def embedding_lookup(node: OperatorNode) -> Value:
    """Rows of operand 1 at the positions of operand 0."""
    return ix.gather(node.input(1), node.raw(0), axis=0)


@tflite("GATHER_ND", moves=True)
def gather_nd(node: OperatorNode) -> Value:
    return ix.gather_nd(node.input(0), node.raw(1))


@tflite("SCATTER_ND")
def scatter_nd(node: OperatorNode) -> Value:
    """Of the updates at equal positions the sum."""
    updates = node.input(1)
    shape = checked_shape(node.symbols(2), "SCATTER_ND")
    zeros = full(value=0, dtype=dtype_of(updates), shape=shape)
    return ix.scatter_nd(zeros, node.raw(0), updates, reduction="add")


@tflite("DYNAMIC_UPDATE_SLICE", moves=True)
def dynamic_update_slice(node: OperatorNode) -> Value:
    """Operand 1 written into operand 0 from computed positions on, which are moved so that it fits."""
    x, update = node.input(0), node.input(1)
    starts, own, part = reshape(node.raw(2), shape=(node.rank(0),)), shape_of(x), shape_of(update)
    if len(own) != len(part):
        raise ModelError(f"DYNAMIC_UPDATE_SLICE of {node.type(0)} by {node.type(1)}")
    coordinates = []
    for axis, (d, size) in enumerate(zip(own, part, strict=True)):
        start = reshape(slice_(starts, starts=(axis,), sizes=(1,)), shape=())
        last = ew.cast(_number(d - size), dtype=dtype_of(start))
        first = ew.min_(ew.max_(start, 0), last)
        places = iota(shape=tuple(size if k == axis else sym(1) for k in range(len(own))), axis=axis)
        coordinates.append(expand(ew.add(places, ew.cast(first, dtype=dtype_of(places))), shape=part))
    at = concat(*[unsqueeze(c, axes=(len(own),)) for c in coordinates], axis=len(own)) if own else None
    return update if at is None else ix.scatter_nd(x, at, update)


def _number(d: Sym) -> Value:
    return sym_tensor(values=(sym(d),), scalar=True)


@tflite("ONE_HOT")
def one_hot(node: OperatorNode) -> Value:
    """Positions, depth, what stands at the position, and what elsewhere."""
    axis, depth = node.integer("axis"), node.one_symbol(1)
    axis = node.axis(axis, node.rank(0) + 1)
    checked_shape((*node.shape(0), depth), "ONE_HOT")
    values = concat(*[reshape(node.input(k), shape=(1,)) for k in (3, 2)], axis=0)
    # positions out of range stand for none, also negative ones, which ours counts from the end
    indices = ew.select(ew.lt(node.raw(0), 0), ew.cast(_number(depth), dtype=node.type(0).dtype), node.raw(0))
    return ix.one_hot(indices, values, depth=depth, axis=axis)


@tflite("TOPK_V2", moves=True)
def topk_v2(node: OperatorNode) -> tuple[Value, ...]:
    values, places = topk(node.input(0), k=node.one_symbol(1), axis=node.rank(0) - 1)
    return values, ew.cast(places, dtype=node.result_dtype(1))


@tflite("REVERSE_SEQUENCE", moves=True)
def reverse_sequence(node: OperatorNode) -> Value:
    """The first `lengths[b]` elements along an axis in reverse order, for each b."""
    rank, shape = node.rank(0), node.shape(0)
    time, batch = (node.axis(node.integer(name), rank) for name in ("seq_dim", "batch_dim"))
    if time == batch or node.rank(1) != 1:
        raise ModelError(f"REVERSE_SEQUENCE of {node.type(0)} with axes {batch} and {time}")
    lanes = tuple(d if k == batch else sym(1) for k, d in enumerate(shape))
    steps = iota(shape=tuple(d if k == time else sym(1) for k, d in enumerate(shape)), axis=time)
    lengths = ew.cast(reshape(node.raw(1), shape=lanes), dtype=dtype_of(steps))
    places = ew.select(ew.lt(steps, lengths), ew.sub(ew.sub(lengths, 1), steps), steps)
    return ix.gather_elements(node.input(0), expand(places, shape=shape), axis=time)


@tflite("WHERE")
def where(node: OperatorNode) -> Value:
    """Positions of what is not zero: [count, rank]."""
    if (known := node.constant_or_none(0)) is not None:
        return constant(np.stack(np.nonzero(known), axis=1).astype(node.result_dtype().storage), "places")
    found = positions.nonzero(node.raw(0), node.translation.new_size())
    return ew.cast(transpose(found, perm=(1, 0)), dtype=node.result_dtype())
