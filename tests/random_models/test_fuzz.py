"""Random ONNX models, some the same in every run and some new ones; `python -m tests.fuzz onnx` runs many."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed

FIXED = 30

FRESH = 4, 60
"""Models that a run draws, and by night. Their operators meet in ways that nobody has tried, and each is compared with
what another engine makes of it: one of a thousand finds a defect, of ours or of that engine, and mostly of none that a
change brought."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(FIXED))
def test_fixed_models(seed: int) -> None:
    run_seed("onnx", seed)


@pytest.mark.fresh_seeds(*FRESH)
def test_fresh_models(fresh_seed: int) -> None:
    run_seed("onnx", fresh_seed)


@pytest.mark.sweep(1)
@pytest.mark.parametrize("seed", range(FIXED // 2))
def test_fixed_models_that_are_converted(seed: int) -> None:
    run_seed("convert", seed)


@pytest.mark.fresh_seeds(*FRESH)
def test_fresh_models_that_are_converted(fresh_seed: int) -> None:
    run_seed("convert", fresh_seed)
