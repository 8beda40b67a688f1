"""What `numerics` promises of a whole model: denormal numbers, and the modes of the calling thread."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright

DENORMAL = np.float32(2.0**-130)
SIZE = 1 << 18  # enough work for two threads


def _scale() -> onnx.ModelProto:
    """y = 2 x."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE]) for name in "xy")
    two = helper.make_tensor("two", TensorProto.FLOAT, [], [2.0])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "two"], ["y"])], "scale", [x], [y], [two])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("numerics", "expected"), [("default", 0.0), ("strict", 2.0**-129)])
def test_denormals_count_as_zero_unless_strict(numerics: str, expected: float, threads: int) -> None:
    model = tilewright.compile(_scale(), numerics=numerics, threads=threads, cache=False)
    x = np.full(SIZE, DENORMAL)
    x[:: SIZE // 8] = 1.0
    (y,) = model(x)
    assert set(np.unique(y)) == {np.float32(expected), np.float32(2.0)}


def test_the_caller_keeps_its_modes() -> None:
    model = tilewright.compile(_scale(), cache=False)
    model(np.ones(SIZE, np.float32))
    assert np.full(8, DENORMAL).sum() == np.float32(2.0**-127)


def test_zeros_stay_zeros_when_normalised() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    node = helper.make_node("LpNormalization", ["x"], ["y"], axis=1, p=2)
    graph = helper.make_graph([node], "norm", [x], [y])
    model = tilewright.compile(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), cache=False
    )
    (found,) = model(np.array([[0, 0, 0], [3, 0, 4]], np.float32))
    np.testing.assert_allclose(found, [[0, 0, 0], [0.6, 0, 0.8]], rtol=1e-6)
