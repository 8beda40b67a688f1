"""Reductions, extremes and orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.exporters.onnx.forms.registry import form, rewritten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops.define import OPERATORS

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter

_NAMES = {
    "reduce_sum": "ReduceSum", "reduce_prod": "ReduceProd", "reduce_min": "ReduceMin", "reduce_max": "ReduceMax",
    "reduce_mean": "ReduceMean", "reduce_l1": "ReduceL1", "reduce_l2": "ReduceL2", "reduce_log_sum": "ReduceLogSum",
    "reduce_logsumexp": "ReduceLogSumExp", "reduce_sum_square": "ReduceSumSquare",
}  # fmt: skip

AXES_AS_DATA = 18
"""The operator set from which on all reductions take their axes as data; that of sums does from 13 on."""


@form(*_NAMES)
def reduction(w: OnnxWriter, op: Op) -> str | None:
    (x,) = op.operands
    name, axes = _NAMES[op.name], [a % max(x.tensor.rank, 1) for a in op.attrs["axes"]]
    if not w.takes(name, x) or not axes or (op.attrs.get("least_count", 0) and not _are_some(op)):
        return None
    keepdims = None if op.attrs["keepdims"] else 0
    if w.opset >= AXES_AS_DATA or name == "ReduceSum":
        return w.node(name, w.name(x), w.ints(axes), keepdims=keepdims)
    return w.node(name, w.name(x), axes=axes, keepdims=keepdims)


def _are_some(op: Op) -> bool:
    """Whether there are elements along each axis."""
    shape = op.operands[0].tensor.shape
    return all((shape[a].bounds[0] or 0) > 0 for a in op.attrs["axes"])


@rewritten("reduce_sum", "reduce_prod", "reduce_min", "reduce_max", "reduce_and", "reduce_or")
def in_wide_numbers(op: Op) -> Value | None:
    """What ONNX reduces in wide numbers only; of bools in bytes; along no axes the numbers themselves."""
    (x,), dtype, name = op.operands, op.result.tensor.dtype, op.name
    if not op.attrs["axes"]:
        return x
    if dtype.kind == "bool":
        is_and = name in ("reduce_and", "reduce_min", "reduce_prod")
        found = (rd.reduce_min if is_and else rd.reduce_max)(ew.cast(x, dtype=dt.u8), **op.attrs)
        return ew.cast(found, dtype=dtype)
    wide = dtype.accumulator if dtype.is_float or dtype.bits < 32 else dtype
    if name in ("reduce_and", "reduce_or") or wide == dtype:
        return None
    return ew.cast(OPERATORS[name](ew.cast(x, dtype=wide), **op.attrs), dtype=dtype)


@form("argmax", "argmin")
def position_of_extreme(w: OnnxWriter, op: Op) -> str | None:
    (x,) = op.operands
    name = {"argmax": "ArgMax", "argmin": "ArgMin"}[op.name]
    if not w.takes(name, x):
        return None
    return w.node(
        name, w.name(x), axis=op.attrs["axis"],
        keepdims=None if op.attrs["keepdims"] else 0, select_last_index=1 if op.attrs["last"] else None,
    )  # fmt: skip


@form("topk")
def topk(w: OnnxWriter, op: Op) -> tuple[str, ...] | None:
    (x,) = op.operands
    if not w.takes("TopK", x):
        return None
    largest = None if op.attrs["largest"] else 0
    return w.several("TopK", 2, w.name(x), w.size(sym(op.attrs["k"])), axis=op.attrs["axis"], largest=largest)


@rewritten("topk")
def topk_in_wide_numbers(op: Op) -> Sequence[Value] | None:
    """Short floats, and bools, in f32 or integers, in which their order is the same."""
    (x,) = op.operands
    dtype = x.tensor.dtype
    wide = dt.f32 if dtype.is_float and dtype.bits < 32 else dt.i32 if dtype.bits < 32 else None
    if wide is None:
        return None
    values, places = OPERATORS["topk"](ew.cast(x, dtype=wide), **op.attrs)
    return ew.cast(values, dtype=dtype), places
