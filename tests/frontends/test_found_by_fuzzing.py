"""Models that random ones were reduced to (`python -m tests.fuzz onnx`)."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of
from tests.random_models.isolated import evaluated
from tilewright.ir import sym as s
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.symbolic.prove import prove
from tilewright.runtime.errors import ExecutionError

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


@pytest.mark.parametrize("positions", [[[0, 0], [0, 3]], [[8, 7], [7, 7]]])
def test_an_element_that_several_windows_found_is_put_once(positions: list[list[int]]) -> None:
    node = helper.make_node("MaxUnpool", ["x", "at"], ["y"], kernel_shape=[2, 2], strides=[1, 1])
    model = model_of([node], [info("x", [1, 1, 2, 2]), info("at", [1, 1, 2, 2], I64)], ["y"], opset=22)
    given = {"x": np.arange(1, 5, dtype=np.float32).reshape(1, 1, 2, 2), "at": np.array(positions).reshape(1, 1, 2, 2)}
    (wanted,) = evaluated(model.SerializeToString(), given)
    (found,) = tilewright.compile(model, cache=False)(*given.values())
    assert np.array_equal(found, wanted)


def test_a_position_outside_of_what_was_pooled() -> None:
    node = helper.make_node("MaxUnpool", ["x", "at"], ["y"], kernel_shape=[2, 2], strides=[2, 2], name="up")
    model = model_of([node], [info("x", [1, 1, 1, 1]), info("at", [1, 1, 1, 1], I64)], ["y"], opset=22)
    compiled = tilewright.compile(model, cache=False)
    for at in (4, -5, 2**40):
        with pytest.raises(ExecutionError, match="out of range"):
            compiled(np.ones((1, 1, 1, 1), np.float32), np.full((1, 1, 1, 1), at))


@pytest.mark.parametrize("op", ["GatherND", "ScatterND"])
def test_index_vectors_of_an_unknown_length(op: str) -> None:
    names = ["x", "at", "with"][: 2 + (op == "ScatterND")]
    shapes = {"x": [3, 4], "at": [2, "depth"], "with": [2]}
    given = [info(n, shapes[n], I64 if n == "at" else F32) for n in names]
    with pytest.raises(UnsupportedError, match="depth, must be known") as caught:
        tilewright.compile(model_of([helper.make_node(op, names, ["y"])], given, ["y"]), cache=False)
    assert "shapes=" in str(caught.value)


def test_a_divisor_that_may_be_zero_is_no_hindrance_to_proofs() -> None:
    n, m = s.var("n"), s.var("m")
    quotient = s.floordiv(m, n)
    assert prove(s.ge(quotient, 1), {n: (s.sym(0), s.sym(3))}) is None
    assert prove(s.ge(8 * quotient, s.var("i")), {n: (s.sym(1), s.sym(3)), s.var("i"): (s.sym(0), quotient)})
