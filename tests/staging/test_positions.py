"""Positions, kinds and boxes that data choose, in native code: what ONNX Runtime gives, for many shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from onnx import parser

import tilewright

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(1)
DTYPES = {"float": np.float32, "double": np.float64, "int64": np.int64, "int8": np.int8}


def agree(graph: str, calls: list[dict[str, np.ndarray]]) -> tilewright.Model:
    """Ours computes what ONNX Runtime computes, without functions of the host."""
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{graph}').SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    other = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    ours = tilewright.compile(model, threads=2)
    assert "CallHost" not in str(ours.artifact.program)
    for call in calls:
        for found, expected in zip(ours.run(call), other.run(None, call), strict=True):
            assert found.dtype == expected.dtype and found.shape == expected.shape
            np.testing.assert_array_equal(found, expected)
    return ours


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("in_order", [0, 1])
def test_kinds(name: str, in_order: int) -> None:
    text = f"""g ({name}[n, m] x) => ({name}[k] y, int64[k] first, int64[w] which, int64[k] often) {{
        y, first, which, often = Unique <sorted = {in_order}> (x)
    }}"""
    shapes = ((1, 1), (1, 2), (3, 17), (25, 40))
    agree(text, [{"x": RNG.integers(-9, 9, shape).astype(DTYPES[name])} for shape in shapes])


@pytest.mark.parametrize("name", ["float", "int64", "bool"])
def test_elements_that_are_not_zero(name: str) -> None:
    dtype = bool if name == "bool" else DTYPES[name]
    shapes = ((2, 3, 4), (0, 3, 4), (1, 1, 1), (5, 0, 2), (20, 30, 40))
    calls = [{"x": RNG.integers(0, 2, shape).astype(dtype)} for shape in shapes]
    agree(f"g ({name}[a, b, c] x) => (int64[3, k] y) {{ y = NonZero (x) }}", calls)
    calls = [{"x": np.array(v, dtype)} for v in (0, 1)]
    agree(f"g ({name} x) => (int64[1, k] y) {{ y = NonZero (x) }}", calls)


def boxes(center: bool) -> Iterator[Mapping[str, np.ndarray]]:
    settings = ((1, 1, 50, 10, 0.3, 0.1), (2, 3, 200, 5, 0.5, 0.0), (1, 2, 1, 3, 0.5, 0.5), (1, 1, 300, 1000, 0.7, 0.5),
                (1, 1, 30, 0, 0.7, 0.5), (2, 2, 10, 3, 0.0, 2.0), (1, 1, 30, -1, 0.7, 0.5))  # fmt: skip
    for batch, classes, count, most, overlap, threshold in settings:
        corners = RNG.uniform(0, 50, (batch, count, 4)).astype(np.float32)
        if center:
            corners[..., 2:] = RNG.uniform(1, 20, (batch, count, 2))
        scores = RNG.uniform(0, 1, (batch, classes, count)).astype(np.float32).round(2)
        limits = {"m": np.array([most]), "o": np.float32([overlap]), "t": np.float32([threshold])}
        yield {"b": corners, "s": scores, **limits}


@pytest.mark.parametrize("center", [0, 1])
def test_boxes_that_are_kept(center: int) -> None:
    text = f"""g (float[b, n, 4] b, float[b, c, n] s, int64[1] m, float[1] o, float[1] t) => (int64[k, 3] y) {{
        y = NonMaxSuppression <center_point_box = {center}> (b, s, m, o, t)
    }}"""
    calls = [dict(call) for call in boxes(bool(center))]
    agree(text, [c for c in calls if c["m"] >= 0])
    without = "g (float[b, n, 4] b, float[b, c, n] s) => (int64[k, 3] y) { y = NonMaxSuppression (b, s) }"
    agree(without, [{name: calls[0][name] for name in "bs"}])


def test_a_negative_limit_keeps_no_boxes() -> None:
    text = """g (float[b, n, 4] b, float[b, c, n] s, int64[1] m) => (int64[k, 3] y) {
        y = NonMaxSuppression (b, s, m)
    }"""
    call = {name: array for name, array in list(boxes(False))[-1].items() if name in "bsm"}
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]>\n{text}').SerializeToString()
    assert tilewright.compile(model).run(call)[0].shape == (0, 3)


@pytest.mark.sweep
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("largest", [0, 1])
def test_the_largest_of_rows(name: str, largest: int) -> None:
    """In registers (no), in a heap, and all sorted: the number of elements is an input."""
    text = f"""g ({name}[n, m] x, int64[1] k) => ({name}[n, q] y, int64[n, q] at) {{
        y, at = TopK <largest = {largest}> (x, k)
    }}"""
    shapes = ((3, 17, 2), (3, 17, 17), (2, 1000, 50), (2, 1000, 1000), (1, 1, 1), (2, 5, 0), (1, 33, 4), (1, 300, 299))
    calls = [{"x": RNG.integers(-100, 100, (n, m)).astype(DTYPES[name]), "k": np.array([k])} for n, m, k in shapes]
    agree(text, calls)
