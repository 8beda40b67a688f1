"""Pooling."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.composites.windows import WindowAttributes, rounded_up
from tilewright.frontends.onnx.adapters.window import window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops.reduce import as_dtype, reduce_max, reduce_mean, reduce_sum, widened
from tilewright.ops.view import shape_of


def _windows(node: Node, x: Value) -> tuple[WindowAttributes, WindowAttributes]:
    """The window of x as the attributes have it, and as ceil_mode makes it."""
    space = shape_of(x)[2:]
    window = window_of(node, tuple(map(sym, node.attr("kernel_shape"))), space)
    return window, rounded_up(window, space) if node.attr("ceil_mode", 0) else window


def _attrs(window: WindowAttributes) -> dict[str, Any]:
    return {"kernel": window.kernel, **window.sliding}


@adapter("MaxPool")
def max_pool(node: Node) -> tuple[Value, ...]:
    x = node.input(0)
    attrs = _attrs(_windows(node, x)[1])
    result = pool.max_pool(x, **attrs)
    if not node.wants(1):
        return (result,)
    return (result, pool.max_pool_positions(x, result, **attrs, column_major=node.flag("storage_order")))


@adapter("AveragePool")
def average_pool(node: Node) -> Value:
    return average_pool_of(node, node.input(0))


def max_pool_of(node: Node, x: Value) -> Value:
    """The greatest of each window of x, which is operand 0 with its channels in axis 1."""
    return pool.max_pool(x, **_attrs(_windows(node, x)[1]))


def average_pool_of(node: Node, x: Value) -> Value:
    """The mean of each window of x, which is operand 0 with its channels in axis 1."""
    asked, window = _windows(node, x)
    overhang = tuple(w - a for w, a in zip(window.pads_end, asked.pads_end, strict=True))
    include = bool(node.attr("count_include_pad", 0))
    return pool.average_pool(x, **_attrs(asked), overhang=overhang, include_pad=include)


@adapter("LpPool")
def lp_pool(node: Node) -> Value:
    return pool.lp_pool(node.input(0), p=_norm_order(node), **_attrs(_windows(node, node.input(0))[1]))


def _norm_order(node: Node) -> float:
    p: float = node.attr("p")
    if p < 1:
        raise ModelError(f"{node.op}: a norm of order {p} is not possible")
    return p


@adapter("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(node: Node) -> Value:
    if node.rank(0) < 3:
        raise ModelError(f"{node.op} takes a tensor of three or more axes, not {node.type(0)}")
    x, axes = node.input(0), tuple(range(2, node.rank(0)))
    if node.op != "GlobalLpPool":
        return (reduce_mean if node.op == "GlobalAveragePool" else reduce_max)(x, axes=axes, keepdims=True)
    p = _norm_order(node)
    total = reduce_sum(ew.pow_(ew.abs_(widened(x)), float(p)), axes=axes, keepdims=True)
    return as_dtype(ew.pow_(total, 1.0 / p), node.dtype(0))
