"""Fourier transforms of real numbers."""

from __future__ import annotations

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, require_two_parts
from tilewright.frontends.onnx.node import Node
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.composites.fourier import real_inverse, transformed
from tilewright.ops.reduce import as_dtype, widened
from tilewright.ops.view import reshape


def _require_one_axis(node: Node) -> None:
    if node.attr("signal_ndim", 1) != 1 or node.attr("normalized", 0) or not node.attr("onesided", 1):
        raise UnsupportedError(f"{node.op} along several axes, normalised, or of both sides is not supported")


@microsoft("Rfft")
def rfft(node: Node) -> Value:
    """[..., n] -> [..., n // 2 + 1, 2]."""
    _require_one_axis(node)
    x, shape = widened(node.input(0)), node.shape(0)
    return as_dtype(transformed(reshape(x, shape=(*shape, 1)), bins=shape[-1] // 2 + 1), node.dtype(0))


@microsoft("Irfft")
def irfft(node: Node) -> Value:
    """[..., n // 2 + 1, 2] -> [..., n], divided by n, which is even."""
    _require_one_axis(node)
    x, shape = widened(node.input(0)), node.shape(0)
    if node.rank(0) < 2:
        raise ModelError(f"Irfft of {node.type(0)}, which has no axis of two parts")
    require_two_parts(node, 0)
    n = 2 * (shape[-2] - 1)
    return as_dtype(reshape(real_inverse(x, n), shape=(*shape[:-2], n)), node.dtype(0))
