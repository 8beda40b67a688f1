"""Positions that are data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewright.exporters.onnx.forms.registry import direct, form, rewritten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import sym
from tilewright.ir.types import product, row_major
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.index import gather
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.source import dim_value, full, iota, sym_tensor
from tilewright.ops.view import concat, pad, reshape, shape_of, slice_, transpose

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter


@rewritten("gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd")
def with_wide_indices(op: Op) -> Value | None:
    """Indices are i64."""
    x, indices, *others = op.operands
    if indices.tensor.dtype is dt.i64 or op.attrs.get("drop"):
        return None
    found: Value = OPERATORS[op.name](x, ew.cast(indices, dtype=dt.i64), *others, **op.attrs)
    return found


@rewritten("scatter_nd")
def scatter_what_lies_inside(op: Op) -> Value | None:
    """What lies outside is put behind the elements, and left out then."""
    x, indices, updates = op.operands
    if not op.attrs["drop"]:
        return None
    depth = indices.tensor.shape[-1].value
    outer, inner = x.tensor.shape[:depth], x.tensor.shape[depth:]
    total = product(outer)
    places = ew.cast(indices, dtype=dt.i64)
    sizes, steps = (sym_tensor(values=tuple(v)) for v in (outer, row_major(outer)))
    are_inside = ew.and_(ew.ge(places, 0), ew.lt(places, sizes))
    inside = ew.eq(reduce_sum(ew.cast(are_inside, dtype=dt.i64), axes=(-1,)), depth)
    flat = reduce_sum(ew.mul(places, steps), axes=(-1,))
    flat = ew.select(inside, flat, dim_value(total))
    spare = full(value=0, dtype=x.tensor.dtype, shape=(1, *inner))
    rows = concat(reshape(x, shape=(total, *inner)), spare, axis=0)
    found = OPERATORS[op.name](rows, flat, updates, reduction=op.attrs["reduction"])
    kept = slice_(found, starts=(0,) * (len(inner) + 1), sizes=(total, *inner))
    return reshape(kept, shape=x.tensor.shape)


@rewritten("put")
def put_in_a_box(op: Op) -> Value:
    """The part, padded to the size of the whole, where it is."""
    x, part = op.operands
    starts, sizes = op.attrs["at"], part.tensor.shape
    room = {"before": starts, "after": tuple(d - a - n for d, a, n in zip(x.tensor.shape, starts, sizes, strict=True))}
    is_part = pad(full(value=1, dtype=dt.i32, shape=sizes), **room)
    return ew.select(ew.eq(is_part, 1), pad(part, **room), x)


@form("within")
def within(w: OnnxWriter, op: Op) -> str:
    """What is checked is left to the operators that read it."""
    return w.name(op.operands[0])


@form("triangle")
def triangle(w: OnnxWriter, op: Op) -> str:
    (x,), diagonal = op.operands, sym(op.attrs["diagonal"])
    k = "" if diagonal == 0 else w.node("Reshape", w.size(diagonal), w.ints([]))
    return w.node("Trilu", w.name(x), k, upper=None if op.attrs["upper"] else 0)


@form("one_hot")
def one_hot(w: OnnxWriter, op: Op) -> str | None:
    """OneHot, for the types that engines have it for: others are compared."""
    indices, values = op.operands
    if indices.tensor.dtype is not dt.i64 or values.tensor.dtype not in (dt.f32, dt.i64):
        return None
    return w.node("OneHot", w.name(indices), w.size(sym(op.attrs["depth"])), w.name(values), axis=op.attrs["axis"])


@rewritten("table_lookup")
def table_lookup(op: Op) -> Value:
    """An element of 256, by a byte without its sign."""
    x, table = op.operands
    position = ew.cast(x, dtype=dt.i64)
    if x.tensor.dtype.kind == "int":
        position = ew.select(ew.lt(position, 0), ew.add(position, 256), position)
    return gather(table, position, axis=0)


@rewritten("level")
def level(op: Op) -> Value:
    """A number of 16, by a code."""
    (codes,), dtype = op.operands, op.attrs["dtype"]
    levels = constant(np.array(op.attrs["levels"]).astype(dtype.storage), "levels")
    return gather(levels, ew.cast(codes, dtype=dt.i64), axis=0)


@form("positions")
def positions(w: OnnxWriter, op: Op) -> str:
    """NonZero, which counts by itself how many there are."""
    return w.node("NonZero", w.name(op.operands[0]))


direct("determinant", "Det", 11)


@form("grid_sample")
def grid_sample(w: OnnxWriter, op: Op) -> str | None:
    x, grid = op.operands
    if w.opset < 20 or op.attrs["pixels"] or x.tensor.dtype != grid.tensor.dtype:
        return None
    return w.node(
        "GridSample", w.name(x), w.name(grid), mode=op.attrs["mode"], padding_mode=op.attrs["padding"],
        align_corners=int(op.attrs["align_corners"]),
    )  # fmt: skip


@rewritten("grid_sample_rows")
def grid_sample_rows(op: Op) -> Value:
    """With channels in front, as ONNX has them."""
    x, grid = op.operands
    rank = x.tensor.rank
    sampled = OPERATORS["grid_sample"](transpose(x, perm=(0, rank - 1, *range(1, rank - 1))), grid, **op.attrs)
    return transpose(sampled, perm=(0, *range(2, rank), 1))


@form("kept_boxes")
def kept_boxes(w: OnnxWriter, op: Op) -> tuple[str, ...] | None:
    """NonMaxSuppression gives one row (batch, class, box) after the other: they are put beside each other."""
    if w.opset < 16 or not w.takes("NonMaxSuppression", *op.operands[:2]):
        return None
    boxes, scores, overlap, threshold = map(w.name, op.operands)
    batch, classes, _ = op.operands[1].tensor.shape
    limit = sym(op.attrs["limit"])
    chosen = w.node(
        "NonMaxSuppression", boxes, scores, w.size(limit), overlap, threshold,
        center_point_box=1 if op.attrs["centred"] else None,
    )  # fmt: skip
    of_batch, of_class, box = (w.node("Gather", chosen, w.number(k, dt.i64), axis=1) for k in range(3))
    row = w.node("Add", w.node("Mul", of_batch, w.size(classes)), of_class)
    index = w.node("Unsqueeze", row, w.ints([1]))
    count = w.node("Shape", row)
    ones = w.node("Expand", w.number(1, dt.i64), count)
    none = w.node("Expand", w.number(0, dt.i64), w.dims([batch * classes]))
    counts = w.node("ScatterND", none, index, ones, reduction="add")
    starts = w.node("CumSum", counts, w.number(0, dt.i64), exclusive=1)
    end = w.node("Reshape", count, w.ints([]))
    place = w.node("Sub", w.node("Range", w.number(0, dt.i64), end, w.number(1, dt.i64)), w.node("Gather", starts, row))
    empty = w.node("Expand", w.number(0, dt.i64), w.dims([batch * classes, limit]))
    where = w.node("Concat", index, w.node("Unsqueeze", place, w.ints([1])), axis=1)
    return w.node("ScatterND", empty, where, box), counts


@rewritten("joined_rows")
def joined_rows(op: Op) -> Sequence[Value]:
    """The row of a result is the number of rows that end before it."""
    values, ends = op.operands
    rows, width = shape_of(values)
    count = sym(op.attrs["count"])
    place = iota(shape=(count,), axis=0)
    are_before = ew.le(reshape(ends, shape=(1, rows)), reshape(place, shape=(count, 1)))
    row = reduce_sum(ew.cast(are_before, dtype=dt.i64), axes=(1,), keepdims=False)
    begin = ew.select(ew.gt(row, 0), gather(ends, ew.max_(ew.sub(row, 1), 0)), full(value=0, dtype=dt.i64, shape=()))
    flat = ew.add(ew.mul(row, dim_value(width)), ew.sub(place, begin))
    return gather(reshape(values, shape=(rows * width,)), flat), row


@form("roi_align")
def roi_align(w: OnnxWriter, op: Op) -> str | None:
    x, rois, batch = op.operands
    if w.opset < 16 or x.tensor.dtype != rois.tensor.dtype:
        return None
    offset = op.attrs["offset"]
    if offset not in (0.0, 0.5) or batch.tensor.dtype is not dt.i64:
        return None
    return w.node(
        "RoiAlign", w.name(x), w.name(rois), w.name(batch), mode=op.attrs["mode"], output_height=op.attrs["size"][0],
        output_width=op.attrs["size"][1], sampling_ratio=op.attrs["samples"], spatial_scale=op.attrs["scale"],
        coordinate_transformation_mode="half_pixel" if offset == 0.5 else "output_half_pixel",
    )  # fmt: skip


@form("max_roi_pool")
def max_roi_pool(w: OnnxWriter, op: Op) -> str:
    return w.node(
        "MaxRoiPool", *map(w.name, op.operands), pooled_shape=list(op.attrs["size"]), spatial_scale=op.attrs["scale"]
    )
