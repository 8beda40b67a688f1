"""Small ONNX models for tests of staged programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper as h

import tilewright


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[int | str | None] | None] | onnx.ValueInfoProto],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    given = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    infos = [h.make_tensor_value_info(*i) if isinstance(i, tuple) else i for i in inputs]
    graph = h.make_graph(nodes, "g", infos, [h.make_empty_tensor_value_info(name) for name in outputs], given)
    opsets = [h.make_opsetid("", 21), h.make_opsetid("ai.onnx.ml", 4)]
    return h.make_model(graph, opset_imports=opsets, ir_version=10)


def compiled(
    nodes: list, inputs: list, outputs: list[str], constants: dict[str, np.ndarray] | None = None
) -> tilewright.Model:
    """The model compiled with all checks."""
    return checked(model_of(nodes, inputs, outputs, constants or {}))


def checked(model: onnx.ModelProto) -> tilewright.Model:
    """The same of a model."""
    return tilewright.compile(model, cache=False, verify=True, threads=1)


def loaded(model: tilewright.Model) -> tilewright.Model:
    """The model as its file's bytes give it."""
    return tilewright.load(model.artifact.to_bytes())
