"""The fuzzer of Resize: random modes, scales, sizes, axes and element types, with static and unknown sizes, against
ONNX Runtime."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import tilewright
from tests.fuzz.registry import Tried

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_crop_and_resize")
NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
TYPES = {
    np.float32: TensorProto.FLOAT, np.float16: TensorProto.FLOAT16, np.uint8: TensorProto.UINT8,
    np.int8: TensorProto.INT8, np.int32: TensorProto.INT32,
}  # fmt: skip
WIDTHS = 12
"""Widths that one model with unknown sizes is called with."""


def factor(rng: random.Random) -> float:
    """Those that people and exporters write, and others."""
    return rng.choice((
        rng.randint(1, 40) / 10, rng.randint(1, 12) / 3, rng.randint(1, 60) / rng.randint(1, 60), rng.uniform(0.2, 4),
        float(rng.randint(1, 4)), 1 / rng.randint(1, 5), 1.0,
    ))  # fmt: skip


def attributes(rng: random.Random, opset: int) -> dict[str, Any]:
    found: dict[str, Any] = {"mode": rng.choice(("nearest", "nearest", "linear", "cubic" if opset >= 11 else "linear"))}
    if opset < 11:
        return found
    more = ("half_pixel_symmetric",) if opset >= 19 else ("tf_half_pixel_for_nn",) if opset < 13 else ()
    found["coordinate_transformation_mode"] = rng.choice((*COORDINATES, *more))
    if found["mode"] == "nearest":
        found["nearest_mode"] = rng.choice(NEAREST)
    if found["mode"] == "cubic":
        found |= {"exclude_outside": rng.randrange(2), "cubic_coeff_a": rng.choice((-0.75, -0.5))}
    if found["coordinate_transformation_mode"] == "tf_crop_and_resize":
        found["extrapolation_value"] = rng.choice((0.0, 7.0))
    elif opset >= 18 and found["mode"] != "nearest" and rng.random() < 0.3:
        found["antialias"] = 1
    return found


def model_of(rng: random.Random, opset: int, dtype: Any, attrs: dict[str, Any], scales: list[float],
             sizes: list[int] | None, producer: str) -> onnx.ModelProto:  # fmt: skip
    """Resize of [1, 2, h, w], or Upsample; to `sizes`, else by scales."""
    name = "Upsample" if opset < 10 else "Resize"
    constants = {"scales": np.array([1, 1, *scales], np.float32)}
    operands = ["x", "scales"]
    if opset < 9:
        attrs, operands, constants = attrs | {"scales": [1.0, 1.0, *scales]}, ["x"], {}
    if opset >= 11:
        constants["roi"] = np.array([0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3], np.float32)
        operands = ["x", "roi", "scales"]
        if sizes is not None:
            constants["sizes"] = np.array([1, 2, *sizes])
            operands = ["x", "roi", "scales", "sizes"]
            constants["scales"] = np.zeros(0, np.float32)
    if opset >= 18 and rng.random() < 0.5:
        attrs = attrs | {"axes": [2, 3]}
        kept = {"roi": [2, 3, 6, 7], "scales": [2, 3], "sizes": [2, 3]}
        constants = {key: array[kept[key]] if len(array) else array for key, array in constants.items()}
        if sizes is not None and attrs["coordinate_transformation_mode"] != "tf_crop_and_resize":
            attrs["keep_aspect_ratio_policy"] = rng.choice(("stretch", "not_larger", "not_smaller"))
    kind = TYPES[dtype]
    graph = helper.make_graph(
        [helper.make_node(name, operands, ["y"], **attrs)], "resize",
        [helper.make_tensor_value_info("x", kind, [1, 2, "h", "w"])],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(array, key) for key, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer)


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def image(rng: np.random.Generator, dtype: Any, h: int, w: int) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal((1, 2, h, w), np.float32).astype(dtype)
    ends = np.iinfo(dtype if dtype is not np.int32 else np.int16)
    return rng.integers(ends.min, ends.max + 1, (1, 2, h, w)).astype(dtype)


def require_close(found: np.ndarray, expected: np.ndarray, attrs: dict[str, Any], what: str) -> None:
    """Nearest elements and integers that are interpolated once are equal; sums of a few floats nearly; integers that
    are rounded after each axis, as antialiasing has it, may be a few off, as their weights are rounded."""
    assert found.shape == expected.shape, f"{what}: {found.shape} for {expected.shape}"
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    if attrs["mode"] == "nearest":
        assert not difference.any(), f"{what}: {np.argwhere(difference)[0]} is another element"
    elif found.dtype.kind == "f":
        most = 3e-4 if found.dtype == np.float32 else 2e-3
        assert (difference <= most * max(1.0, np.abs(expected).max(initial=0))).all(), f"{what}: {difference.max()}"
    else:
        wrong, most = difference[difference > 0], (0.03 * difference.size + 2 if attrs.get("antialias") else 0)
        assert wrong.max(initial=0) <= 1 and len(wrong) <= most, f"{what}: {wrong.max()}, {len(wrong)} elements"


def allowed(rng: random.Random, opset: int, attrs: dict[str, Any]) -> Any:
    """An element type that ONNX Runtime has for this, and does not add up wrongly."""
    if opset == 8 and attrs["mode"] != "nearest":
        return np.float32
    dtype = rng.choice(list(TYPES))
    if dtype is np.float16 and opset < 11:
        return np.float32
    if dtype is np.int8 and (attrs.get("antialias") or opset < 13):
        return np.uint8
    return dtype if attrs["mode"] != "cubic" or attrs.get("antialias") or dtype is np.float16 else np.float32


def fuzz(seed: int) -> Tried:
    """One model with unknown sizes called with several, and once with static ones."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    opset = rng.choice((8, 10, 11, 13, 18, 19))
    attrs = attributes(rng, opset)
    dtype = allowed(rng, opset, attrs)
    sizes = [rng.randint(1, 40), rng.randint(1, 40)] if opset >= 11 and rng.random() < 0.25 else None
    scales = [factor(rng), factor(rng)]
    is_region = attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    aligns = attrs.get("coordinate_transformation_mode") == "align_corners"
    if is_region:
        scales = [s if s != 1 else 1.5 for s in scales]  # as for sizes that stay
    if opset < 10:
        scales = [max(1.0, s) for s in scales]
    producer = rng.choice(("", "pytorch"))
    model = model_of(rng, opset, dtype, attrs, scales, sizes, producer)
    kind = f"{attrs['mode']} {np.dtype(dtype)}"
    what = f"opset {opset} {attrs} {np.dtype(dtype)} {'sizes' if sizes else 'scales'} {sizes or scales} {producer}"
    tried: Tried = Counter()
    theirs = session(model)
    ours = tilewright.compile(model.SerializeToString(), threads=1, cache=False)
    for call in range(WIDTHS):
        h, w = (max(rng.choice((rng.randint(1, 9), rng.randint(1, 120))), int(1 / s) + 1) for s in scales)
        products = [float(np.float32(s) * np.float32(d)) for s, d in zip(scales, (h, w), strict=True)]
        if is_region and ((h, w) == tuple(map(int, products)) if sizes is None else h == sizes[0] or w == sizes[1]):
            continue  # ONNX Runtime then leaves out the region
        if aligns and sizes is None and not producer and not all(p.is_integer() for p in products):
            continue  # the standard counts the fraction of an element, ONNX Runtime and PyTorch do not
        x = image(draw, dtype, h, w)
        try:
            expected = theirs.run(None, {"x": x})[0]
        except Exception:
            tried[kind, "refused there"] += 1
            continue
        require_close(ours(x)[0], expected, attrs, f"{what} of {h} x {w}")
        tried[kind, "equal"] += 1
        if call == 0:
            static = tilewright.compile(model.SerializeToString(), shapes={"x": list(x.shape)}, threads=1, cache=False)
            require_close(static(x)[0], expected, attrs, f"{what} of static {h} x {w}")
            tried[kind, "static"] += 1
    return tried
