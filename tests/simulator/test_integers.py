"""Quantised networks on the NPU: sums of bytes on its cube, right to the bit. Scales are powers of two, so that any
order of computing with them gives the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.simulator.test_npu import session, told

RNG = np.random.default_rng(23)
SCALES = {"sx": 2.0**-4, "sy": 2.0**-2, "sz": 2.0**-1, "so": 2.0**3}
ZEROS = {"zx": 117, "zy": 3, "zz": 31, "zo": 120}


def model(nodes: list[onnx.NodeProto], x: onnx.ValueInfoProto, y: int, known: dict[str, np.ndarray]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "integers",
        [x],
        [helper.make_tensor_value_info("out", y, None)],
        [numpy_helper.from_array(v, k) for k, v in known.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made).SerializeToString()


def there_and_back(name: str, to: str, n: str) -> list[onnx.NodeProto]:
    """A value as bytes with parameters n, and as the numbers that these stand for."""
    parameters = [f"s{n}", f"z{n}"]
    return [
        helper.make_node("QuantizeLinear", [name, *parameters], [f"{to}_bytes"]),
        helper.make_node("DequantizeLinear", [f"{to}_bytes", *parameters], [to]),
    ]


def quantised(x: np.ndarray, n: str) -> np.ndarray:
    """What `there_and_back` gives, in float64."""
    scale, zero = SCALES[f"s{n}"], ZEROS[f"z{n}"]
    return (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale


def convolved(x: np.ndarray, w: np.ndarray, stride: int, groups: int = 1) -> np.ndarray:
    """A convolution with 3 x 3 filters and padding of 1, in float64."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))[:, :, ::stride, ::stride]
    if groups == 1:
        return np.einsum("nchwij,ocij->nohw", windows, w)
    return np.einsum("nchwij,cij->nchw", windows, w[:, 0])


def test_a_quantised_network_runs_whole_and_to_the_bit(tmp_path: Path) -> None:
    """A convolution with a bias, a depthwise one and a product: all sums of two operands in one run each."""
    w, d = (RNG.integers(-127, 128, s).astype(np.int8) for s in ((12, 5, 3, 3), (12, 1, 3, 3)))
    b = RNG.integers(-900, 900, 12).astype(np.float32) / 16
    v = RNG.integers(-127, 128, (12 * 16, 10)).astype(np.int8)
    scales = {"sd": np.float32(2**-7), "sv": np.float32(2**-6)}
    scales["sw"] = np.exp2(-RNG.integers(5, 8, 12).astype(np.float32))
    weights = [
        helper.make_node("DequantizeLinear", [k, f"s{k}"], [f"{k}_numbers"], **({"axis": 0} if k == "w" else {}))
        for k in "wdv"
    ]
    nodes = [
        *weights,
        *there_and_back("data", "x", "x"),
        helper.make_node("Conv", ["x", "w_numbers", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        *there_and_back("r", "y", "y"),
        helper.make_node("Conv", ["y", "d_numbers"], ["e"], pads=[1] * 4, group=12),
        *there_and_back("e", "z", "z"),
        helper.make_node("Flatten", ["z"], ["f"]),
        helper.make_node("MatMul", ["f", "v_numbers"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "so", "zo"], ["out"]),
    ]
    known = {"w": w, "d": d, "v": v, "b": b, **scales}
    known |= {k: np.float32(s) for k, s in SCALES.items()} | {k: np.uint8(z) for k, z in ZEROS.items()}
    x = RNG.uniform(-7, 7, (3, 5, 8, 8)).astype(np.float32)
    data = model(nodes, helper.make_tensor_value_info("data", TensorProto.FLOAT, x.shape), TensorProto.UINT8, known)
    filters = w * scales["sw"].astype(np.float64).reshape(-1, 1, 1, 1)
    first = convolved(quantised(x.astype(np.float64), "x"), filters, 2)
    y = quantised(np.maximum(first + b.reshape(1, -1, 1, 1), 0), "y")
    z = quantised(convolved(y, d * 2.0**-7, 1, 12), "z").reshape(3, -1)
    right = np.clip(np.rint((z @ (v * 2.0**-6)) / SCALES["so"]) + ZEROS["zo"], 0, 255).astype(np.uint8)
    made = tilewright.compile(data, target="npu16", session=session(tmp_path), verify=True)
    assert np.array_equal(made(x)[0], right) and len(np.unique(right)) > 20
    units = [r.message for r in made.report().remarks if r.stage == "strategy"]
    assert units.count("matrix_unit") == 2 and units.count("vector_unit") == len(units) - 2
    assert {p.form.left for p in made.report().products if p.form.adds_integers} >= {"i8"}


@pytest.mark.sweep(1)
@pytest.mark.parametrize("zero", [0, 128, 200])
def test_products_of_bytes_with_any_zero_points(zero: int, tmp_path: Path) -> None:
    x, w = (RNG.integers(0, 256, s).astype(np.uint8) for s in ((33, 40), (40, 21)))
    known = {"w": w, "zx": np.uint8(99), "zw": np.uint8(zero)}
    node = helper.make_node("MatMulInteger", ["x", "w", "zx", "zw"], ["out"])
    data = model([node], helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape), TensorProto.INT32, known)
    made = tilewright.compile(data, target="tiny", session=session(tmp_path), verify=True)
    assert np.array_equal(made(x)[0], (x.astype(np.int32) - 99) @ (w.astype(np.int32) - zero))
    assert "cube" in told(made)
