"""ONNX Runtime on its CPU provider with all of its optimisations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.peers import Peer

PEER = Peer("ONNX Runtime", "onnx", ("onnxruntime", "numpy"), runtime=("onnxruntime",))


class Adapter:
    def __init__(self, cache: Path) -> None: ...

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._inputs = dict(inputs)

    def run(self) -> None:
        self._results = self._session.run(None, self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        return self._results

    def version(self) -> str:
        import onnxruntime

        return onnxruntime.__version__
