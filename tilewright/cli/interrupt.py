"""Ctrl-C: a command ends at once, also while native code runs, and with an exit code of its own.

Python raises KeyboardInterrupt only between two of its own instructions; a call of native code, of a model or of
LLVM, may last for minutes. So a thread waits for the signal too: a command that is not done with its own way out
(which removes temporary files) some time after the signal is ended by that thread.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""What shells say of a program that a SIGINT ended: 128 + 2."""

GRACE_S = 0.5
"""Seconds that a command may take to end by itself."""

_TELLING, _TOLD = threading.Lock(), threading.Event()
"""Two threads tell the user; one of them does."""

_KEPT: list[str] = []
"""What is told with that, the last of it: what a command that is interrupted now leaves behind."""

_SHOW_CURSOR = "\x1b[?25h"
"""Bars of progress hide it."""


def run_interruptible(run: Callable[[], None]) -> None:
    """Call `run` on the main thread; after a SIGINT end the process with the exit code 130."""
    watch_interrupts()
    try:
        run()
    except KeyboardInterrupt:
        say_interrupted()
        end()
    except SystemExit as leaving:
        if leaving.code == INTERRUPTED:
            end()
        raise
    except Exception as error:
        if not is_interrupt(error):
            raise
        say_interrupted()
        end()


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is a Ctrl-C under another name: Python makes a RuntimeError of one that comes while a class is
    made, and so while modules are imported."""
    seen: set[int] = set()  # an error that is raised again may have become its own cause
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__
    return False


def watch_interrupts() -> None:
    """Start the thread that ends this process `GRACE_S` after a SIGINT; nothing where SIGINT is ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # such as a command in the background of a script
    here, there = socket.socketpair()
    there.setblocking(False)
    # the C level of the interpreter writes the signal's number there as soon as it comes
    signal.set_wakeup_fd(there.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(here, there), name="interrupts", daemon=True).start()


@contextlib.contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """A SIGINT within the block ends nothing; the function tells whether one came. A second one is as outside of it,
    for what does not look soon."""
    if threading.current_thread() is not threading.main_thread():  # signals are none of its business
        yield lambda: False
        return
    came = False
    handler = signal.getsignal(signal.SIGINT)
    watched = signal.set_wakeup_fd(-1)

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        restore()

    def restore() -> None:
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(watched, warn_on_full_buffer=False)

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: came
    finally:
        restore()


@contextlib.contextmanager
def leaving(kept: str) -> Iterator[Callable[[str], None]]:
    """Tell a user who interrupts the block what is `kept` of it; the function that it gives takes what is kept from
    then on."""
    _KEPT.append(kept)

    def change(later: str) -> None:
        _KEPT[-1] = later

    try:
        yield change
    except KeyboardInterrupt:
        say_interrupted()
        raise
    finally:
        _KEPT.pop()


def _line() -> str:
    return f"interrupted: {_KEPT[-1]}\n" if _KEPT else "interrupted\n"


def say_interrupted() -> None:
    """One line for the user, if there is anybody to read it, and if it was not told before."""
    with _TELLING:
        if not _TOLD.is_set():
            _TOLD.set()
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stderr.write(_line())
                sys.stderr.flush()


def end() -> NoReturn:
    """End the process now: without waiting for threads that are in native code."""
    for nontemporal in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nontemporal.flush()
    os._exit(INTERRUPTED)


def _watch(here: socket.socket, there: socket.socket) -> None:
    """`there` is only kept alive."""
    while signal.SIGINT not in here.recv(64):
        pass
    here.settimeout(GRACE_S)
    with contextlib.suppress(OSError):
        while signal.SIGINT not in here.recv(64):  # a second one does not wait
            pass
    if sys.stderr is not None and sys.stderr.isatty():
        os.write(2, _SHOW_CURSOR.encode())
    if _TELLING.acquire(timeout=GRACE_S) and not _TOLD.is_set():
        os.write(2, _line().encode(errors="replace"))
    os._exit(INTERRUPTED)
