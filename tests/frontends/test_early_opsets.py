"""Models of opsets 1 to 5, whose operators had other forms, and of operators that the standard has given up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import imported, info, model_of, node_model
from tests.frontends.microsoft.against import by_onnxruntime
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError, UnsupportedError

RNG = np.random.default_rng(3)
Expected = Callable[..., np.ndarray]


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def gives(model: onnx.ModelProto, expected: np.ndarray, *arrays: np.ndarray, rtol: float = 1e-5) -> None:
    (found,) = imported(model, *arrays)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=1e-6)


X, PAIR = f32(2, 3), f32(2, 3)
UNARY: Mapping[str, Expected] = {
    "Abs": np.abs, "Ceil": np.ceil, "Exp": np.exp, "Floor": np.floor, "Neg": np.negative, "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0), "Sigmoid": lambda x: 1 / (1 + np.exp(-x)), "Reciprocal": lambda x: 1 / x,
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)), "LeakyRelu": lambda x: np.where(x > 0, x, np.float32(0.01) * x),
    "Selu": lambda x: np.float32(1.0507) * np.where(x > 0, x, np.float32(1.6732) * np.expm1(x)),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1).astype(np.float32), "Dropout": lambda x: x,
    "Clip": lambda x: x,
}  # fmt: skip


@pytest.mark.parametrize("opset", [1, 3, 5])
@pytest.mark.parametrize("op", UNARY)
def test_a_result_might_take_the_memory_of_an_operand(op: str, opset: int) -> None:
    gives(node_model(op, [X], {"consumed_inputs": [0]}, opset=opset), UNARY[op](X), X)


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_binary_operators_are_aligned_at_an_axis(op: str) -> None:
    apply = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op]
    row = f32(2)
    model = node_model(op, [X, row], {"broadcast": 1, "axis": 0, "consumed_inputs": [0, 0]}, opset=1)
    gives(model, apply(X, row[:, None]), X, row)


@pytest.mark.parametrize(
    ("op", "attrs", "wanted"),
    [
        ("Cast", {"to": "DOUBLE"}, X.astype(np.float64)),
        ("Clip", {"min": -0.5, "max": 0.25}, np.clip(X, -0.5, 0.25)),
        ("Clip", {"max": 0.25}, np.minimum(X, np.float32(0.25))),
        ("Pad", {"paddings": [0, 1, 2, 0], "value": 2.0}, np.pad(X, [(0, 2), (1, 0)], constant_values=2)),
        ("Reshape", {"shape": [3, -1]}, X.reshape(3, 2)),
        ("LpPool", {"kernel_shape": [2], "p": 3.0}, None),
        ("GlobalLpPool", {"p": 1.5}, None),
        ("Upsample", {"height_scale": 2.0, "width_scale": 3.0}, None),
    ],
)  # fmt: skip
def test_what_is_an_operand_was_an_attribute(op: str, attrs: dict[str, Any], wanted: np.ndarray | None) -> None:
    x = X
    if op == "LpPool":
        x = X[None]
        wanted = np.cbrt((np.abs(x[..., 1:]) ** 3) + np.abs(x[..., :-1]) ** 3)
    elif op == "GlobalLpPool":
        x = X[None]
        wanted = (np.abs(x) ** 1.5).sum(2, keepdims=True) ** np.float32(1 / 1.5)
    elif op == "Upsample":
        x = X[None, None]
        wanted = x.repeat(2, 2).repeat(3, 3)
    assert wanted is not None
    gives(node_model(op, [x], attrs, opset=1), wanted, x)


def test_the_axis_of_concat_was_1() -> None:
    gives(node_model("Concat", [X, PAIR], opset=1), np.concatenate([X, PAIR], 1), X, PAIR)


def test_tile_repeated_one_axis() -> None:
    known = [np.float32(2), np.float32(1)]
    gives(node_model("Tile", [X, *known], known=(1, 2), opset=1), np.tile(X, (1, 2)), X)
    model = node_model("Tile", [X, *known], known=(2,), opset=1).SerializeToString()
    (found,) = tilewright.compile(model, cache=False, threads=1)(X, np.float32(2))
    np.testing.assert_array_equal(found, np.tile(X, (1, 2)))
    with pytest.raises(UnsupportedError, match="Tile needs the value of its input 2"):
        load_onnx(node_model("Tile", [X, *known], known=(1,), opset=1))


def test_sizes_of_split_were_of_the_type_of_the_data() -> None:
    sizes = np.float32([1, 2])
    model = node_model("Split", [X, sizes], {"axis": 1}, known=(1,), outputs=2, opset=1)
    first, second = imported(model, X)
    np.testing.assert_array_equal(np.concatenate([first, second], 1), X)
    assert first.shape == (2, 1)


def test_a_cast_to_no_type_is_refused() -> None:
    with pytest.raises(ModelError, match="Cast to 'FLAOT', which is no element type"):
        load_onnx(node_model("Cast", [X], {"to": "FLAOT"}, opset=1))


def test_statistics_of_each_element() -> None:
    x, (scale, bias, mean), variance = f32(2, 3, 4), f32(3, 3, 4), np.abs(f32(3, 4))
    arrays = [x, scale, bias, mean, variance]
    wanted = (x - mean) / np.sqrt(variance + np.float32(1e-5)) * scale + bias
    gives(node_model("BatchNormalization", arrays, {"spatial": 0}, opset=7), wanted, *arrays, rtol=1e-4)
    with pytest.raises(ModelError, match="with spatial=0: input 1"):
        load_onnx(node_model("BatchNormalization", [x, *[f32(3)] * 4], {"spatial": 0}, opset=7))


@pytest.mark.parametrize("op", ["RNN", "GRU", "LSTM"])
def test_recurrent_networks_mean_the_same_since(op: str) -> None:
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    arrays = [f32(4, 2, 3), f32(1, gates * 5, 3), f32(1, gates * 5, 5)]
    early, later = (
        imported(node_model(op, arrays, {"hidden_size": 5}, outputs=2, opset=opset), *arrays) for opset in (1, 7)
    )
    for one, other in zip(early, later, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("lengths", [None, [4, 2, 0]])
@pytest.mark.parametrize("known", [True, False])
def test_a_scan_of_a_batch(lengths: Sequence[int] | None, known: bool) -> None:
    """Sums of the elements so far, and their doubles, the second input backward."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "a"], ["t"]), helper.make_node("Add", ["t", "b"], ["u"]),
            helper.make_node("Add", ["u", "u"], ["row"]),
        ],
        "body", [info(name, [2]) for name in "sab"], [info("u", [2]), info("row", [2])],
    )  # fmt: skip
    names = ["n" if lengths else "", "start", "x", "y"]
    node = helper.make_node("Scan", names, ["end", "rows"], body=body, num_scan_inputs=2, directions=[0, 1])
    start, x, y = f32(3, 2), f32(3, 4, 2), f32(3, 4, 2)
    shapes: list[list[int | str]] = [[3, 2], [3, "t", 2], [3, "t", 2]]
    inputs = [info(n, s) for n, s in zip(names[1:], shapes, strict=True)]
    given = [start, x, y]
    constants = {}
    if lengths and known:
        constants = {"n": np.array(lengths)}
    elif lengths:
        inputs.append(info("n", [3], TensorProto.INT64))
        given.append(np.array(lengths))
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in ("end", "rows")]
    model = model_of([node], inputs, outputs, constants, opset=8)
    ends, rows = tilewright.compile(model.SerializeToString(), cache=False, threads=1)(*given)
    for k, count in enumerate(lengths or [4] * 3):
        sums = start[k] + np.cumsum(x[k, :count] + y[k, :count][::-1], axis=0)
        np.testing.assert_allclose(ends[k], sums[-1] if count else start[k], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(rows[k, :count], 2 * sums, rtol=1e-5, atol=1e-6)
        assert not rows[k, count:].any()


TRIAL = [
    ("Affine", {"alpha": 2.0, "beta": -1.0}, (2, 3)),
    ("ScaledTanh", {"alpha": 2.0, "beta": 0.5}, (2, 3)),
    ("ParametricSoftplus", {"alpha": 2.0, "beta": 0.5}, (2, 3)),
    ("ImageScaler", {"scale": 2.0, "bias": [1.0, 2.0, 3.0]}, (1, 3, 2, 2)),
    ("Crop", {"border": [1, 2, 0, 1]}, (1, 3, 6, 5)),
    ("Crop", {"border": [1, 2, 0, 1], "scale": [2, 3]}, (1, 3, 6, 5)),
    ("ThresholdedRelu", {"alpha": 0.3}, (2, 3)),
]


@pytest.mark.parametrize(("op", "attrs", "shape"), TRIAL, ids=lambda v: v if isinstance(v, str) else "")
def test_operators_that_were_on_trial(op: str, attrs: dict[str, Any], shape: Sequence[int]) -> None:
    x = f32(*shape)
    model = node_model(op, [x], attrs, opset=8)
    (wanted,) = by_onnxruntime(model, [x])
    gives(model, wanted, x)


def test_slices_of_computed_places() -> None:
    x, at = f32(4, 5), [np.array([1, -3]), np.array([3, 100]), np.array([0, 1])]
    model = node_model("DynamicSlice", [x, *at], known=(1, 2, 3), opset=8)
    gives(model, x[1:3, -3:], x)
    gives(node_model("Scale", [x], {"scale": 3.0}, opset=8), x * 3, x)


def test_trials_without_a_meaning_are_refused_with_the_reason() -> None:
    with pytest.raises(UnsupportedError, match="ATen: the operator is not supported: it was on trial"):
        load_onnx(node_model("ATen", [X], opset=8))


def test_regions_of_images() -> None:
    x = f32(2, 3, 7, 9)
    boxes = np.float32([[0, 0, 0, 8, 6], [1, 2.5, 1.5, 5, 5], [1, 6, 5, 2, 2], [0, -3, -2, 4, 20]])
    for scale in (1.0, 0.6):
        model = node_model("MaxRoiPool", [x, boxes], {"pooled_shape": [2, 3], "spatial_scale": scale}, opset=8)
        (wanted,) = by_onnxruntime(model, [x, boxes])
        gives(model, wanted, x, boxes)
        free = node_model(
            "MaxRoiPool", [x, boxes], {"pooled_shape": [2, 3], "spatial_scale": scale}, opset=8, dynamic=True
        )
        free.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 5
        (found,) = tilewright.compile(free.SerializeToString(), cache=False, threads=1)(x, boxes)
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ModelError, match="MaxRoiPool to the shape"):
        load_onnx(node_model("MaxRoiPool", [x, boxes], {"pooled_shape": [2]}, opset=8))


onnxruntime.set_default_logger_severity(4)
