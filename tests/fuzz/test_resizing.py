"""Resize of random models, with static and unknown sizes, is ONNX Runtime's."""

from __future__ import annotations

import pytest

from tests.fuzz.registry import run_seed

FRESH = 5


@pytest.mark.fresh_seeds(1)
def test_resize(fresh_seed: int) -> None:
    for seed in range(fresh_seed, fresh_seed + FRESH):
        run_seed("resizing", seed)
