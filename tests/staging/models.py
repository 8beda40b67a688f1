"""Small ONNX models for tests of staged programs."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper as h

import tilewright


def model_of(nodes: list, inputs: list, outputs: list[str], constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    given = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    results = [h.make_empty_tensor_value_info(name) for name in outputs]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info(*i) for i in inputs], results, given)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)])


def compiled(
    nodes: list, inputs: list, outputs: list[str], constants: dict[str, np.ndarray] | None = None
) -> tilewright.Model:
    """The model compiled with all checks."""
    made = model_of(nodes, inputs, outputs, constants or {})
    return tilewright.compile(made, cache=False, verify=True, threads=1)
