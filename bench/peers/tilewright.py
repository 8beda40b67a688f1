"""Ours, from the checkout that this file belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.peers import Peer

PACKAGES = ("numpy", "ml_dtypes", "llvmlite", "onnx", "click", "rich")
PEER = Peer("tilewright", "tilewright", PACKAGES, runtime=("tilewright/runtime",))


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def files(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> Sequence[Path]:
        """The compiled model."""
        self.load(model, inputs, threads)
        artefact = self._cache / f"{model.stem}.tw"
        self._model.save(artefact)
        return [artefact]

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        """A compiled model is mapped, any other one compiled."""
        import tilewright

        if model.suffix == ".tw":
            self._model = tilewright.load(model, threads=threads, mmap=True)
        else:
            from tilewright.session import Session

            session = Session(self._cache / "tilewright")
            self._model = tilewright.compile(model, threads=threads, session=session)
        self._inputs = [inputs[info.name] for info in self._model.inputs]

    def run(self) -> None:
        self._results = self._model(*self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        return self._results

    def version(self) -> str:
        import tilewright

        return tilewright.__version__
