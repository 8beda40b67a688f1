"""Random problems of planning memory."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed


@pytest.mark.fresh_seeds(1)
def test_random_problems(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 10):
        run_seed("memory", seed)
