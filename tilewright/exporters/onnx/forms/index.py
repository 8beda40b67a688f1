"""Positions that are data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.exporters.onnx.forms.registry import direct, form, rewritten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS
from tilewright.ops.index import gather

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

_WIDE = (dt.i64, dt.i32)


@rewritten("gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd")
def with_wide_indices(op: Op) -> Value | None:
    """Indices are i64."""
    x, indices, *others = op.operands
    if indices.tensor.dtype is dt.i64 or op.attrs.get("drop"):
        return None
    found: Value = OPERATORS[op.name](x, ew.cast(indices, dtype=dt.i64), *others, **op.attrs)
    return found


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
def one_hot(w: OnnxWriter, op: Op) -> str:
    indices, values = op.operands
    return w.node("OneHot", w.name(indices), w.size(sym(op.attrs["depth"])), w.name(values), axis=op.attrs["axis"])


@rewritten("table_lookup")
def table_lookup(op: Op) -> Value:
    """An element of 256, by a byte without its sign."""
    x, table = op.operands
    position = ew.cast(x, dtype=dt.i64)
    if x.tensor.dtype.kind == "int":
        position = ew.select(ew.lt(position, 0), ew.add(position, 256), position)
    return gather(table, position, axis=0)


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
