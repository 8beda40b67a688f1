"""Pooling."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.tflite.adapters.window import window_of
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops.view import channels_first, channels_last, shape_of


def _windows(node: OperatorNode) -> tuple[Value, dict[str, Any]]:
    node.require_rank(0, 4)
    x = channels_first(node.input(0))
    kernel = (sym(node.integer("filter_height")), sym(node.integer("filter_width")))
    window = window_of(node, kernel, shape_of(x)[2:])
    return x, {"kernel": window.kernel, **window.sliding}


@tflite("MAX_POOL_2D", moves=True)
def max_pool_2d(node: OperatorNode) -> Value:
    x, attrs = _windows(node)
    return _activated(node, pool.max_pool(x, **attrs))


@tflite("AVERAGE_POOL_2D")
def average_pool_2d(node: OperatorNode) -> Value:
    """Of the elements inside of the image."""
    x, attrs = _windows(node)
    return _activated(node, pool.average_pool(x, **attrs))


@tflite("L2_POOL_2D")
def l2_pool_2d(node: OperatorNode) -> Value:
    """The root of the mean square."""
    x, attrs = _windows(node)
    return _activated(node, ew.sqrt(pool.average_pool(ew.mul(x, x), **attrs)))


def _activated(node: OperatorNode, y: Value) -> Value:
    return channels_last(node.activated(y))
