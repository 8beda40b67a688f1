"""Running an exported module of WebAssembly in wasmtime, from Python: the C interface, spoken with its memory."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.exporters.library.tables import DTYPES
from tilewright.runtime.values.dtypes import numpy_dtype

_TENSOR = struct.Struct("<IIii16q")
_UNKNOWN_SIZE = 9


def run_in_wasmtime(path: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the module of a file gives for some inputs."""
    import wasmtime

    engine = wasmtime.Engine()
    store = wasmtime.Store(engine)
    instance = wasmtime.Instance(store, wasmtime.Module(engine, path.read_bytes()), [])
    return _Run(store, instance.exports(store), path.stem).outputs(inputs)


class _Run:
    def __init__(self, store: Any, exports: Any, name: str) -> None:
        self.store, self.exports, self.name = store, exports, name
        self.memory = exports["memory"]

    def call(self, function: str, *arguments: int) -> int:
        found: int = self.exports[f"{self.name}_{function}"](self.store, *arguments)
        return found

    def taken(self, data: bytes | int) -> int:
        """The address of new memory, with these bytes or so many zeros: pages of its own."""
        size = data if isinstance(data, int) else len(data)
        at: int = self.memory.data_len(self.store)
        self.memory.grow(self.store, size // 65536 + 1)
        if isinstance(data, bytes) and data:
            self.memory.write(self.store, data, at)
        return at

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.memory.read(self.store, at, at + size))

    def check(self, status: int, model: int = 0) -> None:
        if status:
            at = self.call("error", model)
            raise RuntimeError(self.read(at, 512).split(b"\0")[0].decode())

    def tensor(self, array: np.ndarray) -> bytes:
        at, kind = self.taken(array.tobytes()), DTYPES.index(array.dtype.name) + 1
        shape = [*array.shape, *[0] * (16 - array.ndim)]
        return _TENSOR.pack(at, array.nbytes, kind, array.ndim, *shape)

    def outputs(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        count = struct.unpack_from("<I", self.read(self.call("info"), 40), 20)[0]
        given = self.taken(b"".join(map(self.tensor, inputs)))
        results, needs, made = self.taken(_TENSOR.size * count), self.taken(20), self.taken(4)
        status = self.call("plan", given, len(inputs), results, count, 1, needs)
        self.check(0 if status == _UNKNOWN_SIZE else status)
        total = struct.unpack("<5I", self.read(needs, 20))[4]
        options = self.taken(struct.pack("<IiiIIIII", 32, 1, 0, 0, self.taken(total), total, 0, 0))
        self.check(self.call("create", options, made))
        (model,) = struct.unpack("<I", self.read(made, 4))
        self.memory.write(self.store, bytes(_TENSOR.size * count), results)
        self.check(self.call("run", model, given, len(inputs), results, count), model)
        return [self.array(results + _TENSOR.size * k) for k in range(count)]

    def array(self, at: int) -> np.ndarray:
        data, _, kind, rank, *shape = _TENSOR.unpack(self.read(at, _TENSOR.size))
        dtype, dims = numpy_dtype(DTYPES[kind - 1]), shape[:rank]
        size = int(np.prod(dims, dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(self.read(data, size), dtype).reshape(dims)
