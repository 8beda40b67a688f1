"""Pooling."""

from __future__ import annotations

from tilewright.frontends.onnx.adapters.window import Window, rounded_up, window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops.reduce import reduce_max, reduce_mean, reduce_sum


def _window(node: Node) -> Window:
    window = window_of(node, tuple(map(sym, node.attr("kernel_shape"))))
    return rounded_up(window, node.shape(0)[2:]) if node.attr("ceil_mode", 0) else window


def _attrs(window: Window) -> dict[str, object]:
    return {
        "kernel": window.kernel,
        "strides": window.strides,
        "pads_begin": window.pads_begin,
        "pads_end": window.pads_end,
        "dilations": window.dilations,
    }


@adapter("MaxPool")
def max_pool(node: Node) -> tuple[Value, ...]:
    window = _window(node)
    result = pool.max_pool(node.input(0), **_attrs(window))
    if not node.wants(1):
        return (result,)
    column_major = bool(node.attr("storage_order", 0))
    return (
        result,
        pool.max_pool_positions(node.input(0), result, **_attrs(window), column_major=column_major),
    )


@adapter("AveragePool")
def average_pool(node: Node) -> Value:
    asked = window_of(node, tuple(map(sym, node.attr("kernel_shape"))))
    window = _window(node)
    attrs = _attrs(asked)
    overhang = tuple(w - a for w, a in zip(window.pads_end, asked.pads_end, strict=True))
    include = bool(node.attr("count_include_pad", 0))
    return pool.average_pool(node.input(0), **attrs, overhang=overhang, include_pad=include)


@adapter("LpPool")
def lp_pool(node: Node) -> Value:
    return pool.lp_pool(node.input(0), p=_norm_order(node), **_attrs(_window(node)))


def _norm_order(node: Node) -> int:
    p: int = node.attr("p", 2)
    if p < 1:
        raise ModelError(f"{node.op}: a norm of order {p} is not possible")
    return p


def _spatial(node: Node) -> tuple[int, ...]:
    if node.rank(0) < 3:
        raise ModelError(f"{node.op} takes a tensor of three or more axes, not {node.type(0)}")
    return tuple(range(2, node.rank(0)))


@adapter("GlobalAveragePool")
def global_average_pool(node: Node) -> Value:
    return reduce_mean(node.input(0), axes=_spatial(node), keepdims=True)


@adapter("GlobalMaxPool")
def global_max_pool(node: Node) -> Value:
    return reduce_max(node.input(0), axes=_spatial(node), keepdims=True)


@adapter("GlobalLpPool", since=2)
def global_lp_pool(node: Node) -> Value:
    p = _norm_order(node)
    return ew.pow_(
        reduce_sum(ew.pow_(ew.abs_(node.input(0)), p), axes=_spatial(node), keepdims=True), 1.0 / p
    )
