"""Random guards, some the same in every run and some new ones; `python -m tests.fuzz guards` runs many."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(10))
def test_fixed_guards(seed: int) -> None:
    run_seed("guards", seed)


@pytest.mark.fresh_seeds(10)
def test_fresh_guards(fresh_seed: int) -> None:
    run_seed("guards", fresh_seed)
