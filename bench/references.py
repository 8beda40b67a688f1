"""What models should give: the answers of ONNX Runtime without optimisations."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def by_onnxruntime(model: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs in order; ONNX Runtime is installed beside ours here."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return [np.asarray(array) for array in session.run(None, dict(inputs))]
