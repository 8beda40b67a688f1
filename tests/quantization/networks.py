"""Small networks whose layers have work to do, and data for them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS, HIDDEN, CLASSES = 64, 512, 8


def classifier(seed: int = 0, hidden: int = HIDDEN) -> onnx.ModelProto:
    """relu(x w0 + b0), a square layer, then logits: prototypes of classes, so that margins are as those of a trained
    network."""
    rng = np.random.default_rng(seed)
    w0 = rng.standard_normal((INPUTS, hidden)).astype(np.float32) / np.sqrt(INPUTS, dtype=np.float32)
    w1 = rng.standard_normal((hidden, hidden)).astype(np.float32) / np.sqrt(hidden, dtype=np.float32)
    prototypes = _hidden(_centers(seed), w0, w1)
    prototypes = prototypes - prototypes.mean(axis=0)
    w2 = (prototypes / np.linalg.norm(prototypes, axis=1, keepdims=True)).T.astype(np.float32)
    bias = np.zeros(hidden, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Add", ["a", "b0"], ["b"], name="bias"),
        helper.make_node("Relu", ["b"], ["c"], name="relu"),
        helper.make_node("MatMul", ["c", "w1"], ["d"], name="second"),
        helper.make_node("Relu", ["d"], ["e"], name="relu2"),
        helper.make_node("Gemm", ["e", "w2"], ["y"], name="third"),
    ]
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(a, n) for n, a in (("w0", w0), ("w1", w1), ("w2", w2), ("b0", bias))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def _hidden(x: np.ndarray, w0: np.ndarray, w1: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(np.maximum(x @ w0, 0) @ w1, 0))


def _centers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed + 1).standard_normal((CLASSES, INPUTS)).astype(np.float32) * 2


def samples(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and their classes."""
    rng = np.random.default_rng(seed + 2)
    labels = rng.integers(0, CLASSES, count)
    noise = rng.standard_normal((count, INPUTS)).astype(np.float32)
    return (_centers(seed)[labels] + 0.5 * noise).astype(np.float32), labels


def image_network(seed: int = 0) -> onnx.ModelProto:
    """Two convolutions with a ReLU between them, a pooling, a Gemm with transposed weights."""
    rng = np.random.default_rng(seed)
    w = {
        "k0": rng.standard_normal((8, 3, 3, 3)) * np.geomspace(0.05, 5, 8)[:, None, None, None],
        "b0": rng.standard_normal(8),
        "k1": rng.standard_normal((16, 8, 3, 3)),
        "w": rng.standard_normal((5, 16)),
        "b": rng.standard_normal(5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "k0", "b0"], ["a"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b_"], name="relu"),
        helper.make_node("Conv", ["b_", "k1"], ["c"], name="conv1", strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        helper.make_node("Flatten", ["d"], ["e"], name="flat"),
        helper.make_node("Gemm", ["e", "w", "b"], ["y"], name="gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "images",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 5])],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in w.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
