"""Sizes that depend on data: read when they have been computed, by a model that was compiled once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import compiled, model_of


@pytest.fixture(scope="module")
def expanding() -> tilewright.Model:
    """exp of x, in as many rows as the mask holds true elements; and their number."""
    nodes = [
        h.make_node("Cast", ["mask"], ["ones"], to=T.INT64),
        h.make_node("ReduceSum", ["ones"], ["count"], keepdims=1),
        h.make_node("Concat", ["count", "two"], ["shape"], axis=0),
        h.make_node("Expand", ["x", "shape"], ["rows"]),
        h.make_node("Exp", ["rows"], ["y"]),
    ]
    inputs = [("x", T.FLOAT, [1, 2]), ("mask", T.BOOL, ["k"])]
    made = model_of(nodes, inputs, ["y", "count"], {"two": np.array([2])})
    return tilewright.compile(made, cache=False, verify=True, threads=1)


X = np.array([[1.0, 2.0]], np.float32)


def check(model: tilewright.Model, count: int, size: int) -> None:
    mask = np.arange(size) < count
    y, found = model(X, mask)
    assert found.tolist() == [count]
    np.testing.assert_allclose(y, np.exp(np.repeat(X, count, axis=0)), rtol=1e-6)


def test_one_compiled_model_serves_all_sizes(expanding: tilewright.Model) -> None:
    assert len(expanding.artifact.parts) == 2
    for count, size in [(3, 5), (0, 4), (7, 7), (1, 300), (0, 0), (300, 300), (2, 5)]:
        check(expanding, count, size)


def test_a_staged_model_is_saved_and_loaded_and_pickled(expanding: tilewright.Model, tmp_path: object) -> None:
    path = tmp_path / "model.tw"  # type: ignore[operator]
    expanding.save(path)
    for other in (
        tilewright.load(path),
        tilewright.load(path, mmap=True),
        tilewright.load(path.read_bytes()),
        pickle.loads(pickle.dumps(expanding)),
    ):
        check(other, 4, 6)
        assert other.artifact.program == expanding.artifact.program


def test_a_closed_one_says_so(expanding: tilewright.Model) -> None:
    other = tilewright.load(expanding.artifact.to_bytes())
    other.trim()
    check(other, 2, 3)
    other.close()
    with pytest.raises(tilewright.TilewrightError, match="closed"):
        other(X, np.ones(3, bool))


def test_outputs_go_to_given_arrays(expanding: tilewright.Model) -> None:
    out = (np.zeros((2, 2), np.float32), np.zeros(1, np.int64))
    found = expanding(X, np.array([True, False, True]), out=out)
    assert found[0] is out[0] and found[1] is out[1]
    np.testing.assert_allclose(out[0], np.exp(np.repeat(X, 2, axis=0)), rtol=1e-6)


def test_the_report_tells_of_all_parts(expanding: tilewright.Model) -> None:
    report = expanding.report()
    assert report.parts == 2 and report.kernels == len(report.calls) >= 2


def test_an_impossible_size_is_an_error_of_the_call() -> None:
    nodes = [
        h.make_node("ReduceSum", ["n"], ["size"], keepdims=1),
        h.make_node("ConstantOfShape", ["size"], ["zeros"]),
        h.make_node("Exp", ["zeros"], ["y"]),
    ]
    made = model_of(nodes, [("n", T.INT64, ["k"])], ["y"], {})
    model = tilewright.compile(made, cache=False, verify=True, threads=1)
    assert model(np.array([2, 3]))[0].shape == (5,)
    for bad in (-5, 2**62):
        with pytest.raises(tilewright.TilewrightError):
            model(np.array([bad, 0]))
    assert model(np.array([2, 3, 4]))[0].tolist() == [1.0] * 9


def test_expand_to_a_shape_that_is_an_input() -> None:
    """Dims that turn out to be 1 are repeated, others stay, and what does not fit is refused."""
    inputs = [("x", T.FLOAT, ["n", "m"]), ("shape", T.INT64, [2])]
    model = compiled([h.make_node("Expand", ["x", "shape"], ["y"])], inputs, ["y"])
    for shape, target in (((3, 1), (1, 4)), ((3, 4), (3, 1)), ((1, 1), (5, 6)), ((0, 2), (1, 2)), ((1, 3), (0, 3))):
        x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        wanted = np.broadcast_to(x, np.broadcast_shapes(shape, target))
        np.testing.assert_array_equal(model(x, np.array(target))[0], wanted, strict=True)
    wanted = r"the shapes \[n, m\] and \[val_shape_0, val_shape_1\] are broadcast: it must be that m == 1"
    with pytest.raises(tilewright.InputError, match=wanted):
        model(np.ones((2, 3), np.float32), np.array([2, 2]))


def test_pools_in_parts_have_kernels_of_their_own() -> None:
    nodes = [
        h.make_node("MaxPool", ["x"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]),
        h.make_node("NonZero", ["pooled"], ["at"]),
        h.make_node("Cast", ["at"], ["y"], to=T.FLOAT),
    ]
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 2] = 3
    (y,) = compiled(nodes, [("x", T.FLOAT, [1, 1, 4, 4])], ["y"])(x)
    assert y.tolist() == [[0], [0], [0], [1]]
