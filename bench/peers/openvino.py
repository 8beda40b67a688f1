"""OpenVINO's CPU plugin, told to compute in float32 as the model says (its default may be bfloat16)."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.peers import Peer

PEER = Peer("OpenVINO", "onnx", ("openvino", "numpy"), runtime=("openvino",))


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache / "openvino"

    def files(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> Sequence[Path]:
        """The model, and the blob that loading it once leaves in the cache: later processes read that alone."""
        shutil.rmtree(self._cache, ignore_errors=True)
        self.load(model, inputs, threads)
        return [model, *sorted(self._cache.glob("*.blob"))]

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import openvino

        core = openvino.Core()
        core.set_property({"CACHE_DIR": str(self._cache)})
        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
        }
        self._compiled = core.compile_model(str(model), "CPU", config)
        self._request = self._compiled.create_infer_request()
        self._inputs = {
            port: inputs[next(n for n in port.names if n in inputs)] for port in self._compiled.inputs
        }

    def run(self) -> None:
        self._results = self._request.infer(self._inputs, share_inputs=True, share_outputs=True)

    def outputs(self) -> Sequence[np.ndarray]:
        return [self._results[port] for port in self._compiled.outputs]

    def version(self) -> str:
        import openvino

        return openvino.__version__.partition("-")[0]
