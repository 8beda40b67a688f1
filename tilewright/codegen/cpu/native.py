"""LLVM's two long calls, its passes and its code generator, on several threads at once.

llvmlite holds one lock of its own around every call, so that its threads wait for each other. LLVM asks for no
such thing: threads may run as long as they share no context ("Threads and LLVM", LLVM Programmer's Manual), and
every module here has its own. So these two calls go past the lock, which the short ones keep.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from llvmlite.binding import ffi

from tilewright.ir.diag import InternalError

_RUN, _EMIT = "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"


@contextmanager
def pass_manager(builder: Any) -> Iterator[Any]:
    """The module pass manager of a pass builder of llvmlite, freed at the end.

    llvmlite's own `close` does not free it: of the two methods `_dispose` that the class inherits, the one that does
    nothing comes first.
    """
    manager = builder.getModulePassManager()
    try:
        yield manager
    finally:
        ffi.lib.LLVMPY_DisposeNewModulePassManger(manager)
        manager.detach()


def run_passes(manager: Any, module: Any, builder: Any) -> None:
    """Run a module pass manager of llvmlite on a module, in place."""
    _function(_RUN)(manager, module, builder)


def emit_object(machine: Any, module: Any) -> bytes:
    """The object file of a module; InternalError with LLVM's message when it makes none."""
    as_object = 1
    with ffi.OutputString() as message:
        buffer = _function(_EMIT)(machine, module, as_object, message)
        if not buffer:
            raise InternalError(f"LLVM makes no code: {message}", hint="this is a defect; please report it")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


@lru_cache(maxsize=2)
def _function(name: str) -> Any:
    """A function of llvmlite's library without the lock, with the prototype that llvmlite declares for it."""
    locked = getattr(ffi.lib, name)
    free = getattr(ctypes.CDLL(ffi.lib._name, handle=ffi.lib._handle), name)
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free
