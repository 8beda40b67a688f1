"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.onnx.adapters.window import window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, maximum, sym
from tilewright.ir.types import product, row_major
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops.composites.windows import WindowAttributes, rounded_up
from tilewright.ops.image import size_scalar
from tilewright.ops.reduce import as_dtype, reduce_max, reduce_mean, reduce_sum, widened
from tilewright.ops.view import shape_of


def _windows(node: Node, x: Value) -> tuple[WindowAttributes, WindowAttributes]:
    """The window of x as the attributes have it, and as ceil_mode makes it."""
    space = shape_of(x)[2:]
    window = window_of(node, tuple(map(sym, node.attr("kernel_shape"))), space)
    pads = node.attr("pads", ()) if node.attr("auto_pad", "NOTSET") == "NOTSET" else ()
    if any(pad >= size for pad, size in zip(pads, 2 * node.attr("kernel_shape"), strict=False)):
        kernel = list(node.attr("kernel_shape"))
        raise ModelError(f"{node.op}: pads {list(pads)} must be smaller than the kernel, {kernel}")
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
    positions = pool.max_pool_positions(x, result, **attrs)
    return (result, _by_columns(positions, shape_of(x)[2:]) if node.flag("storage_order") else positions)


def _by_columns(positions: Value, space: Sequence[Sym]) -> Value:
    """Flat positions whose spatial axes count in reverse order, of those in the usual order: which of equal elements is
    the first depends on the latter."""
    size = size_scalar(maximum(product(space), 1), dt.i64)
    place = ew.rem(positions, size)
    found = ew.sub(positions, place)
    for d, step in reversed(list(zip(space, row_major(tuple(reversed(space)))[::-1], strict=True))):
        extent = size_scalar(maximum(d, 1), dt.i64)
        found = ew.add(found, ew.mul(ew.rem(place, extent), size_scalar(step, dt.i64)))
        place = ew.div(place, extent)
    return found


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
    include = node.flag("count_include_pad", 0)
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
