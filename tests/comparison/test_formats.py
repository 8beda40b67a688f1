"""Models of all formats are compared, also of different ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import tilewright
from tests.comparison.networks import BLOCKS, CHANNELS, feeds, residual
from tests.frontends.stablehlo.helpers import program
from tests.frontends.tflite.models import Graph, Node, Tensor, constant, written


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.second = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Residual(torch.nn.Module):
    """The network of `residual`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = torch.nn.Linear(CHANNELS, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def weights(model: onnx.ModelProto) -> Mapping[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def in_torch(model: onnx.ModelProto, wrong: str = "") -> torch.nn.Module:
    """The network with the weights of an ONNX model; those of one layer are not right."""
    made = Residual().eval()
    names = {"w": "weight", "b": "bias"}
    for name, array in weights(model).items():
        layer, _, what = name.rpartition(".")
        module = made.get_submodule(layer.replace("block", "blocks."))
        value = torch.tensor(array.T if layer == "head" else array)
        getattr(module, names[what]).data.copy_(value * (0.1 if layer == wrong else 1))
    return made


@pytest.mark.sweep(2)
@pytest.mark.parametrize("layer", ["", "stem", "block1.first", "head"])
def test_a_module_is_compared_with_an_onnx_model(layer: str) -> None:
    network = residual()
    examples = (torch.zeros(1, 3, 8, 8),)
    found = tilewright.diff(network, in_torch(network, layer), feeds(), example_inputs=examples, threads=1)
    assert {x.layer for x in found.layers} >= {"stem/conv2d", "blocks.1.first/conv2d_3", "head/linear"}
    if not layer:
        assert found.worst is None
        return
    assert found.worst is not None and found.worst.layer.startswith(layer.replace("block", "blocks."))
    assert found.worst.own is not None and found.worst.own > 0.5


def tflite(scale: float, factor: float = 1) -> bytes:
    """Two convolutions, of floats or of bytes: one of these has weights whose scale is not right."""
    rng = np.random.default_rng(0)
    kernels = [(rng.standard_normal((4, 3, 3, c)) / 5).astype(np.float32) for c in (3, 4)]
    shapes = {"x": (1, 8, 8, 3), "a": (1, 8, 8, 4), "y": (1, 8, 8, 4)}
    tensors = []
    for name, shape in shapes.items():
        kept = {} if name == "x" or not scale else {"dtype": np.int8, "scale": 0.03, "zero": 0}
        tensors.append(Tensor(name, shape, **kept))  # type: ignore[arg-type]
    for k, w in enumerate(kernels):
        step = float(np.abs(w).max()) / 127
        given = constant(f"w{k}", np.rint(w / step).astype(np.int8), scale=step * (factor if k else 1))
        tensors.append(given if scale else constant(f"w{k}", w))
    options = {"padding": 0, "stride_h": 1, "stride_w": 1, "activation": 0}
    nodes = [Node("CONV_2D", ["x", "w0"], ["a"], options), Node("CONV_2D", ["a", "w1"], ["y"], options)]
    if scale:
        tensors.append(Tensor("q", shapes["x"], np.int8, None, scale, 0))
        nodes[0] = Node("CONV_2D", ["q", "w0"], ["a"], options)
        nodes.insert(0, Node("QUANTIZE", ["x"], ["q"]))
    return written(Graph(tensors, nodes, ["x"], ["y"]))


@pytest.mark.parametrize("factor", [1, 0.1])
def test_a_model_of_bytes_is_compared_with_that_of_floats(factor: float) -> None:
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_normal((1, 8, 8, 3)).astype(np.float32)} for _ in range(2)]
    found = tilewright.diff(tflite(0), tflite(0.03, factor), data, threads=1)
    errors = {layer.tensors[1]: layer for layer in found.layers}
    assert errors.keys() >= {"a", "y"} and errors["a"].error < 0.05
    assert found.outputs["y"].error > 0.5 if factor < 1 else found.outputs["y"].error < 0.05
    assert found.worst is not None and (found.worst.blame > 0.5) == (factor < 1)
    assert factor == 1 or found.worst.tensors == ("y", "y")


def stablehlo(second: float) -> bytes:
    kind, n = "tensor<4x4xf32>", "tensor<?x4xf32>"
    return program(
        f"%x: {n}", n,
        f"%v = stablehlo.constant dense<1.5> : {kind}", f"%w = stablehlo.constant dense<{second}> : {kind}",
        f"%a = stablehlo.dot_general %x, %v, contracting_dims = [1] x [0] : ({n}, {kind}) -> {n}",
        f"%b = stablehlo.tanh %a : {n}",
        f"%c = stablehlo.dot_general %b, %w, contracting_dims = [1] x [0] : ({n}, {kind}) -> {n}",
        f"return %c : {n}",
    )  # fmt: skip


def test_programs_of_stablehlo_are_compared() -> None:
    data = [{"arg0": np.random.default_rng(k).standard_normal((k + 2, 4)).astype(np.float32)} for k in range(2)]
    assert tilewright.diff(stablehlo(2.0), stablehlo(2.0), data, threads=1).worst is None
    found = tilewright.diff(stablehlo(2.0), stablehlo(2.5), data, threads=1)
    assert [layer.error for layer in found.layers] == [0, 0, pytest.approx(0.25)]
    assert found.worst is not None and found.worst.operator == "dot_general"


def test_a_graph_that_tools_have_made_is_a_model() -> None:
    from tilewright.requested import import_graph

    graph = import_graph(residual())
    found = tilewright.diff(residual(), graph, feeds(1), threads=1)
    assert found.worst is None and "constant" in {op.name for op in graph.main.body.ops}
    with pytest.raises(tilewright.OptionError, match="where the graph is imported"):
        tilewright.compile(graph, shapes={"x": [2, 3, 8, 8]})


def test_a_convolution_is_not_compared_before_the_normalisation_that_is_folded_into_it() -> None:
    rng = np.random.default_rng(2)
    given = {"k": (4, 3, 3, 3), "b": (4,), "g": (4,), "m": (4,), "v": (4,)}
    arrays = {n: np.abs(rng.standard_normal(shape)).astype(np.float32) + 0.5 for n, shape in given.items()}
    factor = arrays["g"] / np.sqrt(arrays["v"] + 1e-5)
    folded = {"k": arrays["k"] * factor.reshape(-1, 1, 1, 1), "b": arrays["b"] - arrays["m"] * factor}
    bodies = ("c = Conv(x, k) d = BatchNormalization(c, g, b, m, v) y = Relu(d)", "d = Conv(x, k, b) y = Relu(d)")
    made = []
    for body, weights in zip(bodies, (arrays, folded), strict=True):
        text = f"g (float[1,3,8,8] x) => (float[1,4,6,6] y) {{ {body} }}"
        made.append(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> {text}'))
        made[-1].graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in weights.items())
    found = tilewright.diff(*made, feeds(1), threads=1)
    assert [layer.tensors for layer in found.layers] == [("d", "d"), ("y", "y")] and found.worst is None
