"""Running an exported shared library through its C interface, from Python."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.exporters.library.tables import DTYPES, MOST_AXES
from tilewright.runtime.values.dtypes import numpy_dtype

(OK, BAD_ARGUMENT, BAD_INPUT, FAILED, NO_MEMORY, BAD_WEIGHTS, WRONG_CPU, BUSY, STOPPED, UNKNOWN_SIZE) = range(10)


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("dims", ctypes.POINTER(ctypes.c_char_p)),
    )  # fmt: skip


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t), ("dtype", ctypes.c_int), ("rank", ctypes.c_int32),
        ("shape", ctypes.c_int64 * MOST_AXES),
    )  # fmt: skip

    @classmethod
    def of(cls, array: np.ndarray) -> Tensor:
        dtype = DTYPES.index(array.dtype.name) + 1
        return cls(array.ctypes.data, array.nbytes, dtype, array.ndim, (ctypes.c_int64 * MOST_AXES)(*array.shape))

    def array(self) -> np.ndarray:
        """A copy of what it holds."""
        dtype, shape = numpy_dtype(DTYPES[self.dtype - 1]), tuple(self.shape[: self.rank])
        count = int(np.prod(shape, dtype=np.int64))
        raw = ctypes.string_at(self.data, count * dtype.itemsize) if count else b""
        return np.frombuffer(raw, dtype).reshape(shape).copy()


class ModelInfo(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32), ("name", ctypes.c_char_p), ("target", ctypes.c_char_p), ("producer", ctypes.c_char_p),
        ("input_count", ctypes.c_size_t), ("output_count", ctypes.c_size_t), ("state_count", ctypes.c_size_t),
        ("inputs", ctypes.POINTER(Info)), ("outputs", ctypes.POINTER(Info)), ("states", ctypes.POINTER(Info)),
        ("weight_bytes", ctypes.c_size_t),
    )  # fmt: skip


class Needs(ctypes.Structure):
    _fields_ = tuple((n, ctypes.c_size_t) for n in ("model", "arena", "scratch", "outputs", "total"))


PROCEED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Options(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_size_t), ("threads", ctypes.c_int32), ("check_weights", ctypes.c_int32),
        ("weights", ctypes.c_char_p), ("memory", ctypes.c_void_p), ("memory_bytes", ctypes.c_size_t),
        ("proceed", PROCEED), ("user", ctypes.c_void_p),
    )  # fmt: skip


class CError(Exception):
    """A status and a text of the library."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status, self.text = status, text


class CModel:
    """A model of a library: `run` takes and gives arrays."""

    def __init__(self, path: Path, name: str, *, create: bool = True, **options: Any) -> None:
        self.library, self.name = ctypes.CDLL(str(path)), name
        self.made = ctypes.c_void_p()
        self._function("info").restype = ctypes.POINTER(ModelInfo)
        self._function("error").restype = ctypes.c_char_p
        self.info = self._function("info")().contents
        self.outputs = (Tensor * max(1, self.info.output_count))()
        if create:
            # Kept, as the library calls the functions in it for as long as it is there.
            self.given = Options(**{"size": ctypes.sizeof(Options), "threads": 1, **options})
            self.check(self._function("create")(ctypes.byref(self.given), ctypes.byref(self.made)))

    def _function(self, name: str) -> Any:
        return getattr(self.library, f"{self.name}_{name}")

    def check(self, status: int) -> None:
        if status:
            raise CError(status, self._function("error")(self.made).decode())

    def run(self, *arrays: np.ndarray, out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        inputs = (Tensor * max(1, len(arrays)))(*map(Tensor.of, arrays))
        outputs = self.outputs if out is None else (Tensor * len(out))(*map(Tensor.of, out))
        count = ctypes.c_size_t(self.info.output_count)
        self.check(self._function("run")(self.made, inputs, ctypes.c_size_t(len(arrays)), outputs, count))
        return [outputs[k].array() for k in range(self.info.output_count)]

    def plan(self, *shapes: np.ndarray, threads: int = 1) -> tuple[Needs, list[tuple[int, ...]]]:
        inputs = (Tensor * max(1, len(shapes)))(*map(Tensor.of, shapes))
        outputs, needs = (Tensor * max(1, self.info.output_count))(), Needs()
        counts = ctypes.c_size_t(len(shapes)), ctypes.c_size_t(self.info.output_count)
        status = self._function("plan")(inputs, counts[0], outputs, counts[1], threads, ctypes.byref(needs))
        if status:
            raise CError(status, self._function("error")(None).decode())
        return needs, [tuple(outputs[k].shape[: outputs[k].rank]) for k in range(self.info.output_count)]

    def state(self, index: int) -> np.ndarray:
        found = Tensor()
        self.check(self._function("state")(self.made, ctypes.c_size_t(index), ctypes.byref(found)))
        return found.array()

    def reset(self) -> None:
        self.check(self._function("reset")(self.made))

    def close(self) -> None:
        self._function("destroy")(self.made)
        self.made = ctypes.c_void_p()
