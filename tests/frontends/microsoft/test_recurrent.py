"""LSTMs with quantised weights against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.frontends.microsoft.against import RNG, Case, agree, f32, ints
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
    """ONNX Runtime quantises the state in each step, for the whole batch: results agree so far; without recurrent
    weights they agree to rounding."""
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
