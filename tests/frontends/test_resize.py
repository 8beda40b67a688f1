"""Resize where engines decide what is meant: which length a scale gives, how integers and narrow floats are added."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright
from tests.frontends.helpers import info
from tests.random_models.isolated import evaluated
from tilewright.stages import programs


def resized(
    x: np.ndarray, *, scales: list[float] | None = None, sizes: list[int] | None = None, producer: str = "",
    is_symbolic: bool = False, opset: int = 19, **attributes: object,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """What is found, and what ONNX Runtime gives."""
    constants = {"roi": np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3], np.float32)}
    constants["scales"] = np.array([1, 1, *scales] if scales is not None else [], np.float32)
    operands = ["x", "roi", "scales"]
    if sizes is not None:
        constants["sizes"] = np.array([*x.shape[:2], *sizes])
        operands.append("sizes")
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    dims = [*x.shape[:2], "h", "w"] if is_symbolic else list(x.shape)
    graph = helper.make_graph(
        [helper.make_node("Resize", operands, ["y"], **attributes)], "resize",
        [info("x", dims, kind)], [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9, producer_name=producer)
    (wanted,) = evaluated(model.SerializeToString(), {"x": x})
    return tilewright.compile(model, threads=1, cache=False)(x)[0], wanted


def image(name: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    if name == "float16":
        return rng.standard_normal((1, 2, 23, 31)).astype(np.float16)
    ends = np.iinfo(name if name != "int32" else "int16")
    return rng.integers(ends.min, ends.max + 1, (1, 2, 23, 31)).astype(name)


COORDINATES = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "asymmetric", "tf_crop_and_resize")


@pytest.mark.sweep(3)
@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize(("name", "mode"), list(itertools.product(("uint8", "int8", "int32"), COORDINATES)))
def test_linear_integers_are_those_of_the_engine(name: str, mode: str, is_symbolic: bool) -> None:
    more = {"extrapolation_value": 7.0} if mode.startswith("tf") else {}
    for scales in ([1.7, 2.3], [0.6, 1.5], [0.3, 1.0 if mode[0] != "t" else 1.2]):
        found, wanted = resized(
            image(name), scales=scales, is_symbolic=is_symbolic, mode="linear",
            coordinate_transformation_mode=mode, **more,
        )  # fmt: skip
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("value", [300.0, -300.0, float("nan")])
def test_extrapolation_beyond_integers_is_their_end(value: float) -> None:
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    found, _ = resized(image("uint8"), scales=[1.5, 1.5], extrapolation_value=value, **attributes)
    plain, _ = resized(image("uint8"), scales=[1.5, 1.5], extrapolation_value=7.0, **attributes)
    outside = 255 if value == 300 else 0
    assert np.array_equal(found, np.where(plain == found, plain, outside)) and (found != plain).any()


def test_integers_rounded_after_each_axis_are_rounded_away_from_zero() -> None:
    x = np.array([[-5, -2, 1, 4, 7, 10, -3, -8]] * 4, np.int32).reshape(1, 1, 4, 8)
    found, wanted = resized(x, scales=[0.5, 0.5], mode="linear", antialias=1)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_narrow_floats_are_rounded_once(mode: str) -> None:
    x = image("float16")
    found, wanted = resized(x, scales=[1.7, 2.3], mode=mode)
    assert (found != wanted).mean() < 0.01


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_aligned_corners_are_those_of_the_size_where_a_size_is_given(is_symbolic: bool) -> None:
    """float32(16 / 43) * 43 is less than 16."""
    x = np.arange(43 * 62, dtype=np.float32).reshape(1, 1, 43, 62)
    found, wanted = resized(
        x, sizes=[16, 24], is_symbolic=is_symbolic, mode="nearest", coordinate_transformation_mode="align_corners"
    )
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("is_symbolic", [False, True])
def test_aligned_corners_of_a_scale_are_as_the_exporter_means_them(is_symbolic: bool) -> None:
    """2 elements of 2.4: the standard's tests have the second at 1 / 1.4 of the way, PyTorch at the end."""
    x = np.array([[[[0.0, 1.0, 2.0, 3.0]]]], np.float32)
    corners = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    ours, wanted = resized(x, scales=[1.0, 0.6], producer="pytorch", is_symbolic=is_symbolic, **corners)
    np.testing.assert_allclose(ours, wanted)
    np.testing.assert_allclose(wanted, [[[[0, 3]]]])
    ours, _ = resized(x, scales=[1.0, 0.6], is_symbolic=is_symbolic, **corners)
    np.testing.assert_allclose(ours, [[[[0, 3 / 1.4]]]], rtol=1e-6)


def test_an_axis_that_stays_is_copied() -> None:
    x = np.random.default_rng(0).integers(0, 9999, (1, 1, 8, 22)).astype(np.int32)
    attributes = {"mode": "linear", "coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    found, wanted = resized(x, sizes=[5, 22], is_symbolic=True, opset=11, **attributes)
    np.testing.assert_array_equal(found, wanted)


def kernels(sizes: list[int]) -> list[str]:
    """Kernels for a nearest Resize of [2, 3, 24, 40], with what they read."""
    constants = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32), "sizes": np.array([2, 3, *sizes])}
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", *constants], ["y"], mode="nearest", nearest_mode="floor",
                          coordinate_transformation_mode="asymmetric")], "resize",
        [info("x", [2, 3, 24, 40])], [info("y", [2, 3, *sizes])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    options = tilewright.Options(threads=1, target="zen4")
    return [*programs(model.SerializeToString(), "loops", options=options).values()]


def test_places_that_are_equally_far_apart_are_a_slice() -> None:
    (kernel,) = kernels([12, 20])
    assert "_slice" in kernel and "bind" not in kernel


def test_both_axes_of_an_image_that_shrinks_are_read_at_once() -> None:
    (kernel,) = kernels([17, 31])
    assert "f32[6, 24, 40]" in kernel
    assert "check" not in kernel  # known places need no look
    assert "0..16 vector" in kernel  # positions are as wide as elements


def test_an_axis_that_grows_much_comes_last() -> None:
    """Elements of few lines are gathered, and these lines are copied."""
    columns, rows = kernels([230, 31])
    assert "y: &f32[1, 144, 31]" in columns or "y: &f32[144, 31]" in columns
    assert "bind" in rows and "230, 31]" in rows
