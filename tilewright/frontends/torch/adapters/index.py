"""Positions that are data: gathers, scatters, masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.adapters.elementwise import as_bool, floored_quotient
from tilewright.frontends.torch.adapters.view import sliced
from tilewright.frontends.torch.node import AtenNode, Number, whole
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.frontends.unroll import element
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.positions import nonzero as positions_of
from tilewright.ops.composites.shapes import slice_bounds
from tilewright.ops.index import (
    gather,
    gather_elements,
    gather_nd,
    scatter_elements,
    scatter_nd,
    searchsorted,
)
from tilewright.ops.scan import cumsum
from tilewright.ops.shape import broadcast
from tilewright.ops.source import full, iota, sym_tensor
from tilewright.ops.view import concat, expand, reshape, shape_of, slice_, transpose, unsqueeze

REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


@aten("index", "_unsafe_index")
def index(node: AtenNode, self: Value, indices: Sequence[Value | None]) -> Value:
    """Advanced indexing: index tensors broadcast; a mask stands for the positions where it holds."""
    x, places = self, places_of(node, indices)
    axes = [k for k, place in enumerate(places) if place is not None]
    if len(axes) == 1:
        (axis,) = axes
        return gather(x, places[axis], axis=axis)
    front, vectors, batch = _index_vectors(x, places, axes)
    found = gather_nd(front, vectors)
    if axes != list(range(axes[0], axes[-1] + 1)):
        return found
    order = (
        list(range(batch, batch + axes[0]))
        + list(range(batch))
        + list(range(batch + axes[0], len(shape_of(found))))
    )
    return transpose(found, perm=tuple(order))


def places_of(node: AtenNode, indices: Sequence[Value | None]) -> list[Any]:
    """One index tensor of i64 for each axis that is indexed; None for others. A mask takes as many axes as it has."""
    found: list[Any] = []
    for place in indices:
        if place is None:
            found.append(None)
        elif type_of(place).dtype in (dt.bool_, dt.u8):
            rows = positions_of(as_bool(place), node.translation.new_size())
            rank, count = shape_of(rows)
            for k in range(rank.value):
                row = slice_(rows, starts=(k, 0), sizes=(1, count), steps=(1, 1))
                found.append(reshape(row, shape=(count,)))
        else:
            found.append(node.value(place, dt.i64))
    return found


def _index_vectors(x: Value, places: Sequence[Any], axes: Sequence[int]) -> tuple[Value, Value, int]:
    """x with the indexed axes in front, the index vectors along a last axis, and the rank of the index tensors."""
    shape = broadcast(*[shape_of(places[a]) for a in axes])
    columns = [reshape(expand(places[a], shape=shape), shape=(*shape, 1)) for a in axes]
    order = (*axes, *[k for k in range(len(shape_of(x))) if k not in axes])
    return (
        transpose(x, perm=order),
        concat(*columns, axis=len(shape)) if len(columns) > 1 else columns[0],
        len(shape),
    )


@aten("index_put", "_unsafe_index_put")
def index_put(node: AtenNode, self: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False,
              unsafe: bool = False) -> Value:  # fmt: skip
    one_value = type_of(values).size == 1
    if len(indices) == 1 and not accumulate and one_value and is_mask(indices[0]):
        (mask,) = indices
        assert mask is not None
        trailing = (1,) * (len(shape_of(self)) - len(shape_of(mask)))
        mask = reshape(as_bool(mask), shape=(*shape_of(mask), *trailing))
        return ew.select(mask, reshape(node.value(values, node.dtype), shape=()), self)
    places = places_of(node, indices)
    axes = [k for k, place in enumerate(places) if place is not None]
    front, vectors, batch = _index_vectors(self, places, axes)
    order = (*axes, *[k for k in range(len(shape_of(self))) if k not in axes])
    rest = shape_of(front)[len(axes) :]
    outer = shape_of(vectors)[:-1]
    given, adjacent = node.value(values, node.dtype), axes == list(range(axes[0], axes[-1] + 1))
    if adjacent and axes[0]:
        # Elements to put have the axes of the index where the first indexed axis was.
        updates = expand(given, shape=(*rest[: axes[0]], *outer, *rest[axes[0] :]))
        moved = (
            *range(axes[0], axes[0] + batch),
            *range(axes[0]),
            *range(axes[0] + batch, len(rest) + batch),
        )
        updates = transpose(updates, perm=moved)
    else:
        updates = expand(given, shape=(*outer, *rest))
    found = scatter_nd(front, vectors, updates, reduction="add" if accumulate else "none")
    return transpose(found, perm=tuple(order.index(k) for k in range(len(order))))


def is_mask(x: Value | None) -> bool:
    return x is not None and type_of(x).dtype in (dt.bool_, dt.u8)


@aten("index_select", "index_select_copy")
def index_select(node: AtenNode, self: Value, dim: int, index: Value) -> Value:
    rank = len(shape_of(self))
    at = reshape(index, shape=(product(shape_of(index)),))
    if not rank:
        return reshape(self, shape=())
    return gather(self, at, axis=node.axis(dim, rank))


@aten("embedding")
def embedding(node: AtenNode, weight: Value, indices: Value, padding_idx: Any = -1, **how: Any) -> Value:
    return gather(weight, indices, axis=0)


_BAG_MODES = {0: "sum", 1: "mean", 2: "amax"}


@aten("_embedding_bag", "_embedding_bag_forward_only")
def embedding_bag(
    node: AtenNode, weight: Value, indices: Value, offsets: Value, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Value | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Value | None, ...]:  # fmt: skip
    """Sums, means or maxima of the rows of each bag, which begins at its offset; bags of nothing give 0."""
    rows, dtype = gather(weight, indices, axis=0), node.dtype
    count, width = shape_of(rows)
    starts = node.value(offsets, dt.i64)
    bags = node.shape[0]
    if include_last_offset:
        starts = slice_(starts, starts=(0,), sizes=(bags,), steps=(1,))
    which = ew.sub(searchsorted(iota(shape=(count,), axis=0), starts, right=True), _scalar(1))
    if per_sample_weights is not None:
        rows = ew.mul(rows, reshape(node.value(per_sample_weights, dtype), shape=(count, 1)))
    if padding_idx >= 0:  # such rows go to a bag of their own
        is_padding = ew.eq(node.value(indices, dt.i64), node.value(padding_idx, dt.i64))
        which = ew.select(is_padding, _scalar(bags), which)
    places = expand(reshape(which, shape=(count, 1)), shape=(count, width))
    start = full(value=0 if mode < 2 else float("-inf"), dtype=dtype, shape=(bags + 1, width))
    combine = REDUCTIONS[_BAG_MODES[mode]] if mode != 1 else "add"
    found = scatter_elements(start, places, rows, axis=0, reduction=combine)
    ones = full(value=1, dtype=dt.i64, shape=(count,))
    sizes = scatter_elements(
        full(value=0, dtype=dt.i64, shape=(bags + 1,)), which, ones, axis=0, reduction="add"
    )
    found, sizes = (slice_(x, starts=(0,) * len(shape_of(x)), sizes=(bags, *shape_of(x)[1:]),
                           steps=(1,) * len(shape_of(x))) for x in (found, sizes))  # fmt: skip
    per_row = reshape(sizes, shape=(bags, 1))
    if mode == 1:
        found = ew.div(found, node.value(ew.max_(per_row, _scalar(1)), dtype))
    if mode == 2:
        found = ew.select(ew.eq(per_row, _scalar(0)), node.value(0, dtype), found)
    return (found, None, None, None)


@aten("take")
def take(node: AtenNode, self: Value, index: Value) -> Value:
    return gather(reshape(self, shape=(product(shape_of(self)),)), index, axis=0)


@aten("put")
def put(node: AtenNode, self: Value, index: Value, source: Value, accumulate: bool = False) -> Value:
    """Elements at positions in the flat tensor."""
    flat = reshape(self, shape=(product(shape_of(self)),))
    places, elements = (reshape(x, shape=(product(shape_of(x)),)) for x in (_as_index(index), source))
    reduction = "add" if accumulate else "none"
    found = scatter_elements(flat, places, node.value(elements, node.dtype), axis=0, reduction=reduction)
    return reshape(found, shape=shape_of(self))


def _at_least_1d(x: Value) -> Value:
    return x if shape_of(x) else reshape(x, shape=(1,))


@aten("gather")
def gather_(node: AtenNode, self: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    if not shape_of(self):
        return expand(reshape(self, shape=()), shape=shape_of(index))
    x, at = self, _at_least_1d(index)
    found = gather_elements(x, node.value(at, dt.i64), axis=node.axis(dim, len(shape_of(x))))
    return reshape(found, shape=shape_of(index))


def _as_index(x: Value) -> Value:
    return x if type_of(x).dtype is dt.i64 else ew.cast(x, dtype=dt.i64)


def _scattered(
    node: AtenNode, x: Value, dim: int, index: Value, src: Value | Number, reduction: str
) -> Value:
    shape, at = shape_of(x), _as_index(_at_least_1d(index))
    whole_ = _at_least_1d(x)
    if isinstance(src, Value):
        updates = _at_least_1d(node.value(src, node.dtype))
        if shape_of(updates) != shape_of(at):
            rank = len(shape_of(at))
            updates = slice_(updates, starts=(0,) * rank, sizes=shape_of(at), steps=(1,) * rank)
    else:
        updates = expand(node.value(src, node.dtype), shape=shape_of(at))
    found = scatter_elements(
        whole_, at, updates, axis=node.axis(dim, len(shape_of(whole_))), reduction=reduction
    )
    return reshape(found, shape=shape)


@aten("scatter", "scatter_add")
def scatter(
    node: AtenNode, self: Value, dim: int, index: Value, src: Value | None = None, value: Number | None = None,
    reduce: str | None = None,
) -> Value:  # fmt: skip
    reduction = "add" if "scatter_add" in node.op else "none" if reduce is None else REDUCTIONS[reduce]
    given = src if src is not None else value
    assert given is not None
    return _scattered(node, self, dim, index, given, reduction)


@aten("scatter_reduce")
def scatter_reduce(
    node: AtenNode, self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool = True
) -> Value:
    """Without `include_self` elements that something is put to begin from nothing."""
    return _scatter_reduced(node, self, dim, index, src, reduce, include_self)


@aten("index_reduce")
def index_reduce(
    node: AtenNode, self: Value, dim: int, index: Value, source: Value, reduce: str, include_self: bool = True
) -> Value:
    src, rank = _at_least_1d(source), max(len(shape_of(self)), 1)
    places = _along(index, node.axis(dim, rank), shape_of(src))
    return _scatter_reduced(node, self, dim, places, src, reduce, include_self)


def _scatter_reduced(
    node: AtenNode, self: Value, dim: int, index: Value, src: Value, reduce: str, include_self: bool
) -> Value:
    x, dtype = self, node.dtype
    if not include_self:
        start = _neutral(reduce, node)
        x = _scattered(node, x, dim, index, start, "none")
    if reduce != "mean":
        return _scattered(node, x, dim, index, src, REDUCTIONS[reduce])
    total = _scattered(node, x, dim, index, src, "add")
    ones = full(value=1 if include_self else 0, dtype=dtype, shape=shape_of(self))
    count = _scattered(node, ones, dim, index, full(value=1, dtype=dtype, shape=shape_of(src)), "add")
    mean = ew.div(total, ew.max_(count, node.value(1, dtype)))
    if not dtype.is_float:
        return floored_quotient(total, ew.max_(count, node.value(1, dtype)), dtype)
    return mean


def _neutral(reduce: str, node: AtenNode) -> Number:
    """What changes nothing that it is combined with."""
    dtype = node.dtype
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if dtype.is_float:
        return float("-inf") if reduce == "amax" else float("inf")
    if dtype is dt.bool_:
        return reduce == "amin"
    info = np.iinfo(dtype.storage)
    return int(info.min if reduce == "amax" else info.max)


def _along(index: Value, axis: int, source_shape: Sequence[Any]) -> Value:
    """A vector of positions along an axis, for each element of a source."""
    shape: list[Any] = [1] * len(source_shape)
    at = _as_index(index)
    shape[axis] = product(shape_of(at))
    return expand(reshape(at, shape=tuple(shape)), shape=tuple(source_shape))


@aten("index_add", "index_copy")
def index_add(node: AtenNode, self: Value, dim: int, index: Value, source: Value, alpha: Number = 1) -> Value:
    src, x = _at_least_1d(node.value(source, node.dtype)), _at_least_1d(self)
    axis = node.axis(dim, len(shape_of(x)))
    if alpha != 1:
        src = ew.mul(src, node.value(alpha, node.dtype))
    reduction = "add" if node.op.startswith("aten.index_add") else "none"
    found = scatter_elements(x, _along(index, axis, shape_of(src)), src, axis=axis, reduction=reduction)
    return reshape(found, shape=shape_of(self))


@aten("index_fill")
def index_fill(node: AtenNode, self: Value, dim: int, index: Value, value: Value | Number) -> Value:
    x = _at_least_1d(self)
    axis = node.axis(dim, len(shape_of(x)))
    shape = list(shape_of(x))
    shape[axis] = product(shape_of(index))
    updates = expand(node.value(value, node.dtype), shape=tuple(shape))
    found = scatter_elements(x, _along(index, axis, shape), updates, axis=axis, reduction="none")
    return reshape(found, shape=shape_of(self))


@aten("slice_scatter")
def slice_scatter(
    node: AtenNode, self: Value, src: Value, dim: int = 0, start: Number | None = None, end: Number | None = None,
    step: Number = 1,
) -> Value:  # fmt: skip
    """self with src in the place of a slice."""
    axis = node.axis(dim, len(shape_of(self)))
    by, size = int(whole(step).value), shape_of(self)[axis]
    count, src = shape_of(src)[axis], node.value(src, node.dtype)
    if count == size and by == 1:
        return src
    begin, _ = slice_bounds(
        whole(0 if start is None else start), size if end is None else whole(end), by, size
    )
    if by == 1:
        before = sliced(node, self, dim, 0, begin)
        after = sliced(node, self, dim, begin + count, size)
        parts = [p for p in (before, src, after) if shape_of(p)[axis] != 0]
        return concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    at = ew.add(ew.mul(iota(shape=(count,), axis=0), _scalar(sym(by))), _scalar(begin))
    return scatter_elements(self, _along(at, axis, shape_of(src)), src, axis=axis, reduction="none")


@aten("select_scatter")
def select_scatter(node: AtenNode, self: Value, src: Value, dim: int, index: Number) -> Value:
    axis, place = node.axis(dim, len(shape_of(self))), whole(index)
    if place.is_const and place.value < 0:
        place = place + shape_of(self)[axis]
    rows = unsqueeze(node.value(src, node.dtype), axes=(axis,))
    return slice_scatter(node, self, rows, dim, place, place + 1)


@aten("diagonal_scatter")
def diagonal_scatter(
    node: AtenNode, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Value:
    """self with src as a diagonal of the matrices of two axes."""
    rank = len(shape_of(self))
    a, b = node.axis(dim1, rank), node.axis(dim2, rank)
    rows, columns = iota(shape=_ones(self, a), axis=a), iota(shape=_ones(self, b), axis=b)
    is_there = ew.eq(ew.sub(columns, rows), _scalar(offset))
    # The k-th element of the diagonal is in row k, or of negative offsets in column k.
    along, size = (a, shape_of(src)[-1]) if offset >= 0 else (b, shape_of(src)[-1])
    lines = expand(unsqueeze(node.value(src, node.dtype), axes=(len(shape_of(src)),)), shape=(*shape_of(src), 1))
    other = b if along == a else a
    order = [k for k in range(rank) if k not in (a, b)] + [along, other]
    spread = transpose(lines, perm=tuple(order.index(k) for k in range(rank)))
    place = ew.min_(iota(shape=(shape_of(self)[along],), axis=0), _scalar(size - 1))
    return ew.select(is_there, gather(spread, place, axis=along), self) if size != 0 else self


def _ones(x: Value, axis: int) -> tuple[Any, ...]:
    return tuple(d if k == axis else 1 for k, d in enumerate(shape_of(x)))


def _scalar(d: Any) -> Value:
    return sym_tensor(values=(sym(d),), scalar=True)


@aten("nonzero")
def nonzero(node: AtenNode, self: Value) -> Value:
    """Positions of elements that are not 0: [count, rank]."""
    found = transpose(positions_of(as_bool(_at_least_1d(self)), node.translation.new_size()), perm=(1, 0))
    count, rank = shape_of(found)[0], len(shape_of(self))
    return found if rank else slice_(found, starts=(0, 0), sizes=(count, 0), steps=(1, 1))


@aten("where")
def where(
    node: AtenNode, condition: Value, self: Value | Number | None = None, other: Value | Number | None = None
) -> Value | tuple[Value, ...]:
    """One or the other; of a condition alone the positions where it holds, a tensor for each axis."""
    if self is not None and other is not None:
        return ew.select(as_bool(condition), *node.promoted(self, other))
    found = positions_of(as_bool(_at_least_1d(condition)), node.translation.new_size())
    return tuple(element(found, 0, k) for k in range(len(node.result)))


@aten("masked_select")
def masked_select(node: AtenNode, self: Value, mask: Value) -> Value:
    shape = broadcast(shape_of(self), shape_of(mask))
    count = product(shape)
    flat = reshape(expand(self, shape=shape), shape=(count,))
    holds = reshape(expand(as_bool(mask), shape=shape), shape=(count,))
    places = positions_of(holds, node.translation.new_size())
    return gather(flat, reshape(places, shape=(shape_of(places)[1],)), axis=0)


@aten("masked_scatter")
def masked_scatter(node: AtenNode, self: Value, mask: Value, source: Value) -> Value:
    """Elements of `source`, in order, where the mask holds."""
    shape = broadcast(shape_of(self), shape_of(mask))
    count = product(shape)
    holds = reshape(expand(as_bool(mask), shape=shape), shape=(count,))
    place = ew.sub(cumsum(ew.cast(holds, dtype=dt.i64), axis=0), node.value(1, dt.i64))
    flat = reshape(source, shape=(product(shape_of(source)),))
    taken = gather(flat, ew.max_(place, node.value(0, dt.i64)), axis=0)
    return reshape(ew.select(holds, taken, reshape(expand(self, shape=shape), shape=(count,))), shape=shape)


@aten("_local_scalar_dense", "item")
def item(node: AtenNode, self: Value) -> Any:
    """One number, as a size where it is an integer."""
    one = reshape(self, shape=())
    if type_of(self).dtype.is_float:
        return ew.cast(one, dtype=dt.f64)
    return node.symbols(ew.cast(one, dtype=dt.i64))[0]
