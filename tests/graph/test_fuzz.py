"""Random programs: the whole pipeline leaves legal programs that compute the same."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed

FIXED, FRESH = 45, 30


@pytest.mark.sweep(5)
@pytest.mark.parametrize(
    "seed",
    # The remainder of a sum of 5*n0 // 16 terms, which are tiled by 384, has no vectors.
    list(range(FIXED)),
)
def test_random_programs(seed: int) -> None:
    run_seed("graph", seed)


@pytest.mark.fresh_seeds(FRESH)
def test_fresh_random_programs(fresh_seed: int) -> None:
    run_seed("graph", fresh_seed)


def test_sums_whose_loops_run_over_several_axes() -> None:
    """Axes that are one at most are merged: loops of a reduction are fewer than the axes of its sums then."""
    run_seed("graph", 830923575)
