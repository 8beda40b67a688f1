"""Images resized, and blocks of pixels as channels."""

from __future__ import annotations

from functools import partial

from tilewright.frontends.tflite.adapters.window import channels_first, channels_last
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops.composites.images.positions import ResizedAxis, Resizing
from tilewright.ops.composites.images.resizing import resized
from tilewright.ops.view import reshape, shape_of, transpose


@tflite("RESIZE_BILINEAR")
def resize_bilinear(node: OperatorNode) -> Value:
    return _resized(node, "linear")


@tflite("RESIZE_NEAREST_NEIGHBOR", moves=True)
def resize_nearest_neighbor(node: OperatorNode) -> Value:
    return _resized(node, "nearest")


def _resized(node: OperatorNode, mode: str) -> Value:
    """Operand 1 is the new height and width."""
    node.require_rank(0, 4)
    sizes = node.symbols(1)
    if len(sizes) != 2 or any(d.is_const and d.value < 1 for d in sizes):
        raise ModelError(f"{node.op} to [{', '.join(map(str, sizes))}]")
    x = channels_first(node.input(0))
    plans = []
    for axis, new in zip((2, 3), sizes, strict=True):
        old = shape_of(x)[axis]
        if old != new:
            known = old.is_const and new.is_const and old.value
            plans.append(ResizedAxis(axis, old, new, new.value / old.value if known else None))
    return channels_last(resized(x, plans, _how(node, mode))) if plans else node.input(0)


def _how(node: OperatorNode, mode: str) -> Resizing:
    rules = partial(Resizing, mode, multiplies=True, integers="round")
    if node.flag("align_corners"):
        return rules("align_corners", "round_prefer_ceil")
    if node.flag("half_pixel_centers"):
        return rules("half_pixel" if mode == "linear" else "tf_half_pixel_for_nn", "floor")
    return rules("asymmetric", "floor")


@tflite("DEPTH_TO_SPACE", moves=True)
def depth_to_space(node: OperatorNode) -> Value:
    node.require_rank(0, 4)
    b, x = node.integer("block_size", 1), channels_first(node.input(0))
    n, c, h, w = shape_of(x)
    if c.is_const and c.value % (b * b):
        raise ModelError(f"DEPTH_TO_SPACE of {node.type(0)} in blocks of {b} x {b}")
    depth = s.floordiv(c, b * b)
    apart = transpose(reshape(x, shape=(n, b, b, depth, h, w)), perm=(0, 3, 4, 1, 5, 2))
    return channels_last(reshape(apart, shape=(n, depth, h * b, w * b)))


@tflite("SPACE_TO_DEPTH", moves=True)
def space_to_depth(node: OperatorNode) -> Value:
    node.require_rank(0, 4)
    b, x = node.integer("block_size", 1), channels_first(node.input(0))
    n, c, h, w = shape_of(x)
    if any(d.is_const and d.value % b for d in (h, w)):
        raise ModelError(f"SPACE_TO_DEPTH of {node.type(0)} in blocks of {b} x {b}")
    rows, columns = s.floordiv(h, b), s.floordiv(w, b)
    apart = transpose(reshape(x, shape=(n, c, rows, b, columns, b)), perm=(0, 3, 5, 1, 2, 4))
    return channels_last(reshape(apart, shape=(n, c * b * b, rows, columns)))
