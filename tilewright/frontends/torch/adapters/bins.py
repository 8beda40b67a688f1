"""Elements by groups: histograms over edges, and reductions of consecutive elements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.adapters.source import evenly_spaced
from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.index import gather, scatter_elements, searchsorted
from tilewright.ops.scan import cumsum
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import concat, expand, reshape, section, shape_of, slice_, unsqueeze

# Histograms


@aten("histogram.bins_tensor")
def histogram(
    node: AtenNode, self: Value, bins: Value, weight: Value | None = None, density: bool = False
) -> tuple[Value, Value]:
    return _counts(node, _points(self, 1), [bins], weight, density), bins


@aten("histogram.bin_ct")
def histogram_of_width(
    node: AtenNode, self: Value, bins: int = 100, range: Sequence[float] | None = None, weight: Value | None = None,
    density: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    points = _points(self, 1)
    edges = _edges(node, points, [bins], range, node.dtype)
    return _counts(node, points, edges, weight, density), edges[0]


@aten("_histogramdd_from_bin_tensors")
def histogram_of_points(
    node: AtenNode, self: Value, bins: Sequence[Value], weight: Value | None = None, density: bool = False
) -> Value:
    """The last axis of `self` has the coordinates of a point."""
    return _counts(node, _points(self, len(bins)), bins, weight, density)


@aten("_histogramdd_bin_edges")
def edges_of_points(
    node: AtenNode, self: Value, bins: Sequence[int], range: Sequence[float] | None = None, **how: Any
) -> tuple[Value, ...]:
    return tuple(_edges(node, _points(self, len(bins)), bins, range, node.dtype))


@aten("_histogramdd_from_bin_cts")
def histogram_of_points_of_width(
    node: AtenNode, self: Value, bins: Sequence[int], range: Sequence[float] | None = None,
    weight: Value | None = None, density: bool = False,
) -> Value:  # fmt: skip
    points = _points(self, len(bins))
    return _counts(node, points, _edges(node, points, bins, range, node.dtype), weight, density)


def _points(x: Value, axes: int) -> list[Value]:
    """The coordinates of all points along each axis."""
    count = product(shape_of(x)) // axes
    columns = reshape(x, shape=(count, axes))
    return [reshape(section(columns, 1, k, 1), shape=(count,)) for k in range(axes)]


def _edges(
    node: AtenNode, points: Sequence[Value], bins: Sequence[int], limits: Sequence[float] | None, dtype: DType
) -> list[Value]:
    """Evenly spaced ones between limits, those of the data where none are given."""
    found = []
    for k, (x, count) in enumerate(zip(points, bins, strict=True)):
        low, high = (node.value(v, dtype) for v in (limits[2 * k : 2 * k + 2] if limits else (0.0, 1.0)))
        if not limits and shape_of(x)[0] != 0:
            low, high = (f(x, axes=(0,), keepdims=False) for f in (rd.reduce_min, rd.reduce_max))
        half, is_point = node.value(0.5, dtype), ew.eq(low, high)
        low, high = ew.select(is_point, ew.sub(low, half), low), ew.select(is_point, ew.add(high, half), high)
        found.append(evenly_spaced(node, low, high, sym(int(count) + 1), dtype))
    return found


def _counts(
    node: AtenNode, points: Sequence[Value], edges: Sequence[Value], weight: Value | None, density: bool
) -> Value:
    """How many points, or the sum of their weights, lie between edges; the last bin of an axis includes its end."""
    dtype = type_of(points[0]).dtype
    (count,) = shape_of(points[0])
    shape = tuple(shape_of(e)[0] - 1 for e in edges)
    total = product(shape)
    place, inside = full(value=0, dtype=dt.i64, shape=(count,)), full(value=True, dtype=dt.bool_, shape=(count,))
    for x, e, size in zip(points, edges, shape, strict=True):
        last = gather(e, dim_value(size), axis=0)
        inside = ew.and_(inside, ew.and_(ew.ge(x, gather(e, dim_value(0), axis=0)), ew.le(x, last)))
        own = ew.min_(ew.sub(searchsorted(x, e, right=True), dim_value(1)), dim_value(size - 1))
        place = ew.add(ew.mul(place, dim_value(size)), own)
    place = ew.select(inside, place, dim_value(total))
    one = node.value(1, dtype)
    weights = expand(one, shape=(count,)) if weight is None else reshape(node.value(weight, dtype), shape=(count,))
    start = full(value=0, dtype=dtype, shape=(total + 1,))
    sums = scatter_elements(start, place, weights, axis=0, reduction="add")
    found = reshape(section(sums, 0, 0, total), shape=shape)
    if not density:
        return found
    rank = len(shape)
    found = ew.div(found, rd.reduce_sum(found, axes=tuple(range(rank)), keepdims=False))
    for k, (e, size) in enumerate(zip(edges, shape, strict=True)):
        ends = section(e, 0, 1, size)
        widths = ew.sub(ends, section(e, 0, 0, size))
        found = ew.div(found, reshape(widths, shape=tuple(size if j == k else sym(1) for j in range(rank))))
    return found


# Consecutive elements

_SEGMENTS: dict[str, tuple[str, float]] = {
    "sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0), "max": ("max", -math.inf), "min": ("min", math.inf)
}  # fmt: skip
"""The reduction of a scatter, and what it begins with."""


@aten("segment_reduce")
def segment_reduce(
    node: AtenNode, data: Value, reduce: str, lengths: Value | None = None, indices: Value | None = None,
    offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: Number | None = None,
) -> Value:  # fmt: skip
    """The elements along an axis by segments, of which lengths or ends are given; those behind the last one do not
    count. The mean of none is NaN."""
    given = lengths if lengths is not None else offsets
    if given is None or reduce not in _SEGMENTS:
        raise node.refuse("segments without lengths", "give lengths or offsets")
    at = node.axis(axis, len(shape_of(data)))
    ends = node.value(given, dt.i64)
    count = shape_of(ends)[at]
    if lengths is not None:
        ends = cumsum(ends, axis=at)
    else:
        count = count - 1
        ends = slice_(ends, starts=(*[0] * at, 1), sizes=(*shape_of(ends)[:at], count), steps=(1,) * (at + 1))
    outer, size, inner = shape_of(data)[:at], shape_of(data)[at], shape_of(data)[at + 1 :]
    order = iota(shape=(*[1] * at, size), axis=at)
    which = searchsorted(expand(order, shape=(*outer, size)), ends, right=True)
    which = expand(reshape(which, shape=(*outer, size, *[1] * len(inner))), shape=shape_of(data))
    reduction, neutral = _SEGMENTS[reduce]
    first = node.value(neutral if initial is None else initial, node.dtype)
    start = expand(first, shape=(*outer, count + 1, *inner))
    whole = scatter_elements(start, which, data, axis=at, reduction=reduction)
    result = (*outer, count, *inner)
    found = slice_(whole, starts=(0,) * len(result), sizes=result, steps=(1,) * len(result))
    if reduce != "mean":
        return found
    one = full(value=1, dtype=node.dtype, shape=shape_of(data))
    none = full(value=0, dtype=node.dtype, shape=shape_of(whole))
    often = scatter_elements(none, which, one, axis=at, reduction="add")
    often = slice_(often, starts=(0,) * len(result), sizes=result, steps=(1,) * len(result))
    empty = node.value(math.nan if initial is None else initial, node.dtype)
    return ew.select(ew.eq(often, node.value(0, node.dtype)), empty, ew.div(found, often))


@aten("nonzero_static")
def nonzero_static(node: AtenNode, self: Value, size: Any, fill_value: int = -1) -> Value:
    """The positions of the first elements that are not 0, a row for each; rows that are left have a fill value."""
    shape = shape_of(self)
    count, rows = product(shape), sym(size)
    flat = reshape(self, shape=(count,))
    holds = flat if type_of(flat).dtype is dt.bool_ else ew.ne(flat, node.value(0, type_of(flat).dtype))
    rank = ew.sub(cumsum(ew.cast(holds, dtype=dt.i64), axis=0), dim_value(1))
    place = ew.select(holds, ew.min_(rank, dim_value(rows)), dim_value(rows))
    start = full(value=-1, dtype=dt.i64, shape=(rows + 1,))
    found = scatter_elements(start, place, iota(shape=(count,), axis=0), axis=0)
    found = section(found, 0, 0, rows)
    columns, rest = [], found
    for d in reversed(shape):
        columns.append(unsqueeze(ew.mod(rest, dim_value(d)), axes=(1,)))
        rest = ew.div(rest, dim_value(d))
    if not columns:
        return full(value=0, dtype=dt.i64, shape=(rows, 0))
    table = concat(*reversed(columns), axis=1)
    is_there = unsqueeze(ew.ge(found, dim_value(0)), axes=(1,))
    return ew.select(is_there, table, node.value(fill_value, dt.i64))
