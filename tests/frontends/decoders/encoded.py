"""What small encoder-decoders of tests read and write."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.frontends.decoders.checkpoints import tensor

RECORDED = Path(__file__).with_name("recorded_encoders.json")
READ = [3, 40, 7, 7, 21, 8, 44, 13, 5, 39, 31, 12]
IDS = [2, 9, 17, 33, 4, 45, 8]


def cases() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found


def features(config: Mapping[str, Any]) -> np.ndarray:
    """f32[1, mels, frames]: as many frames as there are positions for."""
    return tensor("features", (1, config["num_mel_bins"], 2 * config["max_source_positions"]))


def read(config: Mapping[str, Any]) -> np.ndarray:
    """What the encoder reads."""
    return features(config) if config["model_type"] == "whisper" else np.array([READ])
