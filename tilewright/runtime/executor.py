"""What runs the code of an artefact: native code of this process, or a machine that a Python program drives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from math import prod
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.artifact import EXTERNAL, Artifact, TensorInfo
from tilewright.runtime.errors import ArtifactError, PluginError, TilewrightError
from tilewright.runtime.storage.loader import NativeCode
from tilewright.runtime.values.addresses import bytes_at
from tilewright.runtime.values.dtypes import numpy_dtype

GROUP = "tilewright.plugins"
"""Entry points of this group name objects whose `back_ends` have a `name` and `executor(artifact)`."""


class Executor(Protocol):
    """Code that can be run, with the functions that `artifact` describes: they take addresses and give 0, or the number
    of an error. `plan` is None for fixed shapes, `run_profiled` for code that does not count cycles."""

    @property
    def run(self) -> Callable[[int], int]: ...

    @property
    def plan(self) -> Callable[..., int] | None: ...

    @property
    def run_profiled(self) -> Callable[..., int] | None: ...

    def create_pool(self, threads: int, spin_ns: int) -> int | None: ...

    def destroy_pool(self, address: int) -> None: ...


def keeps_memory(code: Executor) -> bool:
    """Whether code has memory of its own, in which it keeps states and what parts hand on (a `DeviceExecutor`)."""
    return hasattr(code, "run_keeping")


NATIVE = ("cpu", "accelerator")
"""Kinds of machines whose artefacts are native code; of simulated ones it is that of the machine that compiled."""

MakeExecutor = Callable[[Artifact], Executor]


def executor_of(artifact: Artifact, make: MakeExecutor | None) -> Executor:
    """What runs an artefact: made by `make`, native code, or by the back end of a plugin that is installed;
    ArtifactError where there is none for the kind of machine."""
    kind = artifact.target.kind
    if make is not None:
        return _TheirCode.made(make, artifact)
    if kind in NATIVE:
        return NativeCode(artifact)
    if kind == "gpu":
        from tilewright.runtime.devices.webgpu import GpuExecutor

        return GpuExecutor(artifact)
    if kind == "cuda":
        from tilewright.runtime.devices.cuda import CudaExecutor

        return CudaExecutor(artifact)
    if kind == EXTERNAL:
        from tilewright.runtime.devices.external import CompiledPart

        return CompiledPart(artifact, lambda: _installed("compilers"))
    for back_end in _installed("back_ends"):
        if getattr(back_end, "name", None) == kind:
            return _TheirCode.made(back_end.executor, artifact)
    raise ArtifactError(
        f"the artefact was made for {artifact.target.cpu}, a machine of the kind '{kind}', which nothing here runs",
        hint="install the plugin that brings its back end, or give the argument executor",
    )


def _installed(kind: str) -> Iterator[Any]:
    """Back ends, or compilers, of plugins that can be imported."""
    import importlib.metadata

    for entry_point in importlib.metadata.entry_points(group=GROUP):
        try:
            yield from getattr(entry_point.load(), kind)
        except Exception:  # whatever importing foreign code may raise
            continue


class _TheirCode:
    """Code that others run: what they raise and is no error of ours becomes a PluginError, which names the kind."""

    def __init__(self, code: Executor, kind: str) -> None:
        self._code, self._kind = code, kind
        self.run = self._theirs(code.run)
        self.plan = None if code.plan is None else self._theirs(code.plan)
        if (keeping := getattr(code, "run_keeping", None)) is not None:  # a `DeviceExecutor`
            handing: Any = code
            self.run_keeping, self.run_handing = self._theirs(keeping), self._theirs(handing.run_handing)
            self.hands_over = bool(handing.hands_over)
        self.run_profiled = None if code.run_profiled is None else self._theirs(code.run_profiled)
        self.create_pool = self._theirs(code.create_pool)
        self.destroy_pool = self._theirs(code.destroy_pool)

    @classmethod
    def made(cls, make: MakeExecutor, artifact: Artifact) -> Executor:
        """What `make` makes for an artefact; native code as it is, which is ours."""
        kind = artifact.target.kind
        with _faults_of(f"what makes the executor for machines of the kind '{kind}' of a plugin"):
            code = make(artifact)
            return code if isinstance(code, NativeCode) else cls(code, kind)

    def _theirs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any) -> Any:
            with _faults_of(f"the executor of a plugin for machines of the kind '{self._kind}'"):
                return function(*args)

        return call


@contextmanager
def _faults_of(who: str) -> Iterator[None]:
    try:
        yield
    except (TilewrightError, MemoryError):
        raise
    except NotImplementedError as error:
        what = f"{who} does not support this: {error or 'it does not say what'}"
        raise PluginError(what, hint="ask the authors of the plugin for it") from error
    except Exception as error:
        what = f"{who} failed: {type(error).__name__}: {error}"
        raise PluginError(what, hint="report it to the authors of the plugin") from error


class DrivenCode:
    """Code that a Python function runs: a simulator, or the driver of a device. `execute` takes the memory of the
    inputs, the outputs, the constants and the arena as arrays, and fills the outputs. Shapes are fixed."""

    plan = None
    run_profiled = None

    def __init__(
        self,
        artifact: Artifact,
        execute: Callable[[Sequence[np.ndarray], Sequence[np.ndarray], np.ndarray, np.ndarray], None],
    ) -> None:
        if artifact.static_plan is None:
            raise ArtifactError(
                f"this code for {artifact.target.cpu} needs fixed shapes", hint="compile the model with shapes=..."
            )
        self._execute = execute
        self._inputs, self._outputs = artifact.inputs, artifact.outputs
        self._constant_bytes = memoryview(artifact.constants).nbytes
        self._arena_bytes = artifact.static_plan.arena

    def run(self, call: int) -> int:
        """Run on the memory whose addresses stand at `call`."""
        _, inputs, outputs, constants, arena, *_ = (ctypes.c_void_p * 8).from_address(call)
        self._execute(
            _tensors(inputs, self._inputs),
            _tensors(outputs, self._outputs),
            bytes_at(constants, self._constant_bytes),
            bytes_at(arena, self._arena_bytes),
        )
        return 0

    def create_pool(self, threads: int, spin_ns: int) -> int | None:
        return None

    def destroy_pool(self, address: int) -> None:
        raise AssertionError("there is no pool")


def _tensors(table: int | None, infos: Sequence[TensorInfo]) -> list[np.ndarray]:
    """Tensors of fixed shapes, whose addresses stand in a table."""
    addresses = (ctypes.c_void_p * len(infos)).from_address(table or 0) if infos else ()
    found = []
    for address, info in zip(addresses, [info.parts for info in infos], strict=True):
        dtype, shape = numpy_dtype(info.dtype), [int(n) for n in info.shape]
        found.append(bytes_at(address, prod(shape) * dtype.itemsize).view(dtype).reshape(shape))
    return found
