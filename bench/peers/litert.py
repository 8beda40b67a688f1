"""LiteRT (TensorFlow Lite) with XNNPACK, on what LiteRT Torch makes of NAME.pt2 beside the ONNX file."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from bench.conversion import call, converted
from bench.peers import Peer

PEER = Peer("LiteRT", "litert", ("ai-edge-litert", "litert-torch", "numpy"), runtime=("ai_edge_litert",))
CONVERTER = """
import sys, litert_torch, torch
program = torch.export.load(sys.argv[1])
litert_torch.convert(program.module(), *program.example_inputs).export(sys.argv[2])
"""


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def files(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> Sequence[Path]:
        return converted(model, self._cache, (".tflite",), _convert)

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        path = model if model.suffix == ".tflite" else self.files(model, inputs, threads)[0]
        self._interpreter = Interpreter(str(path), num_threads=threads)
        self._runner = self._interpreter.get_signature_runner()
        details = self._runner.get_input_details()
        pairs = zip(sorted(details, key=_number), inputs.values(), strict=True)
        self._inputs = {name: array.astype(details[name]["dtype"], copy=False) for name, array in pairs}

    def run(self) -> None:
        self._results = self._runner(**self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        return [self._results[name] for name in sorted(self._results, key=_number)]

    def version(self) -> str:
        return metadata.version("ai-edge-litert")


def _number(name: str) -> int:
    """Arguments and results are called args_N and output_N."""
    return int(name.rpartition("_")[2])


def _convert(model: Path, folder: Path) -> None:
    program, result = model.with_suffix(".pt2"), folder / "model.tflite"
    if not program.exists():
        raise FileNotFoundError(f"there is no {program.name}: LiteRT reads no ONNX")
    call([sys.executable, "-c", CONVERTER, program.resolve(), result], folder, result)
