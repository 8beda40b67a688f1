"""LLVM's calls on several threads at once, beside a thread that is busy with Python.

llvmlite holds one lock of its own around every call, so that its threads wait for each other. LLVM asks for no
such thing: threads may run as long as they share no context ("Threads and LLVM", LLVM Programmer's Manual), and
every module here has its own. So these calls go past the lock.

Each call of `ctypes` gives up the interpreter's lock, and a thread that is computing in Python keeps it for 5 ms from
then on. A module's two dozen calls would wait for most of the time; so only those that take long give it up.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from llvmlite.binding import ffi

from tilewright.ir.diag import InternalError

_PARSE, _EMIT = "LLVMPY_ParseAssembly", "LLVMPY_TargetMachineEmitToMemory"
_RUN, _RUN_ON_FUNCTION = "LLVMPY_RunNewModulePassManager", "LLVMPY_RunNewFunctionPassManager"


def optimise(module: Any, builder: Any, level: int) -> None:
    """Run the passes of this level on a module, in place.

    A module is one kernel. LLVM's pipeline for modules has passes between functions, of which these need two; it then
    simplifies each function, and does much of that again, as loops that were vectorised or unrolled meanwhile need it.
    Those of kernels are so already: to simplify them once takes 15 to 25 % less, and gives most kernels the same
    machine code.
    """
    if level == 0:
        with _manager("LLVMPY_buildPerModuleDefaultPipeline", builder, level) as manager:
            _long(_RUN)(manager, module, builder)
        return
    _run_on_module(module, builder, _BEFORE, _long)
    with _manager("LLVMPY_buildFunctionSimplificationPipeline", builder, level, of_functions=True) as manager:
        for function in _definitions(module):
            _long(_RUN_ON_FUNCTION)(manager, function, builder)
    _run_on_module(module, builder, _AFTER, _short)


_BEFORE = ("LLVMPY_module_AddAlwaysInlinerPass", "LLVMPY_module_AddPostOrderFunctionAttrsPass")
_AFTER = ("LLVMPY_module_AddGlobalDCEPass",)


def _run_on_module(module: Any, builder: Any, passes: Sequence[str], run: Callable[[str], Any]) -> None:
    with _manager("LLVMPY_CreateNewModulePassManager") as manager:
        for name in passes:
            _short(name)(manager)
        run(_RUN)(manager, module, builder)


@contextmanager
def _manager(made_by: str, *arguments: Any, of_functions: bool = False) -> Iterator[Any]:
    """A pass manager, freed at the end.

    llvmlite's own `close` does not free one of modules: of the two methods `_dispose` that the class inherits, the one
    that does nothing comes first.
    """
    manager = _short(made_by)(*arguments)
    try:
        yield manager
    finally:
        _short(f"LLVMPY_DisposeNew{'Function' if of_functions else 'Module'}PassManger")(manager)


def _definitions(module: Any) -> Iterator[Any]:
    """The functions of a module that it has the text of."""
    functions = _short("LLVMPY_ModuleFunctionsIter")(module)
    try:
        while function := _short("LLVMPY_FunctionsIterNext")(functions):
            if not _short("LLVMPY_IsDeclaration")(function):
                yield function
    finally:
        _short("LLVMPY_DisposeFunctionsIter")(functions)


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
    with _context() as context, _module(text, context) as module:
        optimise(module, builder, level)
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


def refused(message: str) -> InternalError:
    """The error for a text that LLVM does not take."""
    return InternalError(f"LLVM refuses generated code: {message}", hint="this is a defect; please report it")


def _taken(message: ctypes.c_char_p) -> str:
    """A message of LLVM's, whose memory is given back."""
    text = (message.value or b"").decode(errors="replace")
    _short("LLVMPY_DisposeString")(message)
    return text


@lru_cache(maxsize=4)
def _long(name: str) -> Any:
    """A function of llvmlite's library without the lock, with the prototype that llvmlite declares for it."""
    return _unlocked(ctypes.CDLL, name)


@lru_cache(maxsize=32)
def _short(name: str) -> Any:
    """The same for a function that takes so little time that the interpreter's lock is kept."""
    return _unlocked(ctypes.PyDLL, name)


def _unlocked(library: type[ctypes.CDLL], name: str) -> Any:
    locked = getattr(ffi.lib, name)
    free = getattr(library(ffi.lib._name, handle=ffi.lib._handle), name)
    free.argtypes, free.restype = locked.argtypes, locked.restype
    return free
