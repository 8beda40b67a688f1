"""Random programs and models with states, and programs of parts."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed


@pytest.mark.fresh_seeds(1)
def test_what_is_allowed_needs_no_copies(fresh_seed: int) -> None:
    allowed = 0
    for seed in range(fresh_seed, fresh_seed + 200):
        allowed += run_seed("aliasing", seed)["program", "allowed"]
    assert allowed > 20


@pytest.mark.fresh_seeds(1)
def test_models_that_keep_states(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 8):
        run_seed("states", seed)


@pytest.mark.fresh_seeds(1)
def test_programs_of_parts(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + 4):
        run_seed("parts", seed)
