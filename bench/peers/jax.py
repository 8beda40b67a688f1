"""JAX: the graph as a function, compiled by XLA for the CPU. Few operators, those of the single-operator models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.peers import Peer


def _variables(threads: int) -> Mapping[str, str]:
    """XLA takes as many threads as there are CPUs, or one."""
    return {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"} if threads == 1 else {}


PEER = Peer("JAX", "jax", ("jax[cpu]", "onnx", "numpy"), _variables)


class Adapter:
    def __init__(self, cache: Path) -> None: ...

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        import jax
        import onnx

        from bench.onnx_in_jax import function_of

        self._jax = jax
        self._inputs = [jax.numpy.asarray(array) for array in inputs.values()]
        self._function = jax.jit(function_of(onnx.load(model))).lower(*self._inputs).compile()

    def run(self) -> None:
        self._results = self._jax.block_until_ready(self._function(*self._inputs))

    def outputs(self) -> Sequence[np.ndarray]:
        return [np.asarray(result) for result in self._results]

    def version(self) -> str:
        return str(self._jax.__version__)
