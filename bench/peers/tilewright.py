"""Ours, from the checkout that this file belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.peers import Peer

PEER = Peer("tilewright", "tilewright", ("numpy", "ml_dtypes", "llvmlite", "onnx", "click", "rich"))


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import tilewright
        from tilewright.session import Session

        self._model = tilewright.compile(model, threads=threads, session=Session(self._cache / "tilewright"))
        self._inputs = [inputs[info.name] for info in self._model.inputs]

    def run(self) -> None:
        self._results = self._model(*self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        return self._results

    def version(self) -> str:
        import tilewright

        return tilewright.__version__
