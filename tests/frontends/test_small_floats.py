"""Floats of 8 bits and elements of fewer: conversions and quantisation as the standard has them, by ml_dtypes and the
reference implementation of the onnx package."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

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


# Elements of less than 8 bits, and powers of two

SMALL = {
    TensorProto.INT2: ml_dtypes.int2,
    TensorProto.UINT2: ml_dtypes.uint2,
    TensorProto.INT4: ml_dtypes.int4,
    TensorProto.UINT4: ml_dtypes.uint4,
    TensorProto.FLOAT4E2M1: ml_dtypes.float4_e2m1fn,
    TensorProto.FLOAT6E2M3: ml_dtypes.float6_e2m3fn,
    TensorProto.FLOAT6E3M2: ml_dtypes.float6_e3m2fn,
}
SMALL_FLOATS = (TensorProto.FLOAT4E2M1, TensorProto.FLOAT6E2M3, TensorProto.FLOAT6E3M2)
MOVED = tuple(code for code in SMALL if code not in SMALL_FLOATS[1:])
"""Those that more operators take than conversions."""


def patterns(code: int) -> np.ndarray:
    """Every element of a type, in 16 bytes at least."""
    bits = {TensorProto.INT2: 2, TensorProto.UINT2: 2, **dict.fromkeys(SMALL_FLOATS[1:], 6)}.get(code, 4)
    return np.resize(np.arange(1 << bits, dtype=np.uint8), max(16, 1 << bits)).view(SMALL[code])


@pytest.mark.sweep
@pytest.mark.parametrize("to", [*SMALL, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8, TensorProto.BOOL])
@pytest.mark.parametrize("code", SMALL)
def test_conversion_of_all_small_elements(code: int, to: int) -> None:
    """Also of constants. Integers lose their upper bits."""
    x, dtype = patterns(code), helper.tensor_dtype_to_np_dtype(to)
    to_integer = to in SMALL and to not in SMALL_FLOATS
    wanted = (x.astype(np.float32).astype(np.int32) if to_integer else x.astype(np.float32)).astype(dtype)
    node = helper.make_node("Cast", ["x"], ["y"], to=to)
    same(run(model_of([node], [info("x", ["n"], code)], ["y"], opset=28), x), wanted)
    same(run(model_of([node], [], ["y"], {"x": x}, opset=28)), wanted)


@pytest.mark.parametrize("source", [np.float32, np.float16, np.float64, np.int8, np.uint32])
@pytest.mark.parametrize("code", MOVED)
def test_conversion_to_small_elements(code: int, source: Any) -> None:
    x = np.arange(-20, 21) / (4 if np.dtype(source).kind == "f" else 1)
    x = (np.abs(x) if np.dtype(source).kind == "u" else x).astype(source)
    elem = helper.np_dtype_to_tensor_dtype(x.dtype)
    node = helper.make_node("CastLike", ["x", "z"], ["y"])
    model = model_of([node], [info("x", ["n"], elem), info("z", [1], code)], ["y"], opset=28)
    same(run(model, x, np.zeros(1, SMALL[code])), x.astype(SMALL[code]))


@pytest.mark.sweep
@pytest.mark.parametrize("x", [np.inf, -np.inf, np.nan, 6.5, -1e9, 5.0, 0.25, -0.0])
@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("code", SMALL_FLOATS)
def test_floats_of_less_than_8_bits_saturate(code: int, x: float, saturate: int) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=code, saturate=saturate)
    y = run(model_of([node], [info("x", ["n"])], ["y"], opset=28), np.full(3, x, np.float32))
    same(y, np.full(3, x, np.float32).astype(SMALL[code]))


@pytest.mark.sweep
@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("size", [1, 3, 5, 16])
@pytest.mark.parametrize("code", MOVED)
def test_packed_tensors_and_what_moves_them(code: int, size: int, raw: bool) -> None:
    x = patterns(code)[::-1][:size].copy()
    packed = numpy_helper.from_array(x, "c")
    if not raw:
        codes = list(packed.raw_data)
        packed.ClearField("raw_data")
        packed.int32_data.extend(codes)
    nodes = [
        helper.make_node("Unsqueeze", ["c", "axis"], ["column"]),
        helper.make_node("Transpose", ["column"], ["row"]),
        helper.make_node("Identity", ["row"], ["y"]),
    ]
    axis = {"axis": np.array([1])}
    stored = model_of(nodes, [], ["y"], axis, opset=28)
    stored.graph.initializer.append(packed)
    same(run(stored), x[None])
    same(run(model_of(nodes, [info("c", ["n"], code)], ["y"], axis, opset=28), x), x[None])


@pytest.mark.parametrize("code", SMALL)
def test_quantisation_to_small_elements_and_back(code: int) -> None:
    x = np.linspace(-9, 17, 96, dtype=np.float32).reshape(2, 48)
    scale, zero = np.array([0.5, 2.0], np.float32), np.array([1, 0], np.float32).astype(SMALL[code])
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], axis=0)
    model = model_of([node], [info("x", [2, 48])], ["y"], {"scale": scale, "zero": zero}, opset=28)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    y = run(model, x)
    same(y, wanted)
    node = helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["y"], axis=0)
    model = model_of([node], [info("x", [2, 48], code)], ["y"], {"scale": scale, "zero": zero}, opset=28)
    centred = y.astype(np.float32) - zero.astype(np.float32)[:, None]
    same(run(model, y), (centred * scale[:, None]).astype(np.float32))


E8M0 = ml_dtypes.float8_e8m0fnu


def powers(mode: str, saturate: int, x: np.ndarray) -> np.ndarray:
    node = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E8M0, round_mode=mode, saturate=saturate)
    elem = helper.np_dtype_to_tensor_dtype(x.dtype)
    return run(model_of([node], [info("x", ["n"], elem)], ["y"], opset=28), x)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("mode", ["up", "down", "nearest"])
@pytest.mark.parametrize("source", [np.float32, np.float16])
def test_conversion_to_powers_of_two(source: Any, mode: str, saturate: int) -> None:
    exponents = np.arange(-126, 128) if source is np.float32 else np.arange(-14, 15)
    near = np.array([1, 1.25, 1.5, 1.5 - 2**-9, 1.5 + 2**-9, 1.75])
    x = (near * 2.0 ** exponents[:, None]).reshape(-1).astype(source)
    x = x[x.astype(np.float64) <= 2.0**127] if mode != "down" else x
    same(powers(mode, saturate, x), numpy_helper.to_float8e8m0(x, bool(saturate), mode))


def test_ends_of_the_powers_of_two() -> None:
    """The table of operator Cast; and between the least power and the next, as elsewhere."""
    numbers = [0, np.nan, np.inf, 1.99 * 2.0**127, 2.0**-129, 2.0**-127, 1.25 * 2.0**-127, 1.5 * 2.0**-127]
    x = np.array(numbers, np.float32)
    assert powers("up", 1, x).view(np.uint8).tolist() == [0, 255, 254, 254, 0, 0, 1, 1]
    assert powers("nearest", 0, x).view(np.uint8).tolist() == [255, 255, 255, 255, 255, 0, 0, 1]


@pytest.mark.parametrize("to", [np.float32, np.float16, np.float64, ml_dtypes.float8_e5m2])
def test_all_powers_of_two_as_floats(to: Any) -> None:
    x = np.arange(256, dtype=np.uint8).view(E8M0)
    x = x[x.astype(np.float32) >= 2.0**-126] if to is not np.float16 else x[110:140]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(to))
    node = helper.make_node("Cast", ["x"], ["y"], to=code, saturate=0)
    with np.errstate(over="ignore"):
        wanted = x.astype(np.float32).astype(to)
    same(run(model_of([node], [info("x", ["n"], TensorProto.FLOAT8E8M0)], ["y"], opset=28), x), wanted)


def test_a_rounding_mode_that_does_not_exist() -> None:
    with pytest.raises(tilewright.ModelError, match="Cast has no round_mode 'out'"):
        powers("out", 1, np.ones(2, np.float32))


# BitCast


@pytest.mark.parametrize(("source", "code"), [(np.float32, TensorProto.INT32), (np.uint16, TensorProto.BFLOAT16),
                                             (np.bool_, TensorProto.INT8), (np.int8, TensorProto.FLOAT8E4M3FN),
                                             (ml_dtypes.int4, TensorProto.FLOAT4E2M1),
                                             (ml_dtypes.uint2, TensorProto.INT2)])  # fmt: skip
def test_bit_cast(source: Any, code: int) -> None:
    x = np.arange(16).reshape(2, 8).astype(source)
    node = helper.make_node("BitCast", ["x"], ["y"], to=code)
    elem = helper.np_dtype_to_tensor_dtype(x.dtype)
    wanted = x.view(helper.tensor_dtype_to_np_dtype(code))
    same(run(model_of([node], [info("x", ["n", 8], elem)], ["y"], opset=26), x), wanted)
    same(run(model_of([node], [], ["y"], {"x": x}, opset=26)), wanted)


def test_bit_cast_to_another_width() -> None:
    node = helper.make_node("BitCast", ["x"], ["y"], to=TensorProto.INT64)
    with pytest.raises(tilewright.TilewrightError, match="the bits of f32 are not those of i64"):
        run(model_of([node], [info("x", ["n"])], ["y"], opset=26), np.ones(2, np.float32))
