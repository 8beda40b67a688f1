"""The fuzzer of this folder, for the seeds that it has always run and for some that are new in every run."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed

FIXED = 234
FRESH = 60


@pytest.mark.parametrize("seed", range(FIXED))
def test_any_accepted_schedule_keeps_the_meaning(seed: int) -> None:
    run_seed("loops", seed)


@pytest.mark.fresh_seeds(FRESH)
def test_fresh_seeds(fresh_seed: int) -> None:
    run_seed("loops", fresh_seed)
