"""Operators of strings, sequences and optionals, which the host computes."""

from tilewright.frontends.onnx.adapters.host import text as text
