"""PyTorch, operator by operator (eager). The program is NAME.pt2 beside the ONNX file, as `zoo` leaves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import Peer, openmp_variables

PACKAGES = ("torch", "torchvision", "timm", "transformers", "onnx", "onnxscript", "numpy")
PEER = Peer("PyTorch", "torch", PACKAGES, openmp_variables)


class Adapter:
    def __init__(self, cache: Path) -> None: ...

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        program = model.with_suffix(".pt2")
        if not program.exists():
            raise FileNotFoundError(
                f"there is no {program.name}: `python -m bench zoo {model.stem}` makes it"
            )
        self._torch = torch
        self._module = self.prepare(torch.export.load(program).module())
        self._inputs = [torch.from_numpy(array) for array in inputs.values()]

    def prepare(self, module: Any) -> Callable[..., Any]:
        """What is called; other ways to run PyTorch replace this."""
        return module  # type: ignore[no-any-return]

    def run(self) -> None:
        with self._torch.no_grad():
            self._results = self._module(*self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        several = self._results if isinstance(self._results, tuple | list) else [self._results]
        return [result.numpy() for result in several]

    def version(self) -> str:
        return str(self._torch.__version__).partition("+")[0]
