"""Normalisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.exporters.onnx.forms.registry import form
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter


@form("softmax", "log_softmax")
def softmax(w: OnnxWriter, op: Op) -> str | None:
    (x,), name = op.operands, {"softmax": "Softmax", "log_softmax": "LogSoftmax"}[op.name]
    return w.node(name, w.name(x), axis=op.attrs["axis"]) if w.takes(name, x) else None


@form("layer_norm")
def layer_norm(w: OnnxWriter, op: Op) -> str | None:
    """LayerNormalization, which has scales for all elements that are standardised together."""
    x, *others = op.operands
    if not w.takes("LayerNormalization", *op.operands) or not _are_alike(x, others, op.attrs["axis"]):
        return None
    return w.node("LayerNormalization", w.name(x), *map(w.name, others), **_attrs(op))


@form("rms_norm")
def rms_norm(w: OnnxWriter, op: Op) -> str | None:
    x, scale = op.operands
    if not w.takes("RMSNormalization", *op.operands) or not _are_alike(x, [scale], op.attrs["axis"]):
        return None
    return w.node("RMSNormalization", w.name(x), w.name(scale), **_attrs(op))


def _attrs(op: Op) -> dict[str, float | int]:
    return {"axis": op.attrs["axis"], "epsilon": op.attrs["epsilon"]}


def _are_alike(x: Value, others: list[Value], axis: int) -> bool:
    """Whether there is one element of each of the others for each of those along the axes."""
    shape: tuple[Sym, ...] = x.tensor.shape[axis % max(x.tensor.rank, 1) :]
    return all(v.tensor.shape == shape and v.tensor.dtype == x.tensor.dtype for v in others)


@form("batch_norm")
def batch_norm(w: OnnxWriter, op: Op) -> str | None:
    x, *vectors = op.operands
    if x.tensor.rank < 2 or any(v.tensor.shape != (x.tensor.shape[1],) for v in vectors):
        return None
    scale, bias, mean, variance = (v.tensor.dtype for v in vectors)
    if not w.takes("BatchNormalization", *op.operands) or scale != bias or mean != variance:
        return None
    return w.node("BatchNormalization", *map(w.name, op.operands), epsilon=op.attrs["epsilon"])


@form("group_norm")
def group_norm(w: OnnxWriter, op: Op) -> str | None:
    x, *vectors = op.operands
    if w.opset < 21 or any(v.tensor.shape != (x.tensor.shape[1],) or v.tensor.dtype != x.tensor.dtype for v in vectors):
        return None
    names = map(w.name, op.operands)
    return w.node("GroupNormalization", *names, num_groups=op.attrs["groups"], epsilon=op.attrs["epsilon"])
