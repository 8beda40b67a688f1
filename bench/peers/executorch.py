"""ExecuTorch with its XNNPACK delegate, on what its exporter makes of NAME.pt2 beside the ONNX file.

Its Python binding takes and gives PyTorch's tensors, so that PyTorch is imported; its C++ runtime does without.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from bench.conversion import call, converted
from bench.peers import Peer, openmp_variables

PACKAGES = ("executorch", "torch", "numpy")
PEER = Peer("ExecuTorch", "executorch", PACKAGES, openmp_variables, runtime=("executorch/extension", "torch"))
CONVERTER = """
import sys, torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
program = torch.export.load(sys.argv[1])
made = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
with open(sys.argv[2], "wb") as file:
    made.write_to_file(file)
"""


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def files(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> Sequence[Path]:
        return converted(model, self._cache, (".pte",), _convert)

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import torch
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        path = model if model.suffix == ".pte" else self.files(model, inputs, threads)[0]
        torch.set_num_threads(threads)
        if hasattr(portable_lib, "_threadpool_reset"):
            portable_lib._threadpool_reset(threads)
        self._method = Runtime.get().load_program(path).load_method("forward")
        self._inputs = [torch.from_numpy(array) for array in inputs.values()]

    def run(self) -> None:
        self._results = self._method.execute(self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        return [result.numpy() for result in self._results]

    def version(self) -> str:
        return metadata.version("executorch")


def _convert(model: Path, folder: Path) -> None:
    program, result = model.with_suffix(".pt2"), folder / "model.pte"
    if not program.exists():
        raise FileNotFoundError(f"there is no {program.name}: ExecuTorch reads no ONNX")
    call([sys.executable, "-c", CONVERTER, program.resolve(), result], folder, result)
