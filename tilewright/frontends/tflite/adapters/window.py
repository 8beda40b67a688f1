"""Images have their channels last in TFLite, and in axis 1 in our operators; windows are padded by a word."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.schema import PADDINGS
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.composites.windows import WindowAttributes, same_pads
from tilewright.ops.view import shape_of, transpose


def channels_first(x: Value) -> Value:
    """x [n, *space, c] as [n, c, *space]; passes remove what meets its opposite."""
    rank = len(shape_of(x))
    return transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Value) -> Value:
    rank = len(shape_of(x))
    return transpose(x, perm=(0, *range(2, rank), 1))


AXES = {2: "hw", 3: "dhw"}
"""The letters of the spatial axes in names of options."""


def window_of(node: OperatorNode, kernel: Sequence[Sym], space: Sequence[Sym]) -> WindowAttributes:
    """The window that slides over `space`, as the options have it."""
    letters = AXES[len(space)]
    strides = tuple(node.integer(f"stride_{a}", 1) for a in letters)
    dilations = tuple(node.integer(f"dilation_{a}", 1) if f"dilation_{a}" in node.options else 1 for a in letters)
    pads = [(sym(0), sym(0))] * len(space)
    if any(k.is_const and k.value < 1 for k in kernel):
        raise ModelError(f"{node.op} has a window of {' x '.join(map(str, kernel))}")
    if node.named("padding", PADDINGS) == "SAME":
        axes = zip(space, kernel, strides, dilations, strict=True)
        pads = [same_pads(d, k, stride, dilation, True) for d, k, stride, dilation in axes]
    begin, end = (tuple(p[side] for p in pads) for side in (0, 1))
    return WindowAttributes(tuple(kernel), strides, begin, end, dilations)
