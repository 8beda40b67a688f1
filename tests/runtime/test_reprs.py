"""Records that people meet in a notebook or a debugger fit one line there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.quantization.certificate import LayerRecord

LAYERS = 30


@pytest.fixture(scope="module")
def source() -> bytes:
    weights = np.random.default_rng(1).standard_normal((16, 16)).astype(np.float32)
    nodes = [helper.make_node("MatMul", [f"x{k}", "w"], [f"x{k + 1}"], name=f"layer{k}") for k in range(LAYERS)]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


@pytest.fixture(scope="module")
def model(source: bytes) -> tilewright.Model:
    return tilewright.compile(source, profile=True)


def certificate(**changed: Any) -> tilewright.Certificate:
    layer = LayerRecord("layer0", "MatMul", "layer0", "int8", "absmax", "faster", 0.5, {"int8": 1e-4}, {"int8": 0.001})
    fields = {
        "metric": "top1", "before": 0.91, "after": 0.905, "drop": 0.005, "interval": (0.001, 0.009), "bound": 0.008,
        "max_drop": 0.01, "confidence": 0.95, "basis": "labels", "items": 500, "changed": 0.01, "outcome": "ok",
        "layers": (layer,) * 40, "seconds_before": 0.01, "seconds_after": 0.005, "bytes_before": 4000,
        "bytes_after": 1000, "calibration": {}, "model": "net.onnx", "model_digest": "", "weights_digest": "",
        "data": "data.npz", "data_digest": "", "options": {},
    }  # fmt: skip
    return tilewright.Certificate(**{**fields, **changed})


def test_records_fit_a_line(source: bytes, model: tilewright.Model) -> None:
    x = np.ones((2, 16), np.float32)
    model.count_sizes()
    model(x)
    check = tilewright.check(source)
    difference = tilewright.diff(source, source, random=1)
    for thing in (
        model, model.artifact, model.report(), model.inputs, check, check.costs, difference, difference.layers[0],
        model.with_outputs(np), model.profile({"x0": x}, 2)[0], model.sizes_seen(), certificate(),
        certificate().layers[0], tilewright.Quantized(None, certificate()),  # type: ignore[arg-type]
        tilewright.Session(Path("cache")),
    ):  # fmt: skip
        text = repr(thing)
        assert len(text) <= 240 and "\n" not in text, text


def test_what_they_say(source: bytes, model: tilewright.Model) -> None:
    assert repr(model.inputs) == "(TensorInfo(x0: float32[n, 16]),)"
    assert repr(model.artifact).startswith(f"<tilewright artefact (x0: float32[n, 16]) -> (x{LAYERS}: float32[n, 16])")
    assert ", 30 calls" in repr(model.report())
    check = tilewright.check(source)
    assert repr(check).startswith("<check: runs, 30 nodes, 0 notes, ")
    assert check.costs is not None and "*n" in repr(check.costs.flops) and repr(check.costs.flops).endswith(">")
    assert repr(tilewright.diff(source, source, random=1)).endswith("over 1 samples: no layer adds an error>")
    assert repr(certificate()) == (
        "<certificate: top1 0.91 -> 0.905, a drop of 0.005 with a bound of 0.008, 0.01 allowed; "
        "40 of 40 layers changed>"
    )
    assert "top1 'high' -> 0.905" in repr(certificate(before="high")), "of a damaged file"


def test_what_does_not_run() -> None:
    graph = helper.make_graph(
        [helper.make_node("Strange", ["x"], ["y"], name="s", domain="nowhere")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("nowhere", 1)], ir_version=9)
    text = repr(tilewright.check(made.SerializeToString()))
    assert text.startswith("<check: does not run, 1 problems (") and "Strange" in text
