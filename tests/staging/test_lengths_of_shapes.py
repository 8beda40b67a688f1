"""Shapes that are inputs, of a length that the model does not say: the rank is the one that the result is declared
with."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of
from tests.staging.models import checked
from tilewright.ir.diag import UnsupportedError
from tilewright.runtime.errors import TilewrightError

ort = pytest.importorskip("onnxruntime")

TARGETS: tuple[list[int], ...] = (
    [], [3], [1], [6], [0], [-1], [2, 3], [1, 1], [2, 1], [-1, 2], [2, 0], [4, 2, 3], [4, 1, 1], [0, 2, 3], [2, 2, 2],
    [-1, 3, 1], [0, 0, 1], [1, 1, -1], [3, 2, 1], [5, 1, 1, 2, 3],
)  # fmt: skip
SHAPES = ((2, 3), (1, 3), (2, 1), (0, 3))


def model(op: str, rank: int | None, *, inside: bool = False) -> onnx.ModelProto:
    """The operator, whose result is declared with a rank, as the model's output or `inside` of it."""
    nodes = [helper.make_node(op, ["x", "s"], ["t" if inside else "y"])]
    declared = info("t" if inside else "y", None if rank is None else [f"d{k}" for k in range(rank)])
    outputs = [declared]
    if inside:
        nodes.append(helper.make_node("Neg", ["t"], ["y"]))
        outputs = [info("y", None)]
    made = model_of(nodes, [info("x", ["a", "b"]), info("s", ["k"], TensorProto.INT64)], outputs, opset=17)
    made.graph.value_info.extend([declared] if inside else [])
    return made


@pytest.mark.parametrize(
    ("op", "rank", "inside"),
    [("Expand", 2, False), ("Expand", 3, True), ("Reshape", 3, False), ("Reshape", 1, True)],
)
def test_as_onnx_runtime(op: str, rank: int, inside: bool) -> None:
    made = model(op, rank, inside=inside)
    ours, options = checked(made), ort.SessionOptions()
    options.log_severity_level = 4
    theirs = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    answered = 0
    for shape in SHAPES:
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        for target in TARGETS:
            s = np.array(target, np.int64)
            try:
                (wanted,) = theirs.run(None, {"x": x, "s": s})
            except Exception:
                wanted = None
            if wanted is None or wanted.ndim != rank:
                with pytest.raises(TilewrightError):
                    ours(x, s)
                continue
            (found,) = ours(x, s)
            np.testing.assert_array_equal(found, wanted)
            assert found.shape == wanted.shape
            answered += 1
    assert answered >= 4


def test_another_length_is_told() -> None:
    ours = checked(model("Expand", 3))
    with pytest.raises(TilewrightError, match="a shape of k dims gives what the model declares with 3 axes"):
        ours(np.zeros((2, 3), np.float32), np.array([2, 3], np.int64))


@pytest.mark.parametrize("op", ["Expand", "Reshape"])
def test_without_a_declared_rank_the_length_is_asked_for(op: str) -> None:
    made = model(op, None)
    with pytest.raises(UnsupportedError, match=r"shapes={'s': \[<k>\]}"):
        tilewright.compile(made, cache=False)
    run = tilewright.compile(made, cache=False, shapes={"s": [3]})
    (found,) = run(np.ones((2, 3), np.float32), np.array([1, 2, 3], np.int64))
    assert found.shape == (1, 2, 3)
