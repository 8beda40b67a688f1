"""Encoded images."""

from __future__ import annotations

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops.define.staged import host


@adapter("ImageDecoder")
def image_decoder(node: Node) -> Value:
    pixel_format = node.one_of("pixel_format", "RGB", "BGR", "Grayscale")
    height, width = node.translation.new_size(), node.translation.new_size()
    result = tensor(dt.u8, (height, width, 1 if pixel_format == "Grayscale" else 3))
    return host("decode_image", node.operands, [result], {"pixel_format": pixel_format})[0]
