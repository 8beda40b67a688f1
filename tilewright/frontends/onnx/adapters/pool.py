"""Pooling."""

from __future__ import annotations

from tilewright.frontends.onnx.adapters.window import Window, rounded_up, window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops.reduce import reduce_max, reduce_mean, reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import pad


def _window(node: Node) -> Window:
    window = window_of(node, tuple(map(sym, node.attr("kernel_shape"))))
    return rounded_up(window, node.shape(0)[2:]) if node.attr("ceil_mode", 0) else window


def _attrs(window: Window) -> dict[str, object]:
    return {
        "kernel": tuple(k.value for k in window.kernel),
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
    return (result, _max_positions(node, window))


def _max_positions(node: Node, window: Window) -> Value:
    """Where each greatest element stands in the flattened input."""
    x, shape = node.input(0), node.shape(0)
    order = list(range(len(shape)))
    if node.attr("storage_order", 0):
        order = order[:2] + order[2:][::-1]
    return pool.max_pool_positions(x, **_attrs(window), order=tuple(order))


@adapter("AveragePool")
def average_pool(node: Node) -> Value:
    asked = window_of(node, tuple(map(sym, node.attr("kernel_shape"))))
    window = _window(node)
    return average(node, node.input(0), asked, window, bool(node.attr("count_include_pad", 0)))


def average(node: Node, x: Value, asked: Window, window: Window, counts_padding: bool) -> Value:
    """The mean over a window of the elements inside the input, or inside the padding that was asked for."""
    total = pool.sum_pool(x, **_attrs(window))
    padded = any(p != 0 for p in (*window.pads_begin, *window.pads_end))
    extended = window.pads_end != asked.pads_end
    if not padded or (counts_padding and not extended):
        return ew.mul(total, 1.0 / product(window.kernel).value)
    ones = full(value=1.0, dtype=node.dtype(0), shape=(1, 1, *node.shape(0)[2:]))
    if not counts_padding:
        return ew.div(total, pool.sum_pool(ones, **_attrs(window)))
    around = pad(ones, before=(0, 0, *asked.pads_begin), after=(0, 0, *asked.pads_end), value=1.0)
    rest = tuple(e - a for e, a in zip(window.pads_end, asked.pads_end, strict=True))
    outside = Window(window.kernel, window.strides, (sym(0),) * len(rest), rest, window.dilations)
    return ew.div(total, pool.sum_pool(around, **_attrs(outside)))


@adapter("LpPool")
def lp_pool(node: Node) -> Value:
    """The p-norm over a window."""
    p = _norm_order(node)
    powers = ew.pow_(ew.abs_(node.input(0)), p)
    return ew.pow_(pool.sum_pool(powers, **_attrs(_window(node))), 1.0 / p)


def _norm_order(node: Node) -> float:
    p = float(node.attr("p", 2))
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
    return ew.pow_(reduce_sum(ew.pow_(ew.abs_(node.input(0)), p), axes=_spatial(node), keepdims=True), 1.0 / p)


