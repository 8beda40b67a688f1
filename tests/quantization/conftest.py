"""What many tests of quantisation begin with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.quantization.networks import classifier, samples
from tilewright.quantization import run as room
from tilewright.quantization.decision import timing


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests are of what is chosen by measured times, and not of how fast this machine is now."""

    def gains(base: Any, other: Any) -> dict[str, tuple[float, float]]:
        return {name: (1e-5, 1e-4) for name in base[0].units}

    def compare(*args: Any) -> timing.Comparison:
        return timing.Comparison(2e-4, 1e-4, 1.0)

    monkeypatch.setattr(timing, "gains", gains)
    monkeypatch.setattr(room, "compare", compare)
    monkeypatch.setattr(timing, "ROUNDS", 1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    onnx.save(classifier(), tmp_path / "model.onnx")
    x, labels = samples(400)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return tmp_path
