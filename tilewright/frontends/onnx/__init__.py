"""The ONNX frontend: `load_onnx` makes a graph-level Module of an ONNX model."""

from tilewright.frontends.onnx import adapters
from tilewright.frontends.onnx.errors import ConstantNeededError
from tilewright.frontends.onnx.load import OPSETS, load_onnx

__all__ = ["OPSETS", "ConstantNeededError", "adapters", "load_onnx"]
