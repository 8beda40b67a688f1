"""Times that are given in place of measured ones: tests are of what is chosen by times, and not of how fast this
machine is now."""

from __future__ import annotations

from typing import Any

import pytest

from tilewright.quantization import run as room
from tilewright.quantization.decision import timing


def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each layer gains a tenth of its time in each smaller type, and each model as a whole half of it."""

    def gains(base: Any, other: Any) -> dict[str, tuple[float, float]]:
        return {name: (1e-5, 1e-4) for name in base[0].units}

    def compare(*args: Any) -> timing.Comparison:
        return timing.Comparison(2e-4, 1e-4, 1.0)

    monkeypatch.setattr(timing, "gains", gains)
    monkeypatch.setattr(room, "compare", compare)
    monkeypatch.setattr(timing, "ROUNDS", 1)
