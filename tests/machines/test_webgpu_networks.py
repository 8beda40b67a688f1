"""Whole networks on both drivers of WebGPU that need no GPU, beside the CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.machines.networks import decoder, encoder, mobilenet, resnet
from tilewright import Session

RNG = np.random.default_rng(4)
IMAGE = RNG.standard_normal((1, 3, 64, 64)).astype(np.float32)
IDS = RNG.integers(0, 50, (2, 12))
NETWORKS: dict[str, tuple[Callable[[], bytes], dict[str, Any], Sequence[Sequence[np.ndarray]]]] = {
    "mobilenet": (lambda: mobilenet(64, 50), {}, [[IMAGE]]),
    "resnet": (lambda: resnet(32, 50, 16), {}, [[IMAGE[..., :32, :32]]]),
    "encoder": (lambda: encoder(2, 64, 4), {}, [[IDS, IDS > 5], [IDS[:1, :7], IDS[:1, :7] >= 0]]),
    "decoder": (
        lambda: decoder(2, 64, 4), {"states": True, "capacity": 32},
        [[IDS[:1, :5]], *([IDS[:1, k : k + 1]] for k in range(5, 9))],
    ),
}  # fmt: skip
"""Each with its options, and calls."""
ERROR = 2e-5
"""Of the largest result. A sum of 1,152 products (the deepest here) is off by 1e-5 of the sum of their absolute values
at most in either order, and by far less in the mean."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_compute_what_they_do_on_the_cpu(name: str, driver: str, tmp_path: Path) -> None:
    make, options, calls = NETWORKS[name]
    session = Session(folder=tmp_path)
    ours, host = (
        tilewright.compile(make(), target=target, placement="device", session=session, **options)
        for target in ("webgpu", "host")
    )
    assert ours.report().placed == (), "all of it runs on the GPU"
    for given in calls:
        for found, expected in zip(ours(*given), host(*given), strict=True):
            assert found.dtype == expected.dtype and found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=0, atol=ERROR * float(np.abs(expected).max()))
    for name in (state.info.name for state in host.states):
        np.testing.assert_allclose(ours.state(name), host.state(name), rtol=0, atol=8 * ERROR)
