"""Random operators: distributions, seeds, and what differs from call to call."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import tilewright
from tests.frontends.helpers import info, model_of, node_model
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError


def compiled(model: onnx.ModelProto) -> tilewright.Model:
    return tilewright.compile(model.SerializeToString(), cache=False, threads=2)


def one(op: str, *arrays: np.ndarray, **attrs: Any) -> tilewright.Model:
    return compiled(node_model(op, arrays, attrs, opset=20))


def test_without_a_seed_each_call_and_each_node_draws_anew() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], [y]) for y in "yz"]
    model = compiled(model_of(nodes, [info("x", ["n", 5])], ["y", "z"]))
    x = np.zeros((20, 5), np.float32)
    drawn = [a for _ in range(3) for a in model(x)]
    assert all(not np.array_equal(a, b) for k, a in enumerate(drawn) for b in drawn[:k])


def test_a_seed_gives_the_same_numbers_in_each_call_and_others_for_another() -> None:
    models = [one("RandomUniform", shape=[4, 50], seed=seed) for seed in (1.0, 1.0, 2.5)]
    first, same, other = ([m()[0] for _ in range(2)] for m in models)
    assert np.array_equal(first[0], first[1]) and np.array_equal(first[0], same[0])
    assert not np.array_equal(first[0], other[0])


@pytest.mark.parametrize("code", [1, 10, 11, 16])
def test_bounds_mean_and_spread(code: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(code)
    (u,) = one("RandomUniform", shape=[20000], low=-3.0, high=5.0, dtype=code)()
    (z,) = one("RandomNormal", shape=[20000], mean=2.0, scale=0.5, dtype=code)()
    assert u.dtype == z.dtype == dtype
    u, z = u.astype(np.float64), z.astype(np.float64)
    assert u.min() >= -3 and u.max() <= 5
    assert abs(u.mean() - 1) < 0.09 and abs(u.std() - 8 / 12**0.5) < 0.06
    assert abs(z.mean() - 2) < 0.03 and abs(z.std() - 0.5) < 0.02


def test_ones_come_as_often_as_probabilities_say() -> None:
    p = np.repeat(np.float32([0, 0.2, 0.7, 1]), 10000)
    (y,) = one("Bernoulli", p, dtype=6)(p)
    assert y.dtype == np.int32
    shares = y.reshape(4, -1).mean(1)
    np.testing.assert_allclose(shares, [0, 0.2, 0.7, 1], atol=0.03)
    assert shares[0] == 0 and shares[3] == 1


def test_classes_come_as_often_as_probabilities_say() -> None:
    p = np.array([[0.1, 0.0, 0.6, 0.3], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        x = (np.log(p) + 3).astype(np.float32)
    (y,) = one("Multinomial", x, sample_size=20000, dtype=7)(x)
    assert y.shape == (2, 20000) and y.dtype == np.int64
    shares = [np.bincount(row, minlength=4) / 20000 for row in y]
    np.testing.assert_allclose(shares, p, atol=0.02)
    assert shares[0][1] == 0


@pytest.mark.parametrize(
    ("said", "model"),
    [
        (
            "gives floats, not i32",
            node_model("RandomUniformLike", [np.ones(3, np.float32)], {"dtype": 6}, opset=20),
        ),
        (
            "from nan and 1.0 is not possible",
            node_model("RandomNormal", [], {"shape": [2], "mean": float("nan")}, opset=20),
        ),
        (
            "0 samples of f32[2, 3]",
            node_model("Multinomial", [np.ones((2, 3), np.float32)], {"sample_size": 0}, opset=20),
        ),
    ],
)
def test_the_reason_is_said(said: str, model: onnx.ModelProto) -> None:
    with pytest.raises(ModelError) as caught:
        load_onnx(model)
    assert said in str(caught.value)
