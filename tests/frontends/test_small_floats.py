"""Floats of 8 bits: conversions and quantisation as the standard has them, by the ml_dtypes package."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of

FLOATS = {
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2: ml_dtypes.float8_e5m2,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
X = np.concatenate(
    [
        np.random.default_rng(3).standard_normal(500) * 10.0 ** np.linspace(-7, 6, 500),
        [0, -0.0, np.inf, -np.inf, np.nan],
    ]
)


def run(model: onnx.ModelProto, *arrays: np.ndarray) -> np.ndarray:
    (y,) = tilewright.compile(model.SerializeToString(), threads=1, cache=False)(*arrays)
    return y


def same(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.dtype == wanted.dtype
    a, b = got.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_array_equal(a, b)


def limited(x: np.ndarray, dtype: Any, saturate: int) -> np.ndarray:
    greatest = float(ml_dtypes.finfo(dtype).max)
    return (np.clip(x, -greatest, greatest) if saturate else x).astype(dtype)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("code", FLOATS)
def test_conversion(code: int, source: Any, saturate: int) -> None:
    with np.errstate(over="ignore"):
        x = X.astype(source)
    node = helper.make_node("Cast", ["x"], ["y"], to=code, saturate=saturate)
    model = model_of([node], [info("x", ["n"], helper.np_dtype_to_tensor_dtype(x.dtype))], ["y"])
    same(run(model, x), limited(x, FLOATS[code], saturate))


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("code", FLOATS)
def test_quantisation_and_back(code: int, saturate: int) -> None:
    x, scale = X.astype(np.float32), np.float32(0.5)
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], saturate=saturate)
    zero = np.zeros((), FLOATS[code])
    model = model_of([node], [info("x", ["n"])], ["y"], {"scale": scale, "zero": zero})
    y = run(model, x)
    same(y, limited(x / scale, FLOATS[code], saturate))
    node = helper.make_node("DequantizeLinear", ["x", "scale"], ["y"])
    model = model_of([node], [info("x", ["n"], code)], ["y"], {"scale": scale})
    same(run(model, y), (y.astype(np.float32) * scale).astype(np.float32))
