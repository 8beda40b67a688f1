"""Quantised operators mean those on floats, rounded to the steps of the result. TFLite rounds halves up, and sums of
convolutions in fixed point: its results are at most one step away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends.tflite.models import Graph, Node, Tensor, constant, node_model, run, written
from tilewright.frontends.tflite.load import load_tflite
from tilewright.frontends.tflite.model import QuantizedAs
from tilewright.frontends.tflite.tensors import float_bias

RNG = np.random.default_rng(3)
TYPES = (np.int8, np.uint8, np.int16)


def numbers(shape: tuple[int, ...], dtype: Any = np.int8) -> np.ndarray:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def steps(x: np.ndarray, scale: float, zero: int, dtype: Any) -> np.ndarray:
    """x in the steps of a type."""
    limits = np.iinfo(dtype)
    return np.clip(np.round(x / scale) + zero, limits.min, limits.max)


def assert_near(found: np.ndarray, wanted: np.ndarray, dtype: Any) -> None:
    assert found.dtype == dtype and found.shape == wanted.shape
    assert np.abs(found.astype(np.int64) - wanted).max() <= 1


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_tensors_with_other_scales(dtype: Any) -> None:
    a, b = numbers((3, 4), dtype), numbers((4,), dtype)
    zeros = (3, -7, 11) if dtype == np.int8 else (0, 0, 0) if dtype == np.int16 else (100, 128, 90)
    x = Tensor("a", a.shape, dtype, None, 0.02, zeros[0])
    y = Tensor("y", a.shape, dtype, None, 0.05, zeros[2])
    other = constant("b", b, scale=0.01, zero=zeros[1])
    data = node_model("ADD", [x, other], y, {"activation": 1})
    total = 0.02 * (a.astype(float) - zeros[0]) + 0.01 * (b.astype(float) - zeros[1])
    assert_near(run(data, a)[0], steps(np.maximum(total, 0), 0.05, zeros[2], dtype), dtype)


def convolution(activation: int = 0) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A convolution with a scale for each filter, its data, and the steps that it should give."""
    x, w = numbers((1, 6, 5, 3)), numbers((4, 3, 3, 3))
    scales, bias = np.array([0.01, 0.02, 0.005, 0.03], np.float32), RNG.integers(-4000, 4000, 4, np.int32)
    tensors = [
        Tensor("x", x.shape, np.int8, None, 0.05, 4),
        constant("w", w, scale=scales),
        constant("b", bias, scale=scales * 0.05),
        Tensor("y", (1, 6, 5, 4), np.int8, None, 0.2, -10),
    ]
    options = {"padding": 0, "stride_h": 1, "stride_w": 1, "activation": activation}
    graph = Graph(tensors, [Node("CONV_2D", ["x", "w", "b"], ["y"], options)], ["x"], ["y"])
    wide = np.pad(0.05 * (x.astype(float) - 4), ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = bias * scales.astype(float) * 0.05
    for i in range(3):
        for j in range(3):
            total = total + wide[:, i : i + 6, j : j + 5] @ (w[:, i, j] * scales[:, None].astype(float)).T
    total = np.clip(total, 0, 6) if activation == 3 else total
    return written(graph), x, steps(total, 0.2, -10, np.int8)


@pytest.mark.parametrize("activation", [0, 3])
def test_convolutions_with_a_scale_for_each_filter(activation: int) -> None:
    data, x, wanted = convolution(activation)
    assert_near(run(data, x)[0], wanted, np.int8)


def test_a_compiled_convolution_gives_the_same_steps() -> None:
    data, x, wanted = convolution()
    assert_near(tilewright.compile(data, cache=False)(x)[0], wanted, np.int8)


def test_activations_beyond_the_range_of_the_result_are_left_out() -> None:
    """A result from 0 to 6 is limited by its type."""
    x = Tensor("x", (4,), np.int8, None, 0.1, 0)
    tight = Tensor("y", (4,), np.int8, None, 6 / 255, -128)
    wide = Tensor("y", (4,), np.int8, None, 0.1, 0)
    for result, limits in ((tight, 0), (wide, 2)):
        module = load_tflite(node_model("ADD", [x, constant("c", np.int8(3), scale=0.1)], result, {"activation": 3}))
        assert sum(op.name in ("max", "min") for op in module.main.body.ops) == limits


def test_moves_keep_the_integers() -> None:
    """Reshape, gather, maxima and their like of tensors that are quantised alike."""
    a = numbers((2, 4, 4, 3))
    how = {"dtype": np.int8, "scale": 0.1, "zero": 5}
    pool = {"padding": 1, "stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    tensors = [
        Tensor("x", a.shape, **how), Tensor("p", (2, 2, 2, 3), **how), constant("shape", np.array([2, 12], np.int32)),
        Tensor("r", (2, 12), **how), constant("at", np.array([3, 1], np.int32)), Tensor("y", (2, 2), **how),
    ]  # fmt: skip
    nodes = [
        Node("MAX_POOL_2D", ["x"], ["p"], pool),
        Node("RESHAPE", ["p", "shape"], ["r"]),
        Node("GATHER", ["r", "at"], ["y"], {"axis": 1}),
    ]
    data = written(Graph(tensors, nodes, ["x"], ["y"]))
    module = load_tflite(data)
    assert not any("quantize" in op.name for op in module.main.body.ops)
    wanted = a.reshape(2, 2, 2, 2, 2, 3).max((2, 4)).reshape(2, 12)[:, [3, 1]]
    np.testing.assert_array_equal(run(data, a)[0], wanted)


def test_parts_quantised_in_other_ways_are_joined() -> None:
    a, b = numbers((2, 3)), numbers((2, 3))
    x, y = Tensor("a", (2, 3), np.int8, None, 0.1, 0), Tensor("b", (2, 3), np.int8, None, 0.05, 9)
    data = node_model("CONCATENATION", [x, y], Tensor("y", (2, 6), np.int8, None, 0.1, 0), {"axis": 1})
    other = steps(0.05 * (b.astype(float) - 9), 0.1, 0, np.int8)
    assert_near(run(data, a, b)[0], np.concatenate([a, other], 1), np.int8)


def test_quantize_and_dequantize() -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    data = node_model("QUANTIZE", [x], Tensor("y", (3, 4), np.uint8, None, 0.02, 128))
    assert_near(run(data, x)[0], steps(x.astype(float), 0.02, 128, np.uint8), np.uint8)
    a = numbers((3, 4))
    y = Tensor("y", (3, 4), np.uint8, None, 0.1, 131)
    data = node_model("QUANTIZE", [Tensor("a", (3, 4), np.int8, None, 0.1, 3)], y)
    np.testing.assert_array_equal(run(data, a)[0], (a.astype(int) + 128).astype(np.uint8))
    data = node_model("DEQUANTIZE", [Tensor("a", (3, 4), np.int8, None, 0.1, 3)])
    np.testing.assert_allclose(run(data, a)[0], 0.1 * (a.astype(float) - 3), rtol=1e-5)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_in_bytes_of_a_network_of_floats(bits: int) -> None:
    """Dynamic range: the weights are what they stand for, and the sums are of floats."""
    x, limit = RNG.standard_normal((2, 8)).astype(np.float32), 1 << (bits - 1)
    w, scales = RNG.integers(-limit, limit, (5, 8), np.int8), np.linspace(0.1, 0.5, 5, dtype=np.float32)
    stored = w.reshape(-1) if bits == 8 else (w.reshape(-1, 2) & 15).astype(np.uint8) @ np.array([1, 16], np.uint8)
    weights = Tensor("w", w.shape, np.int8, stored, scales, type_number=9 if bits == 8 else 17)
    data = node_model("FULLY_CONNECTED", [x, weights, None])
    np.testing.assert_allclose(run(data, x)[0], x @ (w * scales[:, None].astype(float)).T, rtol=1e-5, atol=1e-5)


def test_functions_of_bytes() -> None:
    a = numbers((2, 5))
    x = Tensor("a", (2, 5), np.int8, None, 0.05, 2)
    y = Tensor("y", (2, 5), np.int8, None, 1 / 256, -128)
    real = 0.05 * (a.astype(float) - 2)
    found = run(node_model("LOGISTIC", [x], y), a)[0]
    assert_near(found, steps(1 / (1 + np.exp(-real)), 1 / 256, -128, np.int8), np.int8)
    shares = np.exp(real) / np.exp(real).sum(-1, keepdims=True)
    found = run(node_model("SOFTMAX", [x], y, {"beta": 1.0}), a)[0]
    assert_near(found, steps(shares, 1 / 256, -128, np.int8), np.int8)


def test_the_scales_of_a_bias_are_those_of_its_only_axis_whatever_is_said() -> None:
    bias, scales = np.arange(8, dtype=np.int32), np.linspace(0.5, 4, 8)
    for axis in (0, 3):
        found = float_bias(bias, QuantizedAs(scales, np.zeros(8, np.int64), axis))
        np.testing.assert_array_equal(found, (bias * scales).astype(np.float32))
