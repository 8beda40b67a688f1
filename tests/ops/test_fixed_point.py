"""Factors of sums in fixed point."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ops.define.interp import evaluate
from tilewright.ops.fixed_point import fixed_point, requantize_fixed


@pytest.mark.parametrize("largest", (3e-12, 1e-4, 0.5, np.nextafter(0.5, 0), 1.0, 7.0, 1e6))
def test_multipliers_are_as_near_as_their_digits_allow(largest: float) -> None:
    scales = np.array([largest, largest / 3, largest / 1000])
    multipliers, shift = fixed_point(scales)
    assert multipliers.dtype == np.int32 and 1 <= shift <= 62
    assert multipliers.max() >= 1 << 30 or shift == 62
    np.testing.assert_allclose(np.ldexp(multipliers.astype(np.float64), -shift), scales, atol=0.5 / 2.0**shift)


@pytest.mark.parametrize("scales", ([0.0], [-1.0], [np.nan], [np.inf], [], [1e10]))
def test_factors_that_have_no_multiplier_are_refused(scales: list[float]) -> None:
    with pytest.raises(ValueError, match=r"must be positive numbers|is too large"):
        fixed_point(np.array(scales))


def test_bytes_differ_from_those_of_floats_in_ties_alone() -> None:
    rng = np.random.default_rng(4)
    scales = rng.random(64) * 1e-3 + 1e-6
    sums = rng.integers(-300_000, 300_000, (500, 64)).astype(np.int32)
    multipliers, shift = fixed_point(scales)
    found = evaluate(requantize_fixed, sums, multipliers, shift=shift, zero_point=3, dtype=dt.i8)
    exact = sums * scales
    wanted = np.clip(np.floor(exact + 0.5) + 3, -128, 127).astype(np.int8)
    is_near_tie = np.abs(exact - np.floor(exact) - 0.5) < 1e-4
    np.testing.assert_array_equal(found[~is_near_tie], wanted[~is_near_tie])
