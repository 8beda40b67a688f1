"""The fuzzer of schedules: for seeds that it always runs, for some that are new in every run, and what it covers."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests.fuzz.registry import run_seed
from tests.loops.fuzz import fuzz
from tests.loops.steps import STEPS
from tilewright import loops
from tilewright.loops.primitive import PRIMITIVES

FIXED = 170
FRESH = 68
MOST_TRIES = 40
"""Seeds after which a step must have been accepted if half of the steps tried are this one."""


@pytest.mark.sweep(8)
@pytest.mark.parametrize("seed", range(FIXED))
def test_any_accepted_schedule_keeps_the_meaning(seed: int) -> None:
    run_seed("loops", seed)


@pytest.mark.fresh_seeds(FRESH)
def test_fresh_seeds(fresh_seed: int) -> None:
    run_seed("loops", fresh_seed)


def test_every_primitive_is_tried() -> None:
    for module in pkgutil.walk_packages(loops.__path__, f"{loops.__name__}."):
        importlib.import_module(module.name)
    # `round_terms` gives other results (tests/loops/sums/test_round_terms.py), and `skip_masked` is for loops of
    # attention, of which these programs have none (tests/loops/conditions/test_skip_masked.py).
    others = {"specialize", "round_terms", "skip_masked"}
    assert PRIMITIVES.keys() - STEPS.keys() == others, "add these to STEPS in tests/loops/steps.py"


@pytest.mark.sweep(7)
@pytest.mark.parametrize("name", STEPS)
def test_each_step_is_accepted_now_and_then(name: str) -> None:
    assert any(fuzz(seed, favoured=name)[name, "accepted"] for seed in range(MOST_TRIES))
