"""Links an artefact's object code into the process and finds its functions."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

from tilewright.runtime import staged
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import ArtifactError, ExecutionError
from tilewright.runtime.storage.objects import object_symbols

_RECOMPILE = "compile the model again"

_POINTER = ctypes.c_void_p
# Function prototypes of this kind release the GIL during the call.
_PLAN = ctypes.CFUNCTYPE(ctypes.c_int32, *[_POINTER] * 5)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER)
_RUN_PROFILED = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER)
_WITHOUT_RESULT = ctypes.CFUNCTYPE(None, _POINTER)
_POOL_CREATE = ctypes.CFUNCTYPE(_POINTER, ctypes.c_int32, _POINTER, ctypes.c_int64)


class NativeCode:
    """The linked functions of an artefact; their memory lives as long as this object. The code is linked anew, or is
    that of the artefact `beside`, which has the same.

    `plan` and `run` are C functions as `artifact` describes them; `plan` is None for a static model,
    `run_profiled` for one that was compiled without it.
    """

    def __init__(self, artifact: Artifact, beside: NativeCode | None = None) -> None:
        if beside is None:
            llvm = llvm_binding()
            check_target(artifact.target, host_target())
        self._engine: Any = _link(llvm, artifact.objects) if beside is None else beside._engine
        self.run = _RUN(self._required(artifact.run_symbol))
        self.plan = None if artifact.static_plan else _PLAN(self._required(artifact.plan_symbol))
        profiled = self._address(artifact.run_profiled_symbol)
        self.run_profiled = _RUN_PROFILED(profiled) if profiled else None
        create = self._address("tw_pool_create")
        self._create = _POOL_CREATE(create) if create else None
        self._destroy = _WITHOUT_RESULT(self._required("tw_pool_destroy")) if create else None

    def create_pool(self, threads: int, spin_ns: int) -> int | None:
        """A new native thread pool, or None when the code brings none; ExecutionError without memory."""
        if self._create is None:
            return None
        address = self._create(threads, None, spin_ns)
        if not address:
            raise ExecutionError(
                f"no memory for a pool of {threads} threads", hint="load the model with fewer threads"
            )
        return int(address)

    def destroy_pool(self, address: int) -> None:
        """End the pool's threads; no job may be running on it."""
        assert self._destroy is not None
        self._destroy(address)

    def _required(self, symbol: str) -> int:
        address = self._address(symbol)
        if not address:
            raise ArtifactError(f"the artefact's code lacks the function {symbol or 'without a name'}", hint=_RECOMPILE)
        return address

    def _address(self, symbol: str) -> int:
        """0 where there is none; LLVM ends the process when it is asked for a name that is empty, as one is for it
        that begins with a null character."""
        is_name = symbol and "\0" not in symbol
        return self._engine.address(symbol) if is_name else 0


class StepsCode:
    """The linked functions of the native steps of a program, in the code of an artefact: `run`, by the number of a
    step, takes the address of a frame and gives how it went; `clear` lets go of all values in a frame, `free` frees its
    memory, and `release` gives back a block."""

    def __init__(self, code: NativeCode, program: staged.program.StagedProgram, parts: Sequence[str]) -> None:
        """`parts` are the names of the parts' code. ArtifactError where the steps were made for others."""
        steps = staged.program.steps_within(program.steps)
        native = [step for step in steps if isinstance(step, staged.program.RunNative)]
        self._code = code
        suffix = program.native_suffix(parts)
        self.run = {s.function: _RUN(code._required(f"tw_steps_{s.function}{suffix}")) for s in native}
        self.clear, self.free, self.release = (
            _WITHOUT_RESULT(code._required(f"tw_steps_{name}{suffix}")) for name in ("clear", "free", "release")
        )


def host_target() -> TargetInfo:
    """This machine: its triple, CPU name and all features it has."""
    llvm = llvm_binding()
    features = llvm.get_host_cpu_features()
    return TargetInfo(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=tuple(sorted(name for name, present in features.items() if present)),
    )


def check_target(target: TargetInfo, host: TargetInfo) -> None:
    """ArtifactError when `host` cannot run code made for `target`, naming what it lacks."""
    made_for, here = _platform(target.triple), _platform(host.triple)
    if made_for != here:
        raise ArtifactError(
            f"the artefact was made for {' '.join(made_for)} ({target.cpu}); "
            f"this machine is {' '.join(here)}",
            hint="compile the model on this machine, or for it with the option target",
        )
    missing = sorted(set(target.features) - set(host.features))
    if missing:
        raise ArtifactError(
            f"the artefact was made for {target.cpu} and needs CPU features that this {host.cpu} lacks: "
            f"{', '.join(missing)}",
            hint="compile the model on this machine, or for it with the option target",
        )


def _platform(triple: str) -> tuple[str, str]:
    """Architecture and operating system of a triple, in one spelling."""
    parts = triple.lower().split("-")
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(parts[0], parts[0])
    for system in ("linux", "windows", "freebsd"):
        if any(part.startswith(system) for part in parts[1:]):
            return arch, system
    if any(part.startswith(("darwin", "macos")) for part in parts[1:]):
        return arch, "macos"
    return arch, "-".join(parts[1:])


def llvm_binding() -> Any:
    """llvmlite's binding, imported when the first model is loaded: it takes longer than all the rest."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


class _Linked:
    """Objects that are linked within the process, and in its memory as long as this is.

    Each lies in one block of memory: sections that lie apart are out of each other's reach, wherever the process has
    only small pieces of free memory between large ones (caches, say), and LLVM's older linker then ends the process.
    """

    _NAME = "artefact"

    def __init__(self, llvm: Any, blobs: Sequence[bytes]) -> None:
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine()
        self._jit = llvm.create_lljit_compiler(machine, use_jit_link=True, suppress_errors=True)
        # the first library that has them opens the process's own symbols to LLVM
        self._held = [llvm.JITLibraryBuilder().add_current_process().link(self._jit, "process")]
        _check_objects(llvm, blobs)
        library = llvm.JITLibraryBuilder().add_current_process()
        for blob in blobs:
            library.add_object_img(blob)
        self._held.append(library.link(self._jit, self._NAME))

    def address(self, symbol: str) -> int:
        """Of a function; 0 where there is none."""
        try:
            found = self._jit.lookup(self._NAME, symbol)
        except RuntimeError:
            return 0
        self._held.append(found)
        return int(found[symbol])


def _link(llvm: Any, objects: Iterable[bytes | memoryview]) -> _Linked:
    blobs = [bytes(blob) for blob in objects]
    try:
        return _Linked(llvm, blobs)
    except RuntimeError as error:
        raise ArtifactError(f"the artefact's code cannot be linked: {error}", hint=_RECOMPILE) from error


def _check_objects(llvm: Any, blobs: Iterable[bytes]) -> None:
    """ArtifactError where linking would end the process: no object files, or symbols nobody defines."""
    try:
        symbols = [object_symbols(blob) for blob in blobs]
    except ValueError as error:
        raise ArtifactError(f"the artefact's code cannot be linked: {error}", hint=_RECOMPILE) from error
    needed = frozenset[str]().union(*(one.needed for one in symbols))
    defined = frozenset[str]().union(*(one.defined for one in symbols))
    missing = sorted(name for name in needed - defined if not llvm.address_of_symbol(name))
    if missing:
        raise ArtifactError(
            f"the artefact's code needs functions that this system lacks: {', '.join(missing)}",
            hint="compile the model on this machine; if it was, please report this",
        )
