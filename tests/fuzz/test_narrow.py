"""Random products by weights of few bits."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed


@pytest.mark.fresh_seeds(1)
def test_products_by_narrow_weights(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 4):
        run_seed("narrow", seed)
