"""Networks of the usual forms, whole on the NPU: no kernel of them is left to the scalar unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tilewright.session import Session

RNG = np.random.default_rng(31)


class Network:
    """Nodes in a row, of which each reads the last one, with weights drawn at random."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def drawn(self, *shape: int) -> str:
        """Numbers that keep sums of products about as large as what is multiplied."""
        deviation = 1 / np.sqrt(np.prod(shape[1:]) if len(shape) == 4 else shape[0])
        return self.weight(RNG.normal(0, deviation, shape).astype(np.float32))

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attrs))
        return name

    def conv(self, x: str, channels: int, filters: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> str:
        w = self.drawn(filters, channels // groups, kernel, kernel)
        pads = [kernel // 2] * 4
        return self.add("Conv", x, w, pads=pads, strides=[stride] * 2, group=groups, kernel_shape=[kernel] * 2)

    def model(self, x: onnx.ValueInfoProto) -> onnx.ModelProto:
        y = helper.make_tensor_value_info(self.nodes[-1].output[0], TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


def convolutions() -> tuple[onnx.ModelProto, np.ndarray]:
    """An inverted residual between a pool and a classifier."""
    net = Network()
    low, high = (net.weight(np.float32(v)) for v in (0, 6))
    x = net.add("Clip", net.conv("x", 3, 8, 3, stride=2), low, high)
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    wide = net.add("Clip", net.conv(x, 8, 24), low, high)
    wide = net.add("Clip", net.conv(wide, 24, 24, 3, groups=24), low, high)
    x = net.add("Add", net.conv(wide, 24, 8), x)
    net.add("Gemm", net.add("Flatten", net.add("GlobalAveragePool", x)), net.drawn(8, 10), net.drawn(10))
    model = net.model(helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32]))
    return model, RNG.normal(size=(1, 3, 32, 32)).astype(np.float32)


def encoder() -> tuple[onnx.ModelProto, np.ndarray]:
    """Embeddings, and a layer of attention."""
    rows, width, heads = 8, 32, 2
    net = Network()
    split = net.weight(np.array([1, rows, heads, width // heads]))
    x = net.add("Gather", net.weight(RNG.normal(size=(20, width)).astype(np.float32)), "ids")
    x = net.add("LayerNormalization", x, net.weight(np.ones(width, np.float32)), axis=-1)
    q, k, v = (net.add("Reshape", net.add("MatMul", x, net.drawn(width, width)), split) for _ in range(3))
    scores = net.add("MatMul", net.add("Transpose", q, perm=[0, 2, 1, 3]), net.add("Transpose", k, perm=[0, 2, 3, 1]))
    shares = net.add("Softmax", net.add("Mul", scores, net.weight(np.float32(0.25))), axis=-1)
    seen = net.add("MatMul", shares, net.add("Transpose", v, perm=[0, 2, 1, 3]))
    seen = net.add("Transpose", seen, perm=[0, 2, 1, 3])
    joined = net.add("Reshape", seen, net.weight(np.array([1, rows, width])))
    x = net.add("Add", net.add("MatMul", joined, net.drawn(width, width)), x)
    wide = net.add("Add", net.add("MatMul", x, net.drawn(width, 64)), net.drawn(64))
    bent = net.add("Mul", wide, net.add("Erf", wide))
    net.add("Add", net.add("MatMul", bent, net.drawn(64, width)), x)
    model = net.model(helper.make_tensor_value_info("ids", TensorProto.INT64, [1, rows]))
    return model, RNG.integers(0, 20, (1, rows))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("network", [convolutions, encoder])
def test_no_kernel_is_left_to_the_scalar_unit(
    network: Callable[[], tuple[onnx.ModelProto, np.ndarray]], tmp_path: Path
) -> None:
    model, x = network()
    (right,) = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: x})
    session = Session(tmp_path, plugins=())
    made = tilewright.compile(model.SerializeToString(), target="npu16", numerics="fast", session=session)
    (found,) = made(x)
    assert np.abs(found - right).max() < 0.02 * np.abs(right).max()  # products of float16
    report = made.report()
    assert {r.message for r in report.remarks if r.stage == "strategy"} <= {"matrix_unit", "vector_unit", "row_lookup"}
    assert all(k.busy.get("cube", 0) + k.busy.get("vector", 0) + k.busy.get("mte2", 0) > 0 for k in report.simulated)
