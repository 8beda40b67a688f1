"""IREE, compiled for this machine's CPU."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bench.conversion import call, converted
from bench.peers import Peer

PEER = Peer("IREE", "iree", ("iree-base-compiler[onnx]", "iree-base-runtime", "numpy"))
IMPORTED_OPSET = 17


class Adapter:
    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def load(self, model: Path, inputs: Mapping[str, np.ndarray], threads: int) -> None:
        from iree import runtime

        (path,) = converted(model, self._cache, (".vmfb",), _convert)
        if threads > 1:
            runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        config = runtime.Config("local-task" if threads > 1 else "local-sync")
        module = runtime.VmModule.mmap(config.vm_instance, str(path))
        self._context = runtime.SystemContext(config=config)
        self._context.add_vm_module(module)
        public = [n for n in module.function_names if not n.startswith("__") and not n.endswith("$async")]
        self._function = self._context.modules[module.name][public[0]]
        self._inputs = [runtime.asdevicearray(config.device, array) for array in inputs.values()]

    def run(self) -> None:
        self._results = self._function(*self._inputs)

    def outputs(self) -> Sequence[np.ndarray]:
        several = self._results if isinstance(self._results, tuple | list) else [self._results]
        return [result.to_host() for result in several]

    def version(self) -> str:
        from iree.compiler import version

        return str(version.VERSION)


def _convert(model: Path, folder: Path) -> None:
    tools, imported, result = Path(sys.executable).parent, folder / "model.mlir", folder / "model.vmfb"
    opset = ["--opset-version", str(IMPORTED_OPSET)]
    call([tools / "iree-import-onnx", model.resolve(), "-o", imported, *opset], folder, imported)
    options = [
        "--iree-hal-target-device=local",
        "--iree-hal-local-target-device-backends=llvm-cpu",
        "--iree-llvmcpu-target-cpu=host",
    ]
    call([tools / "iree-compile", imported, *options, "-o", result], folder, result)
