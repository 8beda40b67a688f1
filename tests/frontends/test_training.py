"""Steps of optimisers against ONNX's evaluator, and dropout while training."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.frontends.helpers import imported, info, model_of, node_model
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError, UnsupportedError

DOMAIN = "ai.onnx.preview.training"
RNG = np.random.default_rng(8)
STEPS: list[tuple[str, int, dict[str, Any]]] = [
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.8, "mode": "standard"}),
    ("Momentum", 1, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.8, "mode": "nesterov"}),
    ("Adagrad", 1, {"norm_coefficient": 0.01, "decay_factor": 0.1, "epsilon": 1e-4}),
    ("Adam", 2, {"norm_coefficient": 0.01, "alpha": 0.9, "beta": 0.8, "norm_coefficient_post": 0.02}),
]


def step_model(op: str, states: int, attrs: dict[str, Any], count: int) -> onnx.ModelProto:
    kinds = ["x", "g", "v", "h"][: 2 + states]
    names = [f"{kind}{k}" for kind in kinds for k in range(count)]
    results = [f"{kind}{k}_new" for kind in kinds if kind != "g" for k in range(count)]
    node = helper.make_node(op, ["r", "t", *names], results, domain=DOMAIN, **attrs)
    inputs = [info("r", []), info("t", [], TensorProto.INT64), *[info(n, [2, 3]) for n in names]]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in results]
    return model_of([node], inputs, outputs, domains=[DOMAIN])


@pytest.mark.parametrize("past", [0, 7])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(("op", "states", "attrs"), STEPS)
def test_steps_of_optimisers(op: str, states: int, attrs: dict[str, Any], count: int, past: int) -> None:
    model = step_model(op, states, attrs, count)
    names = [i.name for i in model.graph.input]
    given = [np.float32(0.1), np.int64(past)]
    given += [np.abs(RNG.standard_normal((2, 3))).astype(np.float32) for _ in names[2:]]  # type: ignore[misc]
    wanted = ReferenceEvaluator(model).run(None, dict(zip(names, given, strict=True)))
    found = imported(model, *map(np.asarray, given))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, rtol=2e-6, atol=2e-7)  # a difference may be small


def test_operands_that_make_no_groups_are_refused() -> None:
    model = step_model("Adam", 1, {}, 1)
    with pytest.raises(ModelError, match="Adam has 3 operands: 4 are needed for each tensor"):
        load_onnx(model)


def test_derivatives_are_refused_with_the_reason() -> None:
    node = helper.make_node("Gradient", ["x"], ["d"], domain=DOMAIN, xs=["x"], y="y")
    with pytest.raises(UnsupportedError, match="Gradient: the operator is not supported: it asks for derivatives"):
        load_onnx(model_of([node], [info("x", [2])], ["d"], domains=[DOMAIN]))


X = np.linspace(1, 2, 10_000, dtype=np.float32)


def test_dropout_while_training() -> None:
    model = node_model("Dropout", [X, np.float32(0.25), np.array(True)], {"seed": 5}, outputs=2)
    run = tilewright.compile(model.SerializeToString(), cache=False, threads=1)
    y, mask = run(X, np.float32(0.25), np.array(True))
    assert 0.73 < mask.mean() < 0.77
    np.testing.assert_array_equal(y == 0, ~mask)
    np.testing.assert_allclose(y[mask], X[mask] / 0.75, rtol=1e-6)
    again, _ = run(X, np.float32(0.25), np.array(True))
    np.testing.assert_array_equal(y, again)
    same, all_kept = run(X, np.float32(0.25), np.array(False))
    np.testing.assert_array_equal(same, X)
    assert all_kept.all()


def test_the_ratio_of_dropout_is_a_half_by_default() -> None:
    y, mask = imported(node_model("Dropout", [X, None, np.array(True)], {}, known=(2,), outputs=2), X)
    assert 0.47 < mask.mean() < 0.53
    np.testing.assert_allclose(y[mask], X[mask] * 2, rtol=1e-6)
