"""Operators of strings, sequences and optionals, which the host computes."""

from tilewright.frontends.onnx.adapters.host import images as images
from tilewright.frontends.onnx.adapters.host import labels as labels
from tilewright.frontends.onnx.adapters.host import optionals as optionals
from tilewright.frontends.onnx.adapters.host import sequences as sequences
from tilewright.frontends.onnx.adapters.host import text as text
