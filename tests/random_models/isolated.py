"""ONNX Runtime in a process of its own: random models end it by divisions by zero, endless work and much memory."""

from __future__ import annotations

import pickle
import resource
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import onnxruntime as ort

SECONDS = 20
BYTES = 4 << 30


class EndedError(Exception):
    """ONNX Runtime has ended its process, or did not answer."""


class Isolated:
    """A process that evaluates models, replaced when it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """What ONNX Runtime gives; RuntimeError with its message, EndedError."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.random_models.isolated"]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        found = self._ask(self._process, (model, dict(arrays)))
        if isinstance(found, str):
            raise RuntimeError(found)
        return found

    def _ask(self, process: subprocess.Popen[bytes], question: Any) -> Any:
        assert process.stdin and process.stdout
        try:
            pickle.dump(question, process.stdin)
            process.stdin.flush()
            ready, _, _ = select.select([process.stdout], [], [], SECONDS)
            if ready:
                return pickle.load(process.stdout)
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            pass
        process.kill()
        process.communicate()
        self._process = None
        raise EndedError(f"ONNX Runtime ended with exit code {process.returncode}")


@cache
def onnxruntime_process() -> Isolated:
    return Isolated()


def evaluated(model: bytes, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    found = session.run(None, dict(arrays))
    if not all(isinstance(a, np.ndarray) for a in found):
        raise TypeError("there are sequences or maps among the results")
    return found


def main() -> None:
    """Answer questions until there are no more."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            model, arrays = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: Any = evaluated(model, arrays)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        pickle.dump(answer, sys.stdout.buffer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
