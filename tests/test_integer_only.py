"""Programs without floats from a file to machine code, on this machine and for others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests import models
from tilewright.api import compile_artifact
from tilewright.back_end import check_no_floats
from tilewright.cli.app import commands
from tilewright.ir.diag import InternalError, UnsupportedError
from tilewright.options import Options
from tilewright.target.named import parse_target


class Network:
    """An ONNX network, each of whose tensors is quantised as ONNX Runtime's quantiser does."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.known: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(5)

    def add(self, operator: str, inputs: list[str], name: str, **attrs: object) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name=f"node_{name}", **attrs))
        return name

    def constant(self, array: np.ndarray, name: str) -> str:
        self.known.append(numpy_helper.from_array(array, name))
        return name

    def quantized(self, x: str, scale: float, zero: int) -> str:
        parameters = [
            self.constant(np.float32(scale), f"{x}_scale"), self.constant(np.uint8(zero), f"{x}_zero"),
        ]  # fmt: skip
        code = self.add("QuantizeLinear", [x, *parameters], f"{x}_q")
        return self.add("DequantizeLinear", [code, *parameters], f"{x}_dq")

    def weights(self, name: str, *shape: int, axis: int = 0) -> str:
        codes = self.rng.integers(-127, 128, shape).astype(np.int8)
        scales = (self.rng.random(shape[axis]) * 0.01 + 1e-3).astype(np.float32)
        parts = [
            self.constant(codes, f"{name}_q"), self.constant(scales, f"{name}_scale"),
            self.constant(np.zeros(shape[axis], np.int8), f"{name}_zero"),
        ]  # fmt: skip
        return self.add("DequantizeLinear", parts, name, axis=axis)

    def convolution(self, x: str, name: str, filters: int, channels: int, groups: int = 1) -> str:
        w = self.weights(f"{name}_w", filters, channels // groups, 3, 3)
        bias = self.constant(self.rng.standard_normal(filters).astype(np.float32), f"{name}_b")
        self.add("Conv", [x, w, bias], f"{name}_sums", pads=[1, 1, 1, 1], group=groups)
        self.add("Relu", [f"{name}_sums"], name)
        return self.quantized(name, 0.05, 0)

    def model(self, output: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "network",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 12, 12])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], self.known,
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def network() -> onnx.ModelProto:
    """Convolutions, a residual, a swish, a mean of all positions, a product, and probabilities."""
    n = Network()
    x = n.quantized("image", 0.02, 128)
    a = n.convolution(x, "first", 16, 3)
    b = n.convolution(n.convolution(a, "depthwise", 16, 16, 16), "second", 16, 16)
    added = n.quantized(n.add("Add", [a, b], "residual"), 0.08, 10)
    sigmoid = n.quantized(n.add("Sigmoid", [added], "gate"), 1 / 256, 0)
    swish = n.quantized(n.add("Mul", [added, sigmoid], "swish"), 0.08, 10)
    mean = n.quantized(n.add("GlobalAveragePool", [swish], "mean"), 0.04, 3)
    flat = n.quantized(n.add("Flatten", [mean], "flat"), 0.04, 3)
    scores = n.quantized(n.add("MatMul", [flat, n.weights("head", 16, 10, axis=1)], "scores"), 0.05, 128)
    n.quantized(n.add("Softmax", [scores], "y"), 1 / 256, 0)
    return n.model("y_dq")


@pytest.fixture(scope="module")
def compiled() -> tilewright.Model:
    return tilewright.compile(network(), threads=1, cache=False, integer_only=True, verify=True)


def test_a_network_is_near_its_floats(compiled: tilewright.Model) -> None:
    x = np.random.default_rng(1).standard_normal((3, 3, 12, 12)).astype(np.float32)
    (expected,) = tilewright.compile(network(), threads=1, cache=False)(x)
    given, got = compiled.report().integers
    codes = np.clip(np.rint(x / np.float32(given.scale)) + given.zero_point, 0, 255).astype(given.dtype)
    (found,) = compiled(codes)
    assert found.dtype == np.uint8 and expected.max() > 0.2
    error = np.abs((found.astype(np.float64) - got.zero_point) * got.scale - expected)
    assert error.max() < 8 * got.scale


def test_files_and_threads_change_nothing(compiled: tilewright.Model, tmp_path: Path) -> None:
    x = np.random.default_rng(1).integers(0, 256, (2, 3, 12, 12)).astype(np.uint8)
    compiled.save(tmp_path / "network.tw")
    again = tilewright.load(tmp_path / "network.tw", threads=2)
    np.testing.assert_array_equal(again(x)[0], compiled(x)[0])
    assert again.report().integers == compiled.report().integers


@pytest.mark.sweep(1)
@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4", "zen4", "neoverse-n1", "apple-m1"])
def test_code_for_other_machines_has_no_floats(target: str) -> None:
    """Each kernel's assembler text is searched."""
    compile_artifact(network(), options=Options(target=target, integer_only=True, cache=False, compile_threads=1))


def test_instructions_of_floats_are_an_error() -> None:
    lines = [".type k,@function", "k:", "\tvpaddd\t%ymm0, %ymm1, %ymm2", "\tvmulps\t%ymm0, %ymm1, %ymm2", "\tret"]
    text = "\n".join([*lines, ".Lfunc_end0:\n"])
    with pytest.raises(InternalError, match=r"kernel 'k' has floating-point instructions: vmulps"):
        check_no_floats("kernel 'k'", parse_target("zen3"), text)
    check_no_floats("kernel 'k'", parse_target("zen3"), text.replace("vmulps", "vmovups"))


def test_the_option_is_part_of_the_key() -> None:
    assert Options(integer_only=True).fingerprint() != Options().fingerprint()


def test_commands(tmp_path: Path) -> None:
    path = models.written(network(), tmp_path, "network")
    made = CliRunner().invoke(commands, ["compile", str(path), "--integer-only", "--no-cache", "-o", f"{path}.tw"])
    assert made.exit_code == 0, made.output
    said = CliRunner().invoke(commands, ["explain", f"{path}.tw"]).output
    assert "input image: uint8, (integer - 128) * 0.0199999996" in said
    assert "output y_dq: uint8, (integer - 0) * 0.00390625" in said


def test_a_network_of_floats_lists_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as caught:
        tilewright.compile(models.mlp(), cache=False, integer_only=True)
    assert [(p.operator, p.node) for p in caught.value.problems] == [("the input", "x")]
    assert "node 'dense' (MatMul)" in str(caught.value)
    path = models.written(models.mlp(), tmp_path, "mlp")
    result = CliRunner().invoke(commands, ["compile", str(path), "--integer-only"])
    assert result.exit_code == 1 and "by integers only" in result.output
