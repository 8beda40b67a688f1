"""Diagonals by Einsum, of known and unknown sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright

CASES = {"ii->i": (7, 7), "ii->": (6, 6), "bii->ib": (3, 5, 5), "iji->j": (4, 5, 4), "iii->i": (4, 4, 4)}


def model_of(equation: str, dims: tuple[Any, ...]) -> Any:
    graph = helper.make_graph(
        [helper.make_node("Einsum", ["x"], ["y"], equation=equation)],
        "diagonal",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("equation", CASES)
def test_diagonals_of_repeated_labels(equation: str, known: bool) -> None:
    shape = CASES[equation]
    dims = shape if known else tuple(equation[: len(shape)])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    model = tilewright.compile(model_of(equation, dims), threads=1, cache=False)
    (y,) = model(x)
    np.testing.assert_allclose(y, np.einsum(equation, x.astype(np.float64)), rtol=1e-5, atol=1e-6)
