"""LSTMs with quantised weights: against ONNX Runtime, and step by step against their definition in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.microsoft.against import RNG, Case, agree, by_onnxruntime, compiled, f32, ints
from tests.ops.samples_series import quantised_row
from tests.saturating import unsaturated

ALL = (True, True, True)


def lstm(
    hidden: int,
    batch: int,
    directions: int,
    *,
    signed: bool = True,
    per_channel: bool = False,
    state: bool = False,
    recurrent: bool = True,
    error: float = 2e-2,
    **attrs: Any,
) -> Case:
    """ONNX Runtime quantises the states of the whole batch together: results agree so far; without recurrent weights
    they agree to rounding."""
    steps, width = 6, 5
    dtype, low, high = (np.int8, -127, 128) if signed else (np.uint8, 1, 256)
    scales = (directions, 4 * hidden) if per_channel else (directions,)
    w, r = (unsaturated(ints(low, high, directions, k, 4 * hidden, dtype=dtype)) for k in (width, hidden))
    zeros = np.full(scales, 0 if signed else 131, dtype)
    r = r if recurrent else np.full_like(r, zeros.flat[0])
    scale = [RNG.uniform(0.5, 1, scales).astype(np.float32) / 127 / np.sqrt(k) for k in (width, hidden)]
    lengths = np.array([steps, *ints(1, steps, batch - 1)], np.int32) if state else None
    start = [f32(directions, batch, hidden) * 0.3 if state else None for _ in range(2)]
    peepholes = f32(directions, 3 * hidden) if state else None
    arrays = [f32(steps, batch, width), w, r, f32(directions, 8 * hidden), lengths, *start, peepholes]
    return Case(
        "DynamicQuantizeLSTM",
        [*arrays, scale[0].astype(np.float32), zeros, scale[1].astype(np.float32), zeros],
        {"hidden_size": hidden, **attrs},
        (1, 2, 3, 7, 8, 9, 10, 11),
        ALL,
        error,
    )


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "symbolic"])
@pytest.mark.parametrize(
    "case",
    [
        lstm(8, 1, 1),
        lstm(8, 1, 1, recurrent=False, error=1e-5),
        lstm(16, 3, 2, direction="bidirectional", per_channel=True, state=True),
        lstm(7, 2, 1, direction="reverse", signed=False, input_forget=0),
        lstm(8, 2, 2, direction="bidirectional", signed=False, recurrent=False, state=True, error=1e-5),
        lstm(8, 2, 1, activations=["Sigmoid", "Relu", "Tanh"], input_forget=1, recurrent=False, error=1e-5),
    ],
    ids=str,
)
def test_it_means_what_onnxruntime_does(case: Case, symbolic: bool, fresh_seed: int) -> None:
    agree(case.redrawn(fresh_seed), symbolic)


@pytest.mark.sweep
@pytest.mark.fresh_seeds(1)
@pytest.mark.parametrize("signed", [True, False], ids=["i8", "u8"])
@pytest.mark.parametrize(("hidden", "batch"), [(1, 1), (7, 2), (16, 1), (48, 3), (130, 7)])
def test_each_step_adds_up_integers_exactly(hidden: int, batch: int, signed: bool, fresh_seed: int) -> None:
    """Weights of all bits. Each step is computed anew of the state that was found before it, so that a number that
    rounding takes the other way is no error of those after it."""
    case = lstm(hidden, batch, 1, signed=signed, per_channel=True, state=True).redrawn(fresh_seed)
    arrays = list(case.arrays)
    rng = np.random.default_rng(fresh_seed)
    for k in (1, 2):
        whole = np.iinfo(np.asarray(arrays[k]).dtype)
        arrays[k] = rng.integers(whole.min, whole.max + 1, np.shape(arrays[k])).astype(whole.dtype)
    arrays[4] = None  # all entries last for all steps
    case = Case(case.op, arrays, case.attrs, case.known, case.outputs)
    over_time, last, cell = compiled(case.model(), case.given)
    x, w, r, bias, _, h0, c0, peepholes, w_scale, w_zero, r_scale, r_zero = arrays
    gates = input_gates(x, w[0], w_scale[0], w_zero[0]) + (bias[0, : 4 * hidden] + bias[0, 4 * hidden :])
    to_i, to_o, to_f = np.split(peepholes[0].astype(np.float64), 3)
    recurrent = r[0].astype(np.int64) - r_zero[0].astype(np.int64)
    states, c = np.concatenate([h0, over_time[:, 0]]), c0[0].astype(np.float64)
    for t, before in enumerate(states[:-1]):
        numbers, steps = zip(*map(quantised_row, before), strict=True)
        scales = np.stack(steps).astype(np.float64)[:, None] * r_scale[0]
        i, o, f, g = np.split(gates[t] + (np.stack(numbers) @ recurrent) * scales, 4, axis=1)
        c = sigmoid(f + to_f * c) * c + sigmoid(i + to_i * c) * np.tanh(g)
        np.testing.assert_allclose(states[t + 1], sigmoid(o + to_o * c) * np.tanh(c), rtol=0, atol=2e-6)
    np.testing.assert_array_equal(last, over_time[-1])
    np.testing.assert_allclose(cell[0], c, rtol=0, atol=1e-5)


def input_gates(x: np.ndarray, w: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    """The products of all inputs, which are quantised together."""
    numbers, step = quantised_row(x.reshape(-1))
    sums = numbers.reshape(x.shape) @ (w.astype(np.int64) - zero.astype(np.int64))
    return sums * (np.float64(step) * scale)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def test_one_entry_has_the_states_of_onnxruntime() -> None:
    """Which quantises them as we do where nobody else is in the batch; a few numbers round the other way."""
    case = lstm(64, 1, 1, per_channel=True)
    ours, theirs = compiled(case.model(), case.given), by_onnxruntime(case.model(), case.given)
    for found, wanted in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-3)
