"""Forms without a meaning, in the model or in a call: refused with a reason, and given none silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
LARGEST = 2**63 - 1


def one(
    op: str, operands: Mapping[str, np.ndarray | None], given: Sequence[str], attributes: Mapping[str, Any]
) -> onnx.ModelProto:
    """A model of one operator; operands that are `given` are inputs, those that are None left out."""
    names = [name if array is not None else "" for name, array in operands.items()]
    inputs = [
        info(name, list(operands[name].shape), helper.np_dtype_to_tensor_dtype(operands[name].dtype)) for name in given
    ]
    weights = {name: array for name, array in operands.items() if name not in given and array is not None}
    return model_of([helper.make_node(op, names, ["y"], **attributes)], inputs, ["y"], weights, opset=20)


def refused(
    said: str, op: str, operands: Mapping[str, np.ndarray | None], given: Sequence[str] = (), **attributes: Any
) -> None:
    """By us with these words, and by ONNX Runtime."""
    model = one(op, operands, given, attributes)
    feeds = {name: operands[name] for name in given}
    with pytest.raises(tilewright.TilewrightError, match=said):
        tilewright.compile(model, cache=False, threads=1)(**feeds)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64 if op == "Range" else 1, None))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match=r"ONNXRuntimeError|overflow"):
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("axis", [-4, 4, -(2**63), 2**62])
def test_flatten_at_an_axis_that_is_none(axis: int) -> None:
    refused(f"axis {axis} does not exist: the tensor has 3 axes", "Flatten", {"x": X}, ["x"], axis=axis)


@pytest.mark.parametrize("perm", [[0, -1, -2], [-1, -2, -3], [0, 1, 3], [0, 0, 1], [2**62, 0, 1]])
def test_transpose_by_no_permutation(perm: list[int]) -> None:
    refused("counted from the end|out of range|name an axis twice", "Transpose", {"x": X}, ["x"], perm=perm)


@pytest.mark.parametrize("lengths", [[1, 3, 0], [-1, 2, 2]])
@pytest.mark.parametrize("known", [False, True])
def test_lengths_beyond_the_sequences(lengths: list[int], known: bool) -> None:
    given = ["x"] if known else ["x", "l"]
    operands: dict[str, np.ndarray | None] = {"x": X, "l": np.array(lengths)}
    refused("length", "ReverseSequence", operands, given, batch_axis=1, time_axis=0)
    for op, gates in (("GRU", 3), ("LSTM", 4), ("RNN", 1)):
        w, r = np.ones((1, 3 * gates, 4), np.float32), np.ones((1, 3 * gates, 3), np.float32)
        operands = {"x": X, "w": w, "r": r, "b": None, "l": np.array(lengths, np.int32)}
        refused("length", op, operands, given, hidden_size=3)


def test_lengths_within_the_sequences() -> None:
    operands = {"x": X, "l": np.array([0, 2, 1])}
    model = one("ReverseSequence", operands, ["x", "l"], {"batch_axis": 1, "time_axis": 0})
    wanted = X.copy()
    wanted[:, 1] = X[::-1, 1]
    np.testing.assert_array_equal(tilewright.compile(model, cache=False)(X, operands["l"])[0], wanted)


@pytest.mark.parametrize("step", [0, -1])
@pytest.mark.parametrize("given", [["x"], ["x", "step"]])
def test_frames_that_do_not_advance(step: int, given: list[str]) -> None:
    signal = np.ones((1, 20, 1), np.float32)
    operands = {"x": signal, "step": np.array(step), "window": None, "length": np.array(5)}
    refused("apart|one element at least", "STFT", operands, given)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0, 5, 0), (0, 5, np.nan), (np.nan, 5, 1), (0, np.inf, 1), (0, -np.inf, 1)]
)
@pytest.mark.parametrize("given", [[], ["start", "limit", "delta"]])
def test_ranges_without_a_length(start: float, limit: float, delta: float, dtype: type, given: list[str]) -> None:
    numbers = {"start": start, "limit": limit, "delta": delta}
    model = one("Range", {name: np.array(v, dtype) for name, v in numbers.items()}, given, {})
    with pytest.raises(tilewright.TilewrightError, match=r"step of 0|not a finite number"):
        tilewright.compile(model, cache=False, threads=1)(*[np.array(numbers[name], dtype) for name in given])


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0, 5, 0), (-(2**63), LARGEST, 1), (LARGEST, -(2**63), -1), (5, 0, -(2**63))]
)
@pytest.mark.parametrize("given", [[], ["start", "limit", "delta"]])
def test_ranges_whose_length_is_no_integer(start: int, limit: int, delta: int, given: list[str]) -> None:
    if not given and delta == -(2**63):
        return  # known numbers are followed exactly: one element
    numbers = {"start": start, "limit": limit, "delta": delta}
    model = one("Range", {name: np.array(v) for name, v in numbers.items()}, given, {})
    with pytest.raises(tilewright.TilewrightError, match=r"step of 0|can be counted|memory can hold"):
        tilewright.compile(model, cache=False, threads=1)(*[np.array(numbers[name]) for name in given])


@pytest.mark.parametrize("scale", [0.0, np.nan, -1.0, np.inf])
@pytest.mark.parametrize("given", [["x"], ["x", "scales"]])
def test_resizing_by_no_factor(scale: float, given: list[str]) -> None:
    operands = {"x": X[None], "roi": None, "scales": np.array([1, 1, scale, 2], np.float32)}
    refused("factor|not finite", "Resize", operands, given)


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("given", [["x"], ["x", "sizes"]])
def test_resizing_to_nothing(size: int, given: list[str]) -> None:
    operands = {"x": X[None], "roi": None, "scales": None, "sizes": np.array([1, 2, size, 4])}
    refused("elements", "Resize", operands, given)


@pytest.mark.parametrize("given", [["x"], ["x", "pads"]])
@pytest.mark.parametrize("pads", [[LARGEST, 0], [LARGEST, LARGEST], [2**62, 0]])
def test_pads_beyond_all_memory(pads: list[int], given: list[str]) -> None:
    operands = {"x": X[0, 0], "pads": np.array(pads)}
    model = one("Pad", operands, given, {})
    with pytest.raises(tilewright.TilewrightError, match="memory"):
        tilewright.compile(model, cache=False, threads=1)(*[operands[name] for name in given])


@pytest.mark.parametrize("given", [["x"], ["x", "shape"]])
@pytest.mark.parametrize("shape", [[0, -1], [-1, 0]])
def test_an_axis_that_is_inferred_beside_one_without_elements(shape: list[int], given: list[str]) -> None:
    refused("divided into|as many elements", "Reshape", {"x": X, "shape": np.array(shape)}, given, allowzero=1)


@pytest.mark.parametrize("names", [["n", "c", 2, 7], [3, "c", 2, "d"], [3, 0, 2, 7]])
@pytest.mark.parametrize(("shape", "wanted"), [([0, 0, -1], (3, 0, 14)), ([3, 0, -1, 7], (3, 0, 2, 7))])
def test_an_axis_that_is_inferred_of_no_elements(names: list[str | int], shape: list[int], wanted: list[int]) -> None:
    """Sizes that are known give what unknown ones give."""
    assert reshaped(names, shape) == wanted


def test_an_axis_of_no_elements_beyond_those_of_the_tensor() -> None:
    """As where the target is the shape of another tensor, which is known."""
    assert reshaped([3, 0, 2, 7], [1, 3, 2, 7, 0]) == (1, 3, 2, 7, 0)
    with pytest.raises(tilewright.ModelError, match="copies a dim beyond the 4 axes"):
        reshaped([3, 1, 2, 7], [1, 3, 2, 7, 0])


def reshaped(names: Sequence[str | int], shape: Sequence[int]) -> tuple[int, ...]:
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = model_of([node], [info("x", names)], ["y"], {"shape": np.array(shape)}).SerializeToString()
    return tilewright.compile(model, cache=False, threads=1)(np.zeros((3, 0, 2, 7), np.float32))[0].shape


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("pads", [[2, 0, 0, 0], [0, 0, 0, 5]])
def test_pads_as_large_as_the_kernel(op: str, pads: list[int]) -> None:
    refused("must be smaller than the kernel", op, {"x": X[None]}, ["x"], kernel_shape=[2, 2], pads=pads)


@pytest.mark.parametrize("surplus", [0, 3, 6])
def test_a_classifier_with_more_coefficients_than_it_needs(surplus: int) -> None:
    """As an example of ONNX Runtime has them."""
    coefficients = [0.25, 0.5, -1.0, 0.75, 2.0, -0.5] + [9.0] * surplus
    node = helper.make_node(
        "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", coefficients=coefficients,
        intercepts=[0.5, -0.25, 0.0], classlabels_ints=[4, 5, 6], post_transform="SOFTMAX",
    )  # fmt: skip
    outputs = [info("label", ["n"], TensorProto.INT64), info("scores", ["n", 3])]
    model = model_of([node], [info("x", ["n", 2])], outputs, domains=["ai.onnx.ml"], opset=18)
    x = np.array([[1, 2], [-3, 0.5], [0, 0]], np.float32)
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    label, scores = tilewright.compile(model, cache=False, threads=1)(x)
    np.testing.assert_array_equal(label, wanted[0])
    np.testing.assert_allclose(scores, wanted[1], rtol=1e-5)


@pytest.mark.parametrize("number", [2, -1, 2**62, -(2**63)])
@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("ReduceSum", "keepdims"), ("ReduceSum", "noop_with_empty_axes"), ("ArgMax", "keepdims"), ("Unique", "sorted"),
        ("ArgMin", "select_last_index"), ("CumSum", "reverse"),
    ],
)
def test_flags_that_are_neither_0_nor_1(op: str, name: str, number: int) -> None:
    """ONNX Runtime takes some for 0 and others for 1."""
    operands = {"x": X, "axis": np.array(1)} if op == "CumSum" else {"x": X}
    model = one(op, operands, ["x"], {name: number})
    with pytest.raises(tilewright.TilewrightError, match=f"{op}: the attribute '{name}' is 0 or 1, not {number}"):
        tilewright.compile(model, cache=False, threads=1)


def test_more_samples_of_a_region_than_ever_end() -> None:
    x, rois = np.ones((1, 1, 8, 8), np.float32), np.array([[0, 0, 4, 4]], np.float32)
    operands = {"x": x, "rois": rois, "batch": np.zeros(1, np.int64)}
    model = one("RoiAlign", operands, ["x"], {"sampling_ratio": 10**6, "output_height": 2, "output_width": 2})
    with pytest.raises(tilewright.ModelError, match="1000000 x 1000000 samples in each cell would not end"):
        tilewright.compile(model, cache=False, threads=1)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("given", "target", "wanted"), [((0, 3, 4), (0, -1), (0, 12)), ((3, 0), (-1, 0), (3, 0)), ((0,), (0, -1), (0, 1))]
)
def test_the_rest_of_nothing_is_what_it_is_of_any_batch(
    given: tuple[int, ...], target: tuple[int, ...], wanted: tuple[int, ...], known: bool
) -> None:
    dims = list(given) if known else [f"d{k}" for k in range(len(given))]
    node = helper.make_node("Reshape", ["x", "shape"], ["y"])
    model = model_of([node], [info("x", dims)], ["y"], {"shape": np.array(target)})
    (y,) = tilewright.compile(model, cache=False, threads=1)(np.zeros(given, np.float32))
    assert y.shape == wanted


def test_a_divisor_of_nothing_that_is_no_dim_of_the_input() -> None:
    nodes = [
        helper.make_node("Shape", ["z"], ["count"]),
        helper.make_node("Concat", ["count", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"], allowzero=0),
    ]
    inputs = [info("x", ["a", "b"]), info("z", ["c"])]
    compiled = tilewright.compile(
        model_of(nodes, inputs, ["y"], {"rest": np.array([-1])}), cache=False, threads=1
    )
    none, six = np.zeros(0, np.float32), np.zeros((2, 3), np.float32)
    assert compiled(six, np.zeros(3, np.float32))[0].shape == (3, 2)
    assert compiled(np.zeros((0, 3), np.float32), none)[0].shape == (0, 0)
    with pytest.raises(tilewright.InputError, match="cannot be reshaped"):
        compiled(six, none)
