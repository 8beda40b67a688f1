"""MNN, told to compute in float32."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from bench.conversion import call, converted
from bench.peers import Peer

# its converter reads ONNX files that `onnx` wrote, and fails with an older protobuf than that was built with
PEER = Peer("MNN", "mnn", ("MNN", "onnx", "protobuf>=6.31", "numpy"))


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import MNN
        import onnx

        graph = onnx.load(model, load_external_data=False).graph
        (path,) = converted(model, self._cache, (".mnn",), _convert)
        manager = MNN.nn.create_runtime_manager(
            ({"backend": 0, "precision": "high", "numThread": threads, "memory": "normal", "power": "high"},)
        )
        self._module = MNN.nn.load_module_from_file(
            str(path), list(inputs), [output.name for output in graph.output], runtime_manager=manager
        )
        self._manager, self._expr = manager, MNN.expr
        self._inputs = [_variable(self._expr, array) for array in inputs.values()]

    def run(self) -> None:
        self._results = self._module.onForward(self._inputs)
        for result in self._results:
            result.read()  # results are computed when they are read

    def outputs(self) -> Sequence[np.ndarray]:
        return [self._plain(result) for result in self._results]

    def _plain(self, result):  # type: ignore[no-untyped-def]
        """A result whose channels are blocked is read as they are in the model."""
        expr = self._expr
        blocked = result.data_format == expr.NC4HW4
        return np.array((expr.convert(result, expr.NCHW) if blocked else result).read())

    def version(self) -> str:
        return metadata.version("mnn")


def _convert(model: Path, folder: Path) -> None:
    result = folder / "model.mnn"
    command = ["-f", "ONNX", "--modelFile", model.resolve(), "--MNNModel", result, "--bizCode", "bench"]
    call([Path(sys.executable).parent / "mnnconvert", *command], folder, result)


def _variable(expr, array):  # type: ignore[no-untyped-def]
    """An input; MNN has no 64-bit integers."""
    number = np.int32 if array.dtype.kind in "iub" else np.float32
    made = expr.placeholder(list(array.shape), expr.NCHW, expr.int if number is np.int32 else expr.float)
    made.write(np.ascontiguousarray(array, number))
    return made
