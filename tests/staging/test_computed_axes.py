"""Axes that only a call knows: the same results as with axes that are known when compiling."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import compiled, model_of

AXES = ("axes", T.INT64, [2])


def called(op: str, shape: list, axes: tuple, outputs: int = 1, opset: int = 20, **attrs: int) -> tilewright.Model:
    node = h.make_node(op, ["x", *[a[0] for a in axes]], [f"y{k}" for k in range(outputs)], **attrs)
    made = model_of([node], [("x", T.FLOAT, shape), *axes], [f"y{k}" for k in range(outputs)], {})
    made.opset_import[0].version = opset
    return tilewright.compile(made, cache=False, verify=True, threads=1)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(keepdims: int) -> None:
    model = called("ReduceSum", ["a", 3, "b", 4], (AXES,), keepdims=keepdims)
    x = np.random.default_rng(0).random((2, 3, 5, 4), np.float32)
    for axes in ([0, 1], [-1, 1], [2, 0], [3, 2]):
        (found,) = model(x, np.array(axes))
        np.testing.assert_allclose(found, x.sum(axis=tuple(axes), keepdims=bool(keepdims)), rtol=1e-5)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("axes", [[0, 4], [-5, 1], [1, 1], [1, -3]])
def test_axes_that_are_none_are_errors_of_the_call(axes: list[int]) -> None:
    model = called("ReduceSum", ["a", 3, "b", 4], (AXES,))
    with pytest.raises(tilewright.InputError, match=r"an axis must be one of -4 to 3|name an axis twice"):
        model(np.ones((2, 3, 5, 4), np.float32), np.array(axes))
    assert model(np.ones((2, 3, 5, 4), np.float32), np.array([0, 1]))[0].sum() == 120


def test_squeeze_and_unsqueeze() -> None:
    squeeze, unsqueeze = called("Squeeze", ["a", "b", "c", "d"], (AXES,)), called("Unsqueeze", ["a", "b"], (AXES,))
    x = np.random.default_rng(0).random((1, 3, 1, 4), np.float32)
    assert squeeze(x, np.array([0, -2]))[0].shape == (3, 4)
    assert squeeze(x[:, :1], np.array([1, 2]))[0].shape == (1, 4)
    with pytest.raises(tilewright.InputError, match="more than one element"):
        squeeze(x, np.array([0, 1]))
    for axes in ([0, 1], [1, -1], [3, 0], [-2, -4]):
        np.testing.assert_array_equal(unsqueeze(x[0, :, 0], np.array(axes))[0], np.expand_dims(x[0, :, 0], axes))


@pytest.mark.parametrize("reverse", [0, 1])
def test_running_totals(reverse: int) -> None:
    model = called("CumSum", ["a", 3, "b"], (("axis", T.INT64, []),), reverse=reverse)
    x = np.random.default_rng(0).random((2, 3, 5), np.float32)
    for axis in (0, 1, 2, -1, -3):
        wanted = np.flip(np.cumsum(np.flip(x, axis), axis), axis) if reverse else np.cumsum(x, axis)
        np.testing.assert_allclose(model(x, np.array(axis))[0], wanted, rtol=1e-5)


def test_fourier_transforms() -> None:
    node = h.make_node("DFT", ["x", "", "axis"], ["y"], onesided=1)
    made = model_of([node], [("x", T.FLOAT, ["a", 6, "b", 1]), ("axis", T.INT64, [])], ["y"], {})
    made.opset_import[0].version = 20
    model = tilewright.compile(made, cache=False, verify=True, threads=1)
    x = np.random.default_rng(0).random((4, 6, 5, 1), np.float32)
    for axis in (0, 1, 2, -2):
        wanted = np.fft.rfft(x[..., 0].astype(np.float64), axis=axis if axis >= 0 else axis + 1)
        found = model(x, np.array(axis))[0]
        np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(tilewright.InputError, match="axis of the parts"):
        model(x, np.array(3))


def test_slices_with_everything_computed() -> None:
    names = ("starts", "ends", "axes", "steps")
    model = called("Slice", ["a", "b", "c"], tuple((n, T.INT64, [2]) for n in names))
    x = np.random.default_rng(0).random((6, 7, 8), np.float32)
    for starts, ends, axes, steps, wanted in [
        ([0, 1], [10**12, -1], [0, 2], [2, 3], x[::2, :, 1:-1:3]),
        ([-1, 5], [-(10**12), 2], [1, 0], [-2, -1], x[5:2:-1, ::-2]),
        ([3, 2], [3, 9], [2, 1], [1, 1], x[:, 2:9, 3:3]),
    ]:
        given = [np.array(v) for v in (starts, ends, axes, steps)]
        np.testing.assert_array_equal(model(x, *given)[0], wanted)
    with pytest.raises(tilewright.InputError, match="a step of 0"):
        model(x, np.array([0, 0]), np.array([1, 1]), np.array([0, 1]), np.array([1, 0]))


def test_pads_with_axes_and_a_value_that_are_computed() -> None:
    inputs = [("x", T.FLOAT, ["a", "b"]), ("pads", T.INT64, [2]), ("v", T.FLOAT, []), ("axes", T.INT64, [1])]
    node = h.make_node("Pad", ["x", "pads", "v", "axes"], ["y"])
    made = model_of([node], inputs, ["y"], {})
    made.opset_import[0].version = 18
    model = tilewright.compile(made, cache=False, verify=True, threads=1)
    x = np.random.default_rng(0).random((3, 4), np.float32)
    for axis in (0, 1, -1):
        sides = [(0, 0), (0, 0)]
        sides[axis] = (2, 1)
        wanted = np.pad(x, sides, constant_values=np.float32(7))
        np.testing.assert_array_equal(model(x, np.array([2, 1]), np.float32(7), np.array([axis]))[0], wanted)


def test_memory_does_not_grow_with_shapes() -> None:
    nodes = [h.make_node("NonZero", ["x"], ["at"]), h.make_node("Exp", ["x"], ["y"])]
    model = compiled(nodes, [("x", T.FLOAT, ["n", "m"])], ["at", "y"])
    rng = np.random.default_rng(0)

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    for k in range(1200):
        if k == 400:
            before = resident()
        model(rng.random((int(rng.integers(0, 60)), int(rng.integers(1, 60))), np.float32))
    assert resident() - before < 8 << 20
