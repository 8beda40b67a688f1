"""Drivers of GPUs for tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.machines.drivers import ADAPTER, NAMES, file_of, offer_both
from tilewright.runtime.devices import webgpu

offer_both()


@pytest.fixture(params=NAMES)
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Models for WebGPU run on this driver."""
    yield from on_driver(request.param, monkeypatch)


def on_driver(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """While this goes on, models for WebGPU run on a driver."""
    pytest.importorskip("wgpu")
    if not file_of(name):
        pytest.skip(f"{name} is not installed")
    monkeypatch.setenv(ADAPTER, NAMES[name])
    webgpu.device.cache_clear()
    yield name
    webgpu.device.cache_clear()
