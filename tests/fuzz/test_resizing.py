"""Resize of random models, with static and unknown sizes, is ONNX Runtime's."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed

FIXED, FRESH = 16, 6


@pytest.mark.parametrize("seed", range(FIXED))
def test_resize(seed: int) -> None:
    run_seed("resizing", seed)


@pytest.mark.fresh_seeds(FRESH)
def test_fresh_resize(fresh_seed: int) -> None:
    run_seed("resizing", fresh_seed)
