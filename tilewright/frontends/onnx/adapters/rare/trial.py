"""Operators that the standard had on trial until 2019, and that converters of that time wrote into models.

They have no schema any more; ONNX Runtime's CPU, which has kept them, says what they mean.
"""

from __future__ import annotations

import numpy as np

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.adapters.view import slice_along
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, binds, refuse
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.activation import softplus
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.define import constant
from tilewright.ops.shape import surely_different
from tilewright.ops.view import slice_

adapter("DynamicSlice")(slice_along)

_NEVER = "it was on trial in the standard until 2019, and never had a meaning that programs agree about"
refuse(_NEVER, "ATen", "GRUUnit", "GivenTensorFill")


binds(
    {
        "Affine": lambda x, *, alpha=1.0, beta=0.0: ew.add(ew.mul(x, alpha), beta),
        "Scale": lambda x, *, scale=1.0: ew.mul(x, scale),
        "ScaledTanh": lambda x, *, alpha, beta: ew.mul(ew.tanh(ew.mul(x, beta)), alpha),
        "ParametricSoftplus": lambda x, *, alpha, beta: ew.mul(softplus(ew.mul(x, beta)), alpha),
    }
)


@adapter("ImageScaler")
def scaled_image(node: Node) -> Value:
    """Images [n, c, h, w] times a number, plus one number for each channel."""
    bias = node.attr("bias")
    wrong = f"ImageScaler of {node.type(0)} with {len(bias)} numbers for the channels"
    if node.rank(0) != 4 or surely_different(node.shape(0)[1], sym(len(bias))):
        raise ModelError(wrong)
    require(node.translation, s.eq(node.shape(0)[1], len(bias)), wrong)
    added = constant(np.array(bias, node.dtype(0).storage).reshape(-1, 1, 1), "bias")
    return ew.add(ew.mul(node.input(0), node.attr("scale", 1.0)), added)


@adapter("Crop")
def crop(node: Node) -> Value:
    """Images [n, c, h, w] without the border (left, top, right, bottom); with `scale`, of that height and width."""
    border, size = node.attr("border"), node.attr("scale", ())
    if node.rank(0) != 4 or len(border) != 4 or len(size) not in (0, 2):
        raise ModelError(f"Crop of {node.type(0)} by {list(border)} to {list(size)}")
    left, top, right, bottom = border
    n, c, h, w = node.shape(0)
    height, width = map(sym, size) if size else (h - top - bottom, w - left - right)
    shape = checked_shape((n, c, height, width), "Crop")
    return slice_(node.input(0), starts=(sym(0), sym(0), sym(top), sym(left)), sizes=shape, steps=(1,) * 4)
