"""Fourier transforms against NumPy's, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnxruntime
import pytest

import tilewright
from tests.frontends.helpers import imported, node_model, reference
from tests.schedule import scheduling as oracle
from tilewright.frontends.onnx.load import load_onnx
from tilewright.graph.pipeline import default_passes
from tilewright.ir.diag import TilewrightError
from tilewright.ops.composites.fourier import factors_of
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.target.named import parse_target

RNG = np.random.default_rng(23)


def signal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def parts(x: np.ndarray) -> np.ndarray:
    return np.stack([x.real, x.imag], -1)


def numbers(x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0]


def compiled(model: Any, *arrays: np.ndarray) -> np.ndarray:
    (y,) = tilewright.compile(model.SerializeToString(), threads=1, cache=False)(*arrays)
    return y


def close(got: np.ndarray, wanted: np.ndarray, error: float = 2e-6) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=error * np.abs(wanted).max(initial=1e-9))


@pytest.mark.sweep(5)
@pytest.mark.parametrize("n", [1, 2, 7, 16, 250, 331, 384, 480, 1024, 1009 * 2])
@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
def test_lengths_with_and_without_factors(n: int, complex_: bool) -> None:
    x = signal(3, n, 1 + complex_)
    wanted = parts(np.fft.fft(numbers(x), axis=1))
    close(compiled(node_model("DFT", [x]), x), wanted)
    back = compiled(node_model("DFT", [x], {"inverse": 1}), x)
    close(back, parts(np.fft.ifft(numbers(x), axis=1)))


@pytest.mark.parametrize("axis", [0, 1, -2])
@pytest.mark.parametrize("length", [None, 5, 12])
@pytest.mark.parametrize("opset", [19, 23])
def test_axes_and_lengths(axis: int, length: int | None, opset: int) -> None:
    x = signal(9, 8, 7, 1)
    operands = [x, None if length is None else np.array(length)] + ([np.array(axis)] if opset > 19 else [])
    attrs = {"onesided": 1, **({} if opset > 19 else {"axis": axis})}
    model = node_model("DFT", operands, attrs, opset=opset, known=(1, 2))
    at = axis % 4
    close(imported(model, x)[0], parts(np.fft.rfft(numbers(x), length, axis=at)))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("attrs", [{}, {"inverse": 1}, {"onesided": 1}], ids=str)
def test_parts_of_a_number_that_are_known_in_the_call(attrs: dict[str, int]) -> None:
    model = node_model("DFT", [signal(2, 30, 1)], attrs, dynamic=True)
    compiled_ = tilewright.compile(model.SerializeToString(), threads=1, cache=False)
    for count in (1,) if "onesided" in attrs else (1, 2):
        x = signal(2, 30, count)
        function = np.fft.ifft if "inverse" in attrs else np.fft.rfft if "onesided" in attrs else np.fft.fft
        close(compiled_(x)[0], parts(function(numbers(x), axis=1)), 1e-5)
    with pytest.raises(TilewrightError, match="one or two parts of a number"):
        compiled_(signal(2, 30, 3))


def test_parts_of_the_numbers_of_frames_that_are_known_in_the_call() -> None:
    x, window = signal(2, 30, 1), signal(8)
    model = node_model("STFT", [x, np.array(4), window], {"onesided": 0}, known=(1, 2))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "parts"
    compiled_ = tilewright.compile(model.SerializeToString(), threads=1, cache=False)
    for count in (1, 2):
        x = signal(2, 30, count)
        frames = np.stack([numbers(x)[:, k : k + 8] * window for k in range(0, 23, 4)], axis=1)
        close(compiled_(x)[0], parts(np.fft.fft(frames)), 1e-5)
    with pytest.raises(TilewrightError, match="parts of a number"):
        compiled_(signal(2, 30, 3))


@pytest.mark.parametrize("n", [None, 6, 7, 300])
def test_real_numbers_of_half_of_a_spectrum(n: int | None) -> None:
    x = signal(2, 5 if n is None else n // 2 + 1, 2)
    operands = [x] if n is None else [x, np.array(n)]
    got = compiled(node_model("DFT", operands, {"inverse": 1, "onesided": 1}, known=(1,)), x)
    close(got, np.fft.irfft(numbers(x), n, axis=1)[..., None])


@pytest.mark.sweep(1)
@pytest.mark.parametrize("attrs", [{}, {"inverse": 1}, {"onesided": 1}], ids=str)
def test_a_length_that_is_not_known(attrs: dict[str, int]) -> None:
    for dtype, error in ((np.float32, 1e-5), (np.float64, 1e-12)):
        x = signal(2, 30, 1 if "onesided" in attrs else 2, dtype=dtype)
        model = node_model("DFT", [x], attrs, dynamic=True)
        model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = x.shape[2]
        function = np.fft.ifft if "inverse" in attrs else np.fft.rfft if "onesided" in attrs else np.fft.fft
        close(compiled(model, x), parts(function(numbers(x), axis=1)), error)


@pytest.mark.sweep
@pytest.mark.parametrize("onesided", [0, 1])
@pytest.mark.parametrize("frame", [16, 400])
@pytest.mark.parametrize("windowed", [False, True])
def test_frames_are_those_of_onnxruntime(onesided: int, frame: int, windowed: bool) -> None:
    x = signal(2, 1000, 1)
    window = np.hanning(frame).astype(np.float32) if windowed else None
    model = node_model(
        "STFT", [x, np.array(30), window, np.array(frame)], {"onesided": onesided}, known=(1, 2, 3), opset=17
    )
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x0": x})
    close(compiled(model, x), wanted, 2e-4)  # its own error for 400 elements is near 1e-4


def test_a_signal_whose_length_is_not_known() -> None:
    x, window = signal(1, 100), np.hamming(32).astype(np.float32)
    model = node_model("STFT", [x, np.array(10), window], {}, known=(1, 2), dynamic=True, opset=17)
    frames = np.stack([x[0, k : k + 32] * window.astype(np.float64) for k in range(0, 69, 10)])
    close(compiled(model, x), parts(np.fft.rfft(frames))[None])


def test_weights_of_a_mel_scale_are_those_of_onnxruntime() -> None:
    operands = [np.array(40), np.array(512), np.array(16000), np.float32(20), np.float32(8000)]
    model = node_model("MelWeightMatrix", operands, known=range(5), opset=17)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {})
    close(imported(model)[0], wanted)
    model = node_model("MelWeightMatrix", operands, opset=17)
    for count, rate in ((40, 16000), (7, 44100)):
        given = [np.array(count), operands[1], np.array(rate), *operands[3:]]
        found = compiled(model, *given)
        close(found, reference(model, *given)[0])


REFUSED = {
    "the last axis holds one or two parts": node_model("DFT", [signal(1, 8, 3)]),
    "transform of 0 elements is not possible": node_model("DFT", [signal(1, 1, 2)], {"inverse": 1, "onesided": 1}),
    "a Fourier transform of 0 elements": node_model("DFT", [signal(1, 8, 1), np.array(0)], known=(1,)),
    "the window f32[9] is not of 8 elements": node_model(
        "STFT", [signal(1, 64), np.array(4), signal(9), np.array(8)], known=(1, 3), opset=17
    ),
    "frames of 8 elements that are 0 apart": node_model(
        "STFT", [signal(1, 64), np.array(0), signal(8)], known=(1,), opset=17
    ),
    "the signal has the axes batch and time": node_model(
        "STFT", [signal(64), np.array(4)], known=(1,), opset=17
    ),
    "8000.0 Hz are beyond half of the rate": node_model(
        "MelWeightMatrix",
        [np.array(4), np.array(64), np.array(8000), np.float32(20), np.float32(8000)],
        known=range(5),
        opset=17,
    ),
    "0 bands from": node_model(
        "MelWeightMatrix",
        [np.array(0), np.array(64), np.array(8000), np.float32(20), np.float32(400)],
        known=range(5),
        opset=17,
    ),
    "must be one number, it is": node_model(
        "MelWeightMatrix",
        [np.array(4), np.array(64), np.array([8000, 16000]), np.float32(20), np.float32(400)],
        known=range(5),
        opset=17,
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_the_reason_is_said(said: str) -> None:
    with pytest.raises(TilewrightError) as caught:
        load_onnx(REFUSED[said])
    assert said in str(caught.value)


@pytest.mark.parametrize("n", [64, 256, 400, 480, 512, 1000, 1024, 2048, 4096])
def test_axes_with_small_factors_are_divided_by_them(n: int) -> None:
    """Multiplications of all elements, and the passes over them."""
    factors = factors_of(n)
    assert math.prod(factors) == n
    assert sum(factors) <= 4 * math.log2(n) and len(factors) <= math.ceil(math.log2(n) / 3)


def test_complex_rows_are_taken_apart_and_put_together_by_squares() -> None:
    """Of the kernels that only move elements none moves single ones."""
    x = signal(32, 512, 2)
    module = load_onnx(node_model("DFT", [x, None, np.array(1)], known=(2,)).SerializeToString())
    target = parse_target("x86-64-v3")
    run_passes(module, default_passes(Options()), PassContext(target, Options()))
    oracle.scheduled(module, "x86-64-v3")
    moving = [f for f in module.funcs.values() if f.level == "loops" and f.name.endswith("_transpose")]
    moving = [f for f in moving if len(f.args) == 2]  # no turns
    assert len(moving) == 2
    assert all(any(op.name == "alloc" for op in f.body.walk()) for f in moving)
