"""What many tests of quantisation begin with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.quantization import times
from tests.quantization.networks import classifier, samples


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    times.always_faster(monkeypatch)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    onnx.save(classifier(), tmp_path / "model.onnx")
    x, labels = samples(400)
    np.savez(tmp_path / "data.npz", x=x, labels=labels)
    return tmp_path
