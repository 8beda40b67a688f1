"""Sizes that a model declares: what is too large for any memory is refused, and nothing takes time for a number."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.fuzz.files.limits import limited
from tilewright.cost.core import divisors
from tilewright.ir.diag import ModelError, TypeRuleError

W = np.random.default_rng(4).standard_normal((4, 4, 3, 3)).astype(np.float32)


def node(operator: str, shape: list[int], w: np.ndarray | None = None, **attrs: Any) -> onnx.ModelProto:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", shape), ("y", None))]
    weights = [] if w is None else [numpy_helper.from_array(w, "w")]
    made = helper.make_node(operator, ["x", *(t.name for t in weights)], ["y"], name="large", **attrs)
    graph = helper.make_graph([made], "g", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


TOO_LARGE = {
    "output_padding": node("ConvTranspose", [1, 4, 8, 8], W, output_padding=[2**62, 0]),
    "strides": node("ConvTranspose", [1, 4, 8, 8], W, strides=[10**6, 10**6]),
    "repeats": node("Tile", [2, 2], np.array([2**40, 2**20])),
    "shape": node("Expand", [1, 1], np.array([2**33, 2**33])),
    "pads": node("Pad", [4], np.array([0, 2**48])),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_results_beyond_any_memory_are_refused_where_they_are_made(name: str) -> None:
    message = r"is larger than any memory \(2\^47 bytes\)|more than memory can hold"
    with limited(20, 2 << 30), pytest.raises((TypeRuleError, ModelError), match=message) as e:
        tilewright.compile(TOO_LARGE[name], cache=False)
    assert "node 'large'" in str(e.value)


def test_inputs_beyond_any_memory_are_refused() -> None:
    with pytest.raises(ModelError, match=r"larger than any memory.*\n.*graph input 'x'"):
        tilewright.compile(node("Relu", [2**31, 2**31]), cache=False)


@pytest.mark.parametrize("stride", [3, 5, 40])
def test_strides_beyond_the_filter(stride: int) -> None:
    model = node("ConvTranspose", [1, 4, 5, 6], W, strides=[stride, 2], pads=[1, 0, 2, 1])
    x = np.random.default_rng(5).standard_normal((1, 4, 5, 6)).astype(np.float32)
    (y,) = tilewright.compile(model, cache=False, threads=1)(x)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5)


def test_strides_of_thousands_take_no_memory_of_the_compiler() -> None:
    with limited(60, 1 << 30):
        model = tilewright.compile(node("ConvTranspose", [1, 4, 8, 8], W, strides=[2000, 2000]), cache=False)
    assert model.outputs[0].shape == (1, 4, 14003, 14003)
    assert model.report().constant_bytes < 1 << 16


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 101])
def test_response_normalisation_over_more_channels_than_there_are(size: int) -> None:
    model = node("LRN", [1, 4, 2, 3], size=size)
    x = np.random.default_rng(6).standard_normal((1, 4, 2, 3)).astype(np.float32)
    (y,) = tilewright.compile(model, cache=False, threads=1)(x)
    before, after = (size - 1) // 2, size - 1 - (size - 1) // 2
    near = [(x[:, max(0, c - before) : c + after + 1].astype(np.float64) ** 2).sum(1) for c in range(4)]
    np.testing.assert_allclose(y, x / (1 + 1e-4 / size * np.stack(near, 1)) ** 0.75, rtol=1e-5)


def test_response_normalisation_over_2_to_the_62_channels() -> None:
    with limited(20, 2 << 30):
        (y,) = tilewright.compile(node("LRN", [1, 4, 2, 2], size=2**62), cache=False)(np.ones((1, 4, 2, 2), np.float32))
    np.testing.assert_allclose(y, 1, rtol=1e-6)


def test_divisors_of_large_extents() -> None:
    assert [divisors(n) for n in (0, 1, 12, 49)] == [(), (1,), (1, 2, 3, 4, 6, 12), (1, 7, 49)]
    with limited(5, 1 << 28):
        assert divisors(2**46)[-1] == 2**46 and len(divisors(2**46)) > 20
