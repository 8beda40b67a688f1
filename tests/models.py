"""Small ONNX models for tests of commands, documents and errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FEATURES, CLASSES = 64, 32


def mlp_parameters() -> tuple[np.ndarray, np.ndarray]:
    """Weight and bias of `mlp`."""
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((FEATURES, CLASSES)).astype(np.float32) / 8
    return weight, rng.standard_normal(CLASSES).astype(np.float32)


def mlp() -> onnx.ModelProto:
    """softmax(relu(x @ w + b)) for x: float32[batch, 64]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="dense"),
        helper.make_node("Add", ["product", "b"], ["sum"], name="bias"),
        helper.make_node("Relu", ["sum"], ["hidden"], name="activation"),
        helper.make_node("Softmax", ["hidden"], ["y"], name="probabilities", axis=-1),
    ]
    weight, bias = mlp_parameters()
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def mlp_expected(x: np.ndarray) -> np.ndarray:
    """What `mlp` computes, in float64."""
    weight, bias = (a.astype(np.float64) for a in mlp_parameters())
    hidden = np.maximum(x.astype(np.float64) @ weight + bias, 0)
    powers = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def gather() -> onnx.ModelProto:
    """Rows of a table of 5 by int64 indices, which may be out of range."""
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["rows"], name="look_up", axis=0)],
        "gather",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(table, "table")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def unsupported() -> onnx.ModelProto:
    """Two nodes of operators that nobody has."""
    nodes = [
        helper.make_node("Frobnicate", ["x"], ["t"], name="first", domain="example"),
        helper.make_node("Defenestrate", ["t"], ["y"], name="second", domain="example"),
    ]
    graph = helper.make_graph(
        nodes,
        "unsupported",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("example", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def written(model: onnx.ModelProto, folder: Path, name: str) -> Path:
    """The path of the model as a file in `folder`."""
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    return path
