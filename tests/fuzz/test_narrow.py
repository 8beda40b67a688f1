"""Random products by weights of few bits, by rounded rows, and by what data pick of them."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed


@pytest.mark.fresh_seeds(1)
def test_products_by_narrow_weights(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 2):
        run_seed("narrow", seed)


@pytest.mark.fresh_seeds(1)
def test_products_of_rounded_rows(fresh_seed: int) -> None:
    run_seed("rounded", fresh_seed)


@pytest.mark.fresh_seeds(1)
def test_products_by_what_data_pick(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 2):
        run_seed("picked", seed)
