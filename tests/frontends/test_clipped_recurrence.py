"""The attribute clip of recurrent layers: what activations are applied to is limited, as ONNX Runtime has it."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import tilewright
from tests.frontends.helpers import info, model_of

RNG = np.random.default_rng(17)


@pytest.mark.sweep
@pytest.mark.parametrize("clip", [0.1, 0.7, 3.0])
@pytest.mark.parametrize(
    ("op", "gates", "attributes", "peepholes"),
    [
        ("RNN", 1, {}, False),
        ("GRU", 3, {"linear_before_reset": 0}, False),
        ("GRU", 3, {"linear_before_reset": 1}, False),
        ("LSTM", 4, {}, False),
        ("LSTM", 4, {"input_forget": 1}, True),
    ],
)
def test_sums_are_limited(op: str, gates: int, attributes: dict[str, int], peepholes: bool, clip: float) -> None:
    def normal(*shape: int) -> np.ndarray:
        return RNG.standard_normal(shape).astype(np.float32)

    x = 3 * normal(4, 2, 5)
    weights = {"w": normal(2, 3 * gates, 5), "r": normal(2, 3 * gates, 3), "b": normal(2, 6 * gates)}
    names = ["x", "w", "r", "b"]
    if peepholes:
        weights["p"], names = normal(2, 9), [*names, "", "", "", "p"]
    node = helper.make_node(op, names, ["y"], hidden_size=3, direction="bidirectional", clip=clip, **attributes)
    model = model_of([node], [info("x", [4, 2, 5])], [info("y", [4, 2, 2, 3])], weights, opset=14)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(tilewright.compile(model, cache=False, threads=1)(x)[0], wanted, rtol=1e-5, atol=1e-6)
    node.attribute.remove(next(a for a in node.attribute if a.name == "clip"))
    free = model_of([node], [info("x", [4, 2, 5])], [info("y", [4, 2, 2, 3])], weights, opset=14)
    assert not np.allclose(tilewright.compile(free, cache=False, threads=1)(x)[0], wanted, rtol=1e-5, atol=1e-6)
