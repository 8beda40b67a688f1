"""Makes the code of an artefact run in this process, and finds its functions: an image is mapped and gets the addresses
that it needs."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
import weakref
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tilewright.runtime import staged
from tilewright.runtime.arena import address_of
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import ArtifactError, ExecutionError
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.storage.cpu import architecture, cpu_facts
from tilewright.runtime.storage.image import WORD, Image
from tilewright.runtime.storage.pages import (
    READ,
    READ_EXECUTE,
    READ_WRITE,
    address_of_pages,
    allows_code,
    protect,
)

_RECOMPILE = "compile the model again"

_POINTER = ctypes.c_void_p
# Function prototypes of this kind release the GIL during the call.
_PLAN = ctypes.CFUNCTYPE(ctypes.c_int32, *[_POINTER] * 5)
_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER)
_RUN_PROFILED = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER)
_RUN_GUARDED = ctypes.CFUNCTYPE(ctypes.c_int32, *[_POINTER] * 3)
_WITHOUT_RESULT = ctypes.CFUNCTYPE(None, _POINTER)
_POOL_CREATE = ctypes.CFUNCTYPE(_POINTER, ctypes.c_int32, _POINTER, ctypes.c_int64)


class NativeCode:
    """The functions of an artefact; their memory lives as long as this object. Artefacts of one image share it.

    `plan` and `run` are C functions as `artifact` describes them; `plan` is None for a static model,
    `run_profiled` for one that was compiled without it. `run_guarded` takes a call, where to say how the arena is
    divided, and what to call before the first kernel (with 0) and after so many, which gives 0 to go on; None for what
    has no room for guard zones.
    """

    def __init__(self, artifact: Artifact) -> None:
        check_target(artifact.target, this_machine())
        if artifact.image is None:
            raise ArtifactError("the artefact has no code for this CPU", hint=_RECOMPILE)
        self._code = code_of(artifact.image)
        self.run = _RUN(self._required(artifact.run_symbol))
        self.plan = None if artifact.static_plan else _PLAN(self._required(artifact.plan_symbol))
        profiled = self._code.address(artifact.run_profiled_symbol)
        self.run_profiled = _RUN_PROFILED(profiled) if profiled else None
        guarded = self._code.address(f"tw_run_guarded{artifact.run_symbol.removeprefix('tw_run')}")
        self.run_guarded = _RUN_GUARDED(guarded) if guarded else None
        create = self._code.address("tw_pool_create")
        self._create = _POOL_CREATE(create) if create else None
        self._destroy = _WITHOUT_RESULT(self._required("tw_pool_destroy")) if create else None

    @property
    def has_pool(self) -> bool:
        """Whether the code brings a thread pool."""
        return self._create is not None

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
        address = self._code.address(symbol)
        if not address:
            raise ArtifactError(f"the artefact's code lacks the function {symbol or 'without a name'}", hint=_RECOMPILE)
        return address


class StepsCode:
    """The functions of the native steps of a program, in the code of an artefact: `run`, by the number of a
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


class LoadedImage:
    """An image whose code can run, as long as this object lives: in the pages of the file where it was mapped, and
    where these may hold code; else in memory of its own. ArtifactError where the system forbids code, or lacks a
    function that it needs."""

    def __init__(self, image: Image) -> None:
        self._image = image  # whose pages these may be
        self._symbols = image.layout.symbols
        data = _bound(image)
        pages = image.pages
        if pages is None or not self._is_mapped_well(pages) or not self._entered(pages, data):
            pages = _memory(image)
            if not self._entered(pages, data):
                raise _forbidden()
        self._pages = pages

    def address(self, symbol: str) -> int:
        """Of a function; 0 where there is none."""
        found = self._symbols.get(symbol)
        return 0 if found is None else self._start + found

    def _is_mapped_well(self, pages: mmap.mmap) -> bool:
        """Whether rights can be given to code and data apart, in pages as large as they are here, and whether these
        have one user."""
        layout = self._image.layout
        return layout.page % mmap.PAGESIZE == 0 and len(pages) == layout.size and not layout.writes

    def _entered(self, pages: mmap.mmap, data: np.ndarray) -> bool:
        """Write what depends on addresses, and make code of the rest. False where the system forbids it."""
        layout = self._image.layout
        start = self._start = address_of_pages(pages)
        for at, count in layout.based:
            data[(at - layout.text) // WORD :][:count] += start
        try:
            protect(start + layout.text, layout.data, READ_WRITE)
            ctypes.memmove(start + layout.text, address_of(data), layout.data)
            if not layout.writes:
                protect(start + layout.text, layout.data, READ)
            protect(start, layout.text, READ_EXECUTE)
        except OSError:
            for at, count in layout.based:
                data[(at - layout.text) // WORD :][:count] -= start
            return False
        return True


def _forbidden() -> ArtifactError:
    return ArtifactError(
        "this system does not let the process run code that it has loaded",
        hint="allow memory that becomes executable for this program (SELinux: execmem and execmod; systemd: "
        "MemoryDenyWriteExecute=no)",
    )


def code_of(image: Image) -> LoadedImage:
    """The code of an image, which all users share: nothing of it changes while it runs, unless it says so."""
    if image.layout.writes:
        return LoadedImage(image)
    with _LOCK:
        found = _LOADED.get(id(image))
        if found is None:
            found = _LOADED[id(image)] = LoadedImage(image)
        return found


_LOADED: weakref.WeakValueDictionary[int, LoadedImage] = weakref.WeakValueDictionary()
"""By the numbers of images, each of which lives as long as what was loaded of it."""
_LOCK = free_in_children(threading.Lock())


def _memory(image: Image) -> mmap.mmap:
    """A copy of an image in memory of its own, to which the loader may write still."""
    layout = image.layout
    try:
        pages = mmap.mmap(-1, max(layout.size, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise ArtifactError(f"no memory for {layout.size} bytes of code: {error.strerror or error}") from error
    pages[: layout.text] = image.text
    return pages


def _bound(image: Image) -> np.ndarray:
    """The data of an image, as words, with the addresses of what it imports."""
    layout = image.layout
    words = np.zeros(-(-layout.data // WORD), np.int64)
    words.view(np.uint8)[: layout.data] = np.frombuffer(image.data, np.uint8)
    found = [address_of_import(name) for name in layout.imports]
    weak = frozenset(layout.weak)
    missing = [n for n, address in zip(layout.imports, found, strict=True) if not address and n not in weak]
    if missing:
        raise ArtifactError(
            f"the artefact's code needs functions that this system lacks: {', '.join(sorted(missing))}",
            hint="compile the model on this machine; if it was, please report this",
        )
    first = (layout.table - layout.text) // WORD
    words[first : first + len(found)] = found
    return words


def address_of_import(name: str) -> int:
    """Of a function of the C library, the C math library or the threads' library; 0 where there is none."""
    found = IMPORTS.get(name)
    if found is None:
        found = next((at for library in _libraries() if (at := _symbol(library, name))), 0)
        IMPORTS[name] = found
    return found


IMPORTS: dict[str, int] = {}
"""Addresses that were looked up before."""


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    """What the process has loaded for all to use, and the libraries that it may have loaded for itself."""
    found = [ctypes.CDLL(None)]
    for name in ("libc.so.6", "libm.so.6", "libpthread.so.0") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):
            found.append(ctypes.CDLL(name))
    return tuple(found)


def _symbol(library: ctypes.CDLL, name: str) -> int:
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:  # there is none, or this is no name
        return 0


def this_machine() -> TargetInfo:
    """The machine of this process, with the features that code may need."""
    return TargetInfo(f"{architecture()}-unknown-{sys.platform}", "CPU", _features())


@lru_cache(maxsize=1)
def _features() -> tuple[str, ...]:
    facts = cpu_facts()
    if facts is not None:
        return tuple(sorted(facts.features))
    try:
        import llvmlite.binding as llvm
    except ImportError:
        if not allows_code():
            raise _forbidden() from None
        return _UNKNOWN
    return tuple(sorted(name for name, present in llvm.get_host_cpu_features().items() if present))


_UNKNOWN = ("?",)
"""Stands for the features of a CPU of which nothing here can tell."""


def check_target(target: TargetInfo, host: TargetInfo) -> None:
    """ArtifactError when `host` cannot run code made for `target`, naming what it lacks."""
    made_for, here = platform_of(target.triple), platform_of(host.triple)
    if made_for != here:
        raise ArtifactError(
            f"the artefact was made for {' '.join(made_for)} ({target.cpu}); "
            f"this machine is {' '.join(here)}",
            hint="compile the model on this machine, or for it with the option target",
        )
    missing = sorted(set(target.features) - set(host.features))
    if missing and host.features == _UNKNOWN:
        raise ArtifactError(
            f"the artefact was made for {target.cpu} and needs the CPU features {', '.join(missing)}; nothing here can "
            f"tell whether this {here[0]} CPU has them",
            hint="install the package llvmlite, which can",
        )
    if missing:
        raise ArtifactError(
            f"the artefact was made for {target.cpu} and needs CPU features that this {host.cpu} lacks: "
            f"{', '.join(missing)}",
            hint="compile the model on this machine, or for it with the option target",
        )


def platform_of(triple: str) -> tuple[str, str]:
    """Architecture and operating system of a triple, in one spelling."""
    parts = triple.lower().split("-")
    arch = {"arm64": "aarch64", "amd64": "x86_64"}.get(parts[0], parts[0])
    for system in ("linux", "windows", "freebsd"):
        if any(part.startswith(system) for part in parts[1:]):
            return arch, system
    if any(part.startswith(("darwin", "macos")) for part in parts[1:]):
        return arch, "macos"
    return arch, "-".join(parts[1:])
