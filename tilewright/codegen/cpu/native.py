"""LLVM's calls on several threads at once, beside a thread that is busy with Python.

llvmlite holds one lock of its own around every call, so that its threads wait for each other. LLVM asks for no
such thing: threads may run as long as they share no context ("Threads and LLVM", LLVM Programmer's Manual), and
every module here has its own. So these calls go past the lock.

Each call of `ctypes` gives up the interpreter's lock, and a thread that is computing in Python keeps it for 5 ms from
then on. A module's two dozen calls would wait for most of the time; so only those that take long give it up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from llvmlite.binding import ffi

from tilewright.ir.diag import InternalError

_PARSE, _RUN, _EMIT = "LLVMPY_ParseAssembly", "LLVMPY_RunNewModulePassManager", "LLVMPY_TargetMachineEmitToMemory"


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
    _long(_RUN)(manager, module, builder)


def emit_object(machine: Any, module: Any) -> bytes:
    """The object file of a module; InternalError with LLVM's message when it makes none."""
    as_object, message = 1, ctypes.c_char_p()
    buffer = _long(_EMIT)(machine, module, as_object, ctypes.byref(message))
    if not buffer:
        raise InternalError(f"LLVM makes no code: {_taken(message)}", hint="this is a defect; please report it")
    try:
        return ctypes.string_at(_short("LLVMPY_GetBufferStart")(buffer), _short("LLVMPY_GetBufferSize")(buffer))
    finally:
        _short("LLVMPY_DisposeMemoryBuffer")(buffer)


def compiled(text: str, machine: Any, builder: Any, level: int) -> bytes:
    """The object file of a module's text after the passes that a pass builder has for this level; InternalError with
    LLVM's message when the text is not legal."""
    with _context() as context, _module(text, context) as module, _passes(builder, level) as manager:
        run_passes(manager, module, builder)
        return emit_object(machine, module)


@contextmanager
def _context() -> Iterator[Any]:
    context = _short("LLVMPY_ContextCreate")()
    try:
        yield context
    finally:
        _short("LLVMPY_ContextDispose")(context)


@contextmanager
def _module(text: str, context: Any) -> Iterator[Any]:
    message = ctypes.c_char_p()
    module = _long(_PARSE)(context, text.encode(), ctypes.byref(message))
    try:
        if message:
            raise refused(_taken(message))
        yield module
    finally:
        if module:
            _short("LLVMPY_DisposeModule")(module)


@contextmanager
def _passes(builder: Any, level: int) -> Iterator[Any]:
    manager = _short("LLVMPY_buildPerModuleDefaultPipeline")(builder, level)
    try:
        yield manager
    finally:
        _short("LLVMPY_DisposeNewModulePassManger")(manager)


def refused(message: str) -> InternalError:
    """The error for a text that LLVM does not take."""
    return InternalError(f"LLVM refuses generated code: {message}", hint="this is a defect; please report it")


def _taken(message: ctypes.c_char_p) -> str:
    """A message of LLVM's, whose memory is given back."""
    text = (message.value or b"").decode(errors="replace")
    _short("LLVMPY_DisposeString")(message)
    return text


@lru_cache(maxsize=3)
def _long(name: str) -> Any:
    """A function of llvmlite's library without the lock, with the prototype that llvmlite declares for it."""
    return _unlocked(ctypes.CDLL, name)


@lru_cache(maxsize=16)
def _short(name: str) -> Any:
    """The same for a function that takes so little time that the interpreter's lock is kept."""
    return _unlocked(ctypes.PyDLL, name)


def _unlocked(library: type[ctypes.CDLL], name: str) -> Any:
    locked = getattr(ffi.lib, name)
    free = getattr(library(ffi.lib._name, handle=ffi.lib._handle), name)
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free
