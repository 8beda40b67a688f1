"""Random size arithmetic: canonical forms have the values of what they were made of, in 64 bits."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed

FIXED, FRESH = 40, 20


@pytest.mark.parametrize("seed", range(FIXED))
def test_size_arithmetic(seed: int) -> None:
    run_seed("sizes", seed)


@pytest.mark.fresh_seeds(FRESH)
def test_fresh_size_arithmetic(fresh_seed: int) -> None:
    run_seed("sizes", fresh_seed)
