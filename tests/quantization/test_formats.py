"""Models of all formats are quantised, certified and verified, and what ONNX can say is ONNX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch

import tilewright
from tests.frontends.stablehlo.helpers import program
from tests.frontends.tflite.models import Graph, Node, Tensor, constant, written
from tests.quantization.command_line import call
from tilewright.ir.diag import UnsupportedError
from tilewright.quantization.certificate import certificate_of
from tilewright.quantization.network import Network, read_graph

RNG = np.random.default_rng(0)
CHANNELS, CLASSES = 8, 5


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that reads each program of StableHLO before takes most of the time of reading; those of these tests
    end none."""
    monkeypatch.setattr("tilewright.frontends.stablehlo.parsing._check", lambda data, where: None)


def images(count: int = 64) -> np.ndarray:
    return np.random.default_rng(4).standard_normal((count, 3, 12, 12)).astype(np.float32)


class Images(torch.nn.Module):
    """Convolutions with normalisations, in two branches that read one tensor, and a layer of all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(CHANNELS)
        self.left = torch.nn.Conv2d(CHANNELS, CHANNELS, 3, padding="same", groups=2)
        self.right = torch.nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.head = torch.nn.Linear(CHANNELS, CLASSES)
        self.norm.running_mean.uniform_(-1, 1)  # type: ignore[union-attr, operator]
        self.norm.running_var.uniform_(0.5, 2)  # type: ignore[union-attr, operator]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.first(x)))
        return self.head((self.left(x) + self.right(x)).mean((2, 3)))  # type: ignore[no-any-return]


def module() -> torch.nn.Module:
    return Images().eval()


FIELDS: dict[str, Any] = {"max_drop": 0.9, "kinds": ["int8"], "threads": 1, "metric": "cosine"}
BATCH = {"x": {0: torch.export.Dim("n", min=1, max=64)}}


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    """Within what rounding to 8 bits does, but for what lies outside of what was calibrated with."""
    assert 0 < np.square(found - wanted).mean() < 0.05**2 * np.square(wanted).mean()


@pytest.mark.usefixtures("always_faster")
def test_a_module_of_pytorch() -> None:
    """Also what is written is that of other engines."""
    x, made = images(), module()
    examples = (torch.zeros(2, 3, 12, 12),)
    result = tilewright.quantize(made, {"x": x}, example_inputs=examples, dynamic_shapes=BATCH, **FIELDS)
    layers = {layer.node: layer for layer in result.certificate.layers}
    assert layers.keys() == {"first/conv2d", "left/conv2d_1", "right/conv2d_2", "head/linear"}
    assert layers["left/conv2d_1"].unit == layers["right/conv2d_2"].unit and result.certificate.narrowed == 4
    assert result.certificate.bytes_after < 0.6 * result.certificate.bytes_before
    with torch.no_grad():
        wanted = made(torch.tensor(x)).numpy()
    close(tilewright.Model(result.artifact(1), 1)(x)[0], wanted)
    model = result.model
    assert not {"BatchNormalization"} & {node.op_type for node in model.graph.node}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    close(session.run(None, {"x": x})[0], wanted)


@pytest.mark.usefixtures("always_faster")
def test_an_exported_program_by_command(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(module(), (torch.zeros(1, 3, 12, 12),)), tmp_path / "model.pt2")
    np.savez(tmp_path / "data.npz", x=images())
    out = tmp_path / "small.onnx"
    made = call(
        "quantize", tmp_path / "model.pt2", "--data", tmp_path / "data.npz", "--max-drop", "90%", "--metric",
        "cosine", "--kinds", "int8", "-o", out, "--threads", 1,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    nodes = {node.name: node.op_type for node in onnx.load(out).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= {*nodes.values()}
    certificate = certificate_of(onnx.load(out), "out")
    assert all(nodes[layer.node] in ("Conv", "MatMul", "Gemm") for layer in certificate.layers)
    told = call("explain", out)
    assert told.output.count("certified as int8") == 4, told.output
    verified = call("verify", out, "--data", tmp_path / "data.npz", "--threads", 1)
    assert verified.exit_code == 0 and "the certificate holds" in verified.output, verified.output
    compared = call("diff", tmp_path / "model.pt2", out, "--random", 2, "--threads", 1)
    assert compared.exit_code == 0 and "head/linear" in compared.output, compared.output


def tflite() -> bytes:
    """Two convolutions that read one tensor, with their activations, and a layer of all."""
    tensors = [
        Tensor("x", (1, 8, 8, 4), signature=(-1, 8, 8, 4)), Tensor("a", (1, 8, 8, 8)), Tensor("b", (1, 8, 8, 8)),
        Tensor("s", (1, 8, 8, 8)), Tensor("m", (1, 8)), Tensor("y", (1, CLASSES)), constant("axes", np.int32([1, 2])),
    ]  # fmt: skip
    shapes = {"wa": (8, 3, 3, 4), "wb": (8, 1, 1, 4), "wy": (CLASSES, 8), "bias": (8,)}
    tensors += [constant(name, RNG.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()]
    options = {"padding": 0, "stride_h": 1, "stride_w": 1, "activation": 1}
    nodes = [
        Node("CONV_2D", ["x", "wa", "bias"], ["a"], options), Node("CONV_2D", ["x", "wb", "bias"], ["b"], options),
        Node("ADD", ["a", "b"], ["s"], {"activation": 0}), Node("MEAN", ["s", "axes"], ["m"], {"keep_dims": False}),
        Node("FULLY_CONNECTED", ["m", "wy", None], ["y"], {"activation": 0}),
    ]  # fmt: skip
    return written(Graph(tensors, nodes, ["x"], ["y"]))


def stablehlo() -> bytes:
    hidden, kind = 64, "tensor<?x32xf32>"
    w = RNG.standard_normal((32, hidden)).astype(np.float32)
    v = RNG.standard_normal((hidden, 8)).astype(np.float32)
    lists = [str(a.tolist()) for a in (w, v)]
    return program(
        f"%x: {kind}", "tensor<?x8xf32>",
        f"%w = stablehlo.constant dense<{lists[0]}> : tensor<32x{hidden}xf32>",
        f"%v = stablehlo.constant dense<{lists[1]}> : tensor<{hidden}x8xf32>",
        f"%a = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({kind}, tensor<32x{hidden}xf32>) -> "
        f"tensor<?x{hidden}xf32>",
        f"%b = stablehlo.tanh %a : tensor<?x{hidden}xf32>",
        f"%c = stablehlo.dot_general %b, %v, contracting_dims = [1] x [0] : (tensor<?x{hidden}xf32>, "
        f"tensor<{hidden}x8xf32>) -> tensor<?x8xf32>",
        "return %c : tensor<?x8xf32>",
    )  # fmt: skip


@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize(
    ("source", "shape", "units"), [(tflite(), (8, 8, 4), 2), (stablehlo(), (32,), 2)], ids=["tflite", "stablehlo"]
)
def test_other_formats(source: bytes, shape: tuple[int, ...], units: int) -> None:
    x = RNG.uniform(-1, 1, (64, *shape)).astype(np.float32)
    wide = tilewright.compile(source, threads=1)
    name = wide.inputs[0].name
    result = tilewright.quantize(source, {name: x}, **FIELDS)
    layers = [layer for layer in result.certificate.layers if layer.kind == "int8"]
    assert len({layer.unit for layer in layers}) == units and all(layer.node for layer in layers)
    wanted = wide(x)[0]
    close(tilewright.Model(result.artifact(1), 1)(x)[0], wanted)
    close(tilewright.compile(result.model, threads=1)(x)[0], wanted)
    found = tilewright.diff(source, result.model, {name: x[:4]}, threads=1)
    assert found.outputs[next(iter(found.outputs))].error < 0.1


def test_layers_of_a_format_without_names_have_names_that_differ() -> None:
    network = Network.of(read_graph(stablehlo()))
    assert [unit.name for unit in network.units] == ["dot_general", "dot_general_1"]


@pytest.mark.usefixtures("always_faster")
def test_what_onnx_cannot_say_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is asked for is an error; the result is there."""

    def refused(*args: Any, **fields: Any) -> Any:
        raise UnsupportedError("strange has no form in ONNX")

    monkeypatch.setattr("tilewright.quantization.result.onnx_model", refused)
    monkeypatch.setattr("tilewright.quantization.result.write_onnx", refused)
    result = tilewright.quantize(stablehlo(), {"arg0": RNG.standard_normal((64, 32)).astype(np.float32)}, **FIELDS)
    with pytest.raises(UnsupportedError, match="no form in ONNX"):
        result.save(tmp_path / "small.onnx")
    result.save(tmp_path / "small.tw")
    assert tilewright.load(tmp_path / "small.tw")(RNG.standard_normal((3, 32)).astype(np.float32))[0].shape == (3, 8)
