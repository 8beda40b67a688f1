"""Data, metrics, arguments and models that quantisation cannot work with: each is told, with a way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests.quantization.command_line import call
from tests.quantization.networks import INPUTS, classifier, samples
from tilewright.ir.diag import ModelError
from tilewright.runtime.errors import InputError, OptionError


def model_and(data: Any, **fields: Any) -> None:
    tilewright.quantize(
        classifier(hidden=32), data, max_drop=fields.pop("max_drop", 0.01), threads=1, **fields
    )


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "there is no data"),
        ({"x": np.zeros((0, INPUTS), np.float32)}, "there is no data"),
        ({"z": np.zeros((4, INPUTS), np.float32)}, "other names.*no array named x.*no input z"),
        ({"x": np.zeros((4, INPUTS + 1), np.float32)}, r"shape \[1, 65\]"),
        ({"x": np.zeros((4, INPUTS), np.int64)}, "the data is int64"),
        ({"x": np.full((4, INPUTS), np.nan, np.float32)}, "NaN or infinite"),
        ({"x": np.zeros((4, INPUTS), np.float32), "labels": np.zeros(3)}, "4 samples, and labels"),
        ([1, 2], "is no feed"),
        (3, "is no data"),
    ],
)
def test_data_that_does_not_fit(data: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        model_and(data)


def test_files_that_hold_no_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no \.npz file"):
        model_and(tmp_path)
    with pytest.raises(InputError, match="cannot read"):
        model_and(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(InputError, match=r"no \.npz file"):
        model_and(tmp_path / "bad.npz")


def failing(outputs: Any, given: Any) -> Any:
    raise ValueError("no")


def constant(outputs: Any, given: Any) -> Any:
    return np.ones(len(outputs))


@pytest.mark.parametrize(
    ("metric", "said"),
    [(failing, "the metric failed: ValueError: no"), (constant, "the metric is constant")],
)
def test_metrics_that_say_nothing(metric: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        model_and({"x": samples(64)[0]}, metric=metric)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_drop": -0.1}, {"max_drop": 2}, {"confidence": 1.0}, {"kinds": ["int3"]}, {"calibration": "best"},
        {"metric": "beauty"}, {"metric": "none.py:score"}, {"batch": 0}, {"output": "x.txt"},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_out_of_range(fields: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        model_and({"x": samples(64)[0]}, **fields)


def quantised_model(scale: Any, zero: Any, dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
    scales, zeros = np.asarray(scale, np.float32), np.asarray(zero, np.uint8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["y"], name="dq", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
        [
            numpy_helper.from_array(scales, "s"),
            numpy_helper.from_array(zeros, "z"),
            numpy_helper.from_array(np.ones((2, 3), np.uint8), "w"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("scale", "zero", "said"),
    [
        (0, 0, "zero"),
        (np.nan, 0, "NaN"),
        ([1, 2], [0, 0], r"input 1 is f32\[2\] for axis 1 of u8\[2, 3\]"),
        (1, [1, 2], r"input 2 is u8\[2\] for axis 1 of u8\[2, 3\]"),
    ],
)
def test_models_with_wrong_parameters(scale: Any, zero: Any, said: str) -> None:
    with pytest.raises((InputError, ModelError), match=said):
        tilewright.quantize(
            quantised_model(scale, zero), {"x": np.zeros((2, 2, 3), np.float32)}, max_drop=0.01
        )


def test_integers_of_4_bits_of_a_wrong_length() -> None:
    model = quantised_model(1, 0)
    tensor = model.graph.initializer[2]
    tensor.data_type = TensorProto.INT4
    tensor.raw_data = b"\x11\x11"
    del model.graph.node[1].input[2:]
    with pytest.raises(ModelError, match=r"i4\[2, 3\] takes 3 bytes, the file has 2"):
        tilewright.quantize(model, {"x": np.zeros((2, 2, 3), np.float32)}, max_drop=0.01)


def test_a_model_without_a_certificate(saved: Path) -> None:
    result = call("inspect", saved / "model.onnx")
    assert result.exit_code == 1 and "has no certificate" in result.output


def few(count: int, copies: int) -> np.ndarray:
    """So many items, each so often, in an order in which every part of the data has each."""
    x = np.random.default_rng(5).standard_normal((count, INPUTS)).astype(np.float32)
    return x[np.random.default_rng(6).permutation(np.repeat(np.arange(count), copies))]


@pytest.mark.parametrize(("count", "copies", "max_drop", "needed"), [
    (1, 1, 0.05, 14), (1, 1000, 0.05, 59), (13, 100, 0.01, 299), (10, 1, 0.05, 14), (1, 10, 0.6, 4),
])  # fmt: skip
def test_a_bound_needs_different_items(count: int, copies: int, max_drop: float, needed: int) -> None:
    with pytest.raises(InputError, match="different items, of which") as caught:
        tilewright.quantize(classifier(), {"x": few(count, copies)}, max_drop=max_drop, batch=8, threads=1)
    said = str(caught.value)
    assert f"the data has {count} different items" in said and f"needs {needed} of them" in said
    assert f"give at least {-(-needed * 5 // 3)} items" in said


def npz(folder: Path, **arrays: np.ndarray) -> Path:
    np.savez(folder / "given.npz", **arrays)  # type: ignore[arg-type]
    return folder / "given.npz"


METRICS = """
import numpy as np

def failing(outputs, given):
    raise KeyError("target")

def constant(outputs, given):
    return np.ones(len(outputs))

def nothing(outputs, given):
    return []

def endless(outputs, given):
    return [float(np.exp(1000 * o[0].max())) for o in outputs]
"""


@pytest.mark.parametrize(
    ("arrays", "options", "said"),
    [
        ({"x": np.zeros((0, INPUTS), np.float32)}, [], "there is no data"),
        ({}, [], "other names than the model: no array named x"),
        ({"picture": np.zeros((4, INPUTS), np.float32)}, [], "the model has no input picture"),
        ({"x": np.zeros((4, 7), np.float32)}, [], "the data has the shape [1, 7], and the model takes"),
        ({"x": np.full((4, INPUTS), np.inf, np.float32)}, [], "NaN or infinite"),
        ({"x": samples(64)[0]}, ["--metric", "{folder}/metrics.py:failing"], "the metric failed: KeyError: 'target'"),
        ({"x": samples(64)[0]}, ["--metric", "{folder}/metrics.py:constant"], "the metric is constant"),
        ({"x": samples(64)[0]}, ["--metric", "{folder}/metrics.py:nothing"], "the metric gives no scores"),
        ({"x": samples(64)[0]}, ["--metric", "{folder}/metrics.py:endless"], "scores that are NaN or infinite"),
        ({"x": samples(64)[0]}, ["--metric", "{folder}/metrics.py:missing"], "has no function missing"),
        ({"x": samples(64)[0]}, ["--metric", "{folder}/none.py:score"], "there is no file"),
        ({"x": samples(64)[0]}, ["--metric", "beauty"], "metric='beauty' is not known"),
        ({"x": samples(64)[0]}, ["--kinds", "int3"], "kinds='int3' is not known"),
    ],
)  # fmt: skip
def test_commands_say_what_is_wrong(
    saved: Path, arrays: dict[str, np.ndarray], options: list[str], said: str
) -> None:
    (saved / "metrics.py").write_text(METRICS)
    options = [option.format(folder=saved) for option in options]
    out = saved / "small.onnx"
    made = call(
        "quantize", saved / "model.onnx", "--data", npz(saved, **arrays), "--max-drop", "1%", "-o", out,
        "--threads", 1, *options,
    )  # fmt: skip
    are_options_wrong = any(word in said for word in ("no function", "no file", "not known"))
    assert made.exit_code == (2 if are_options_wrong else 1) and said in made.output, made.output
    assert ("hint" in made.output or are_options_wrong) and not out.exists() and "Traceback" not in made.output


def with_integers(scale: Any, zero: Any, count: int = 6, dtype: int = TensorProto.UINT8) -> onnx.ModelProto:
    """x + dequantised integers, `[2, count // 2]` or a row of `count`."""
    dims = [2, count // 2] if count % 2 == 0 else [1, count]
    weights = numpy_helper.from_array(np.ones(dims, np.uint8), "w")
    if dtype == TensorProto.INT4:
        weights = TensorProto(name="w", data_type=dtype, dims=dims, raw_data=b"\x11" * ((count + 1) // 2))
    tensors = [weights, numpy_helper.from_array(np.asarray(scale, np.float32), "s")]
    if zero is not None:
        tensors.append(numpy_helper.from_array(np.asarray(zero), "z"))
    inputs = ["w", "s"] if zero is None else ["w", "s", "z"]
    nodes = [
        helper.make_node("DequantizeLinear", inputs, ["d"], name="dq", axis=1),
        helper.make_node("Add", ["x", "d"], ["y"], name="add"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)],
        tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (with_integers(0.0, np.uint8(0)), "the scale is zero"),
        (with_integers(np.nan, np.uint8(0)), "the scale is NaN"),
        (with_integers([1.0, 0.0, 1.0], np.zeros(3, np.uint8)), "the scale of channel 1 is zero"),
        (with_integers([1.0, 2.0], np.zeros(2, np.uint8)), "input 1 is f32[2] for axis 1 of u8[2, 3]"),
        (with_integers([], None), "input 1 is f32[0] for axis 1 of u8[2, 3]"),
        (with_integers(1.0, np.int32(300)), "DequantizeLinear(u8[2, 3], f32[], i32[]): element types must be the same"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_commands_refuse_models_with_wrong_parameters(tmp_path: Path, model: onnx.ModelProto, said: str) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    data = npz(tmp_path, x=np.zeros((8, 2, 3), np.float32))
    out = tmp_path / "small.onnx"
    made = call("quantize", tmp_path / "model.onnx", "--data", data, "--max-drop", "1%", "-o", out)
    assert made.exit_code == 1 and said in made.output and "'dq'" in made.output, made.output
    onnx.save(model, out)
    checked = call("verify", out, "--data", data)
    assert checked.exit_code == 1 and "has no certificate" in checked.output


@pytest.mark.parametrize("length", [4, 6], ids=["full", "one byte more"])
def test_an_odd_number_of_integers_of_4_bits(tmp_path: Path, length: int) -> None:
    """Seven take four bytes, the last of which is half empty; other lengths are refused."""
    model = with_integers(0.5, None, 7, TensorProto.INT4)
    model.graph.initializer[0].raw_data = b"\x11" * length
    onnx.save(model, tmp_path / "model.onnx")
    data = npz(tmp_path, x=np.random.default_rng(0).standard_normal((40, 1, 7)).astype(np.float32))
    out = tmp_path / "small.onnx"
    made = call("quantize", tmp_path / "model.onnx", "--data", data, "--max-drop", "1%", "-o", out, "--threads", 1)
    if length == 4:
        assert made.exit_code == 0, made.output
        (found,) = tilewright.compile(out, threads=1, cache=False)(np.zeros((1, 7), np.float32))
        assert (found == 0.5).all()
    else:
        assert made.exit_code == 1 and "i4[1, 7] takes 4 bytes, the file has 6" in made.output


def test_verify_refuses_a_certified_model_whose_scales_were_broken(saved: Path) -> None:
    """The parameters are looked at before anything is run."""
    model = with_integers(1.0, np.uint8(0))
    data = npz(saved, x=np.random.default_rng(1).standard_normal((40, 2, 3)).astype(np.float32))
    onnx.save(model, saved / "wide.onnx")
    out = saved / "small.onnx"
    assert call("quantize", saved / "wide.onnx", "--data", data, "--max-drop", "1%", "-o", out).exit_code == 0
    assert call("verify", out, "--data", data).exit_code == 0
    broken = onnx.load(out)
    scale = next(t for t in broken.graph.initializer if t.name == "s")
    scale.CopyFrom(numpy_helper.from_array(np.float32(np.nan), "s"))
    onnx.save(broken, out)
    told = call("verify", out, "--data", data)
    assert told.exit_code == 1 and "the scale is NaN" in told.output
