"""Parts of a model that the compiler of a vendor has made, and runs."""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.runtime.artifact import EXTERNAL, Artifact
from tilewright.runtime.devices.sizes import SizePlan, value_of
from tilewright.runtime.errors import ArtifactError, DeviceError, OptionError, PluginError, TilewrightError
from tilewright.runtime.values.addresses import memory_of
from tilewright.runtime.values.dtypes import numpy_dtype

_LENGTH = 8
"""Bytes of the length of the description, which stands before it and what the compiler gave."""

_COMPILERS: dict[tuple[str, str], Any] = {}


def register(*compilers: Any) -> None:
    """Let artefacts find these compilers in this process, by name and version. OptionError for what is none."""
    for compiler in compilers:
        name, version = getattr(compiler, "name", None), getattr(compiler, "version", None)
        if not isinstance(name, str) or not isinstance(version, str) or not callable(getattr(compiler, "load", None)):
            raise OptionError(
                f"{compiler!r:.80} is no compiler", hint="it has a name, a version and `load` (docs/external.md)"
            )
        _COMPILERS[name, version] = compiler


def packed(described: dict[str, Any], data: bytes) -> bytes:
    """What an artefact keeps of a part: its sizes as expressions, and what the compiler gave."""
    text = json.dumps(described).encode()
    return len(text).to_bytes(_LENGTH, "little") + text + data


class CompiledPart:
    """Runs a part (an `Executor`)."""

    run_profiled = None

    def __init__(self, artifact: Artifact, installed: Callable[[], Iterator[Any]]) -> None:
        """ArtifactError where its compiler is not here; `installed` are those of plugins."""
        try:
            about = artifact.attached[EXTERNAL]
            self._name, self._version, number = about["compiler"], about["version"], about["object"]
            blob = memoryview(artifact.objects[number]).cast("B")
            end = _LENGTH + int.from_bytes(blob[:_LENGTH], "little")
            found = json.loads(bytes(blob[_LENGTH:end]))
            self._inputs, self._outputs, plan = found["inputs"], found["outputs"], found["plan"]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            what = f"a part that a compiler made is damaged ({error!r})"
            raise ArtifactError(what, hint="compile the model again") from error
        self._data = blob[end:]
        self._compiler = self._found(installed)
        self.plan = None if plan is None else SizePlan(plan)
        self._dims_count = artifact.dims_count
        self._lock = threading.Lock()
        self._run: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]] | None = None

    def _found(self, installed: Callable[[], Iterator[Any]]) -> Any:
        key = (self._name, self._version)
        if key in _COMPILERS:
            return _COMPILERS[key]
        known = {(str(getattr(c, "name", "")), str(getattr(c, "version", ""))): c for c in installed()}
        if key in known:
            return known[key]
        others = sorted({version for name, version in (*known, *_COMPILERS) if name == self._name})
        here = f"of which version {', '.join(others)} is here" if others else "which is not here"
        raise ArtifactError(
            f"parts of the model were made by the compiler '{self._name}' {self._version}, {here}",
            hint="install the plugin that brings it, give it to tilewright.runtime.devices.external.register, or "
            "compile the model again",
        )

    def run(self, call: int) -> int:
        """Run on the memory whose addresses stand at `call`."""
        _, inputs, outputs, _, _, _, dims, _ = (ctypes.c_void_p * 8).from_address(call)
        known = tuple((ctypes.c_int64 * self._dims_count).from_address(dims or 0)) if self._dims_count else ()
        given = _tensors(inputs, self._inputs, known)
        for array in given:
            array.flags.writeable = False
        who = f"the compiler '{self._name}' {self._version}"
        with self._lock:
            try:
                if self._run is None:
                    self._run = self._compiler.load(bytes(self._data))
                found = self._run(given)
            except (TilewrightError, MemoryError):
                self._run = None
                raise
            except Exception as error:
                self._run = None
                raise DeviceError(
                    f"a part of {who} failed: {type(error).__name__}: {error}",
                    hint="try again, use smaller inputs, or compile the model without the plugin",
                ) from error
            except BaseException:  # after an interrupt, too, its state is not known
                self._run = None
                raise
        wanted = _tensors(outputs, self._outputs, known)
        _check(who, found, wanted)
        for target, array in zip(wanted, found, strict=True):
            target[...] = array
        return 0

    def create_pool(self, threads: int, spin_ns: int) -> int | None:
        return None

    def destroy_pool(self, address: int) -> None:
        raise AssertionError("there is no pool")


def _tensors(table: int | None, types: Sequence[Any], dims: Sequence[int]) -> list[np.ndarray]:
    """The arrays whose addresses stand in a table; types are a dtype and the expressions of a shape."""
    known = [(numpy_dtype(dtype), [value_of(n, dims) for n in shape]) for dtype, shape in types]
    memory = memory_of(table, [prod(shape) * dtype.itemsize for dtype, shape in known])
    return [array.view(dtype).reshape(shape) for array, (dtype, shape) in zip(memory, known, strict=True)]


def _check(who: str, found: object, wanted: Sequence[np.ndarray]) -> None:
    """PluginError for results that are others than the part has."""
    if not isinstance(found, Sequence) or not all(isinstance(array, np.ndarray) for array in found):
        what = f"{type(found).__name__}, and no sequence of arrays"
    elif len(found) != len(wanted):
        what = f"{len(found)} results in place of {len(wanted)}"
    else:
        pairs = [(f"{a.dtype}{[*a.shape]}", f"{w.dtype}{[*w.shape]}") for a, w in zip(found, wanted, strict=True)]
        wrong = next(((k, *pair) for k, pair in enumerate(pairs) if pair[0] != pair[1]), None)
        if wrong is None:
            return
        what = f"{wrong[1]} as result {wrong[0]} in place of {wrong[2]}"
    raise PluginError(f"{who} gave {what}", hint="report it to the authors of the plugin")
