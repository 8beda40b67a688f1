"""The generator of random numbers: known answers, distributions, and what calls have in common."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.samples_random import philox
from tilewright.ir import dtype as dt
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.interp import evaluate

ONES = 0xFFFFFFFF
KNOWN = {
    ((0, 0, 0, 0), (0, 0)): "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    ((ONES,) * 4, (ONES,) * 2): "408f276d 41c83b0e a20bc7c6 6d5451fd",
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
    ): "d16cfe09 94fdcceb 5001e420 24126ea1",
}
"""Of the authors' own tests (Random123, kat_vectors): counter and key, and the words."""


def test_the_reference_gives_the_known_answers() -> None:
    for (counter, key), expected in KNOWN.items():
        assert " ".join(f"{w:08x}" for w in philox(counter, key)) == expected


@pytest.mark.fresh_seeds(2)
def test_moments_and_independence(fresh_seed: int) -> None:
    """Within five standard errors each, in f32; a few million to one that a sound generator fails."""
    n, key = 100_000, np.array(fresh_seed, np.uint64)
    u = evaluate(OPERATORS["random_uniform"], key, shape=(n,), stream=1, dtype=dt.f32).astype(np.float64)
    z = evaluate(OPERATORS["random_normal"], key, shape=(n,), stream=2, dtype=dt.f32).astype(np.float64)
    assert u.min() >= 0 and u.max() < 1
    for found, expected, variance in (
        (u.mean(), 1 / 2, 1 / 12),
        ((u**2).mean(), 1 / 3, 4 / 45),
        (z.mean(), 0, 1),
        ((z**2).mean(), 1, 2),
        ((z**4).mean(), 3, 96),
        ((u[1:] - 0.5) @ (u[:-1] - 0.5) / n, 0, 1 / 144),
        ((u - 0.5) @ z / n, 0, 1 / 12),
    ):
        assert abs(found - expected) < 5 * np.sqrt(variance / n)
    counts = np.histogram(u, 64, (0, 1))[0]
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 137  # of 63 degrees of freedom: two in ten million are above


def test_a_clock_gives_other_keys() -> None:
    keys = {int(evaluate(OPERATORS["fresh_key"])) for _ in range(9)}
    assert len(keys) == 9
