"""Graphs written as standard ONNX."""
