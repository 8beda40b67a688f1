"""Ctrl-C while native code runs in the main thread.

Python calls handlers of signals between two of its own instructions alone, and so a call of native code would end by
itself first. While one lasts, a thread waits for what the interpreter's C level writes to the wakeup descriptor
(`signal.set_wakeup_fd`) as soon as a signal comes, and ends the run for Ctrl-C. The descriptor is the host's own, such
as an event loop's: it is told of all signals at once, and has its place again when the run has ended. Nothing is done
where the host has a handler of its own for Ctrl-C, which may want the call to go on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

LASTING_S = 0.1
"""A run of so many seconds is worth a thread beside it, which takes a thousandth of that."""

MUCH = 32 << 20
"""Bytes from which on a run may last of which that is not known yet."""

_AGAIN_MS = 5
_END = b"\0"
"""No signal has this number."""

_set_wakeup = partial(signal.set_wakeup_fd, warn_on_full_buffer=False)
_RUNNING: list[_Watch] = []


def run_interruptible(
    run: Callable[[int], int], argument: int, words: Any, at: int, stops: ctypes.c_int32
) -> int:
    """`run(argument)`, which Ctrl-C ends as a change of the word at `stops` does: the address of such a word stands in
    `words[at]`. The run has a word of its own meanwhile, as others who use `stops` go on."""
    watch = _Watch.begun(stops)
    if watch is None:
        return run(argument)
    own = words[at]
    try:
        try:  # in one call: between two a handler may raise, and what has been the descriptor until now would be lost
            watch.host.extend(map(_set_wakeup, (watch.there,)))
        except ValueError:  # an interpreter within the process, which has no signals
            return run(argument)
        _RUNNING.append(watch)
        words[at] = ctypes.addressof(watch.word)
        code = run(argument)
    finally:  # what is needed comes first, and calls no function of Python before it is done
        words[at] = own
        if watch.host:
            _set_wakeup(watch.host[0])
        watch.end()
    if code and watch.came:  # what the handler has raised came where Python drops it, such as in a finalizer
        raise KeyboardInterrupt
    return code


def end_interruptible(stops: ctypes.c_int32) -> None:
    """Somebody changes `stops`: this is for runs that have words of their own."""
    for watch in [*_RUNNING]:
        if watch.stops is stops:
            watch.word.value += 1


class _Watch:
    """What waits for signals beside a run. `host` is the descriptor that is told of them otherwise."""

    def __init__(self, stops: ctypes.c_int32, here: int, there: int) -> None:
        self.stops, self.word = stops, ctypes.c_int32()
        self.here, self.there = here, there
        self.host: list[int] = []
        self.came = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._wait, name="interrupts of a run", daemon=True)

    @classmethod
    def begun(cls, stops: ctypes.c_int32) -> _Watch | None:
        """None where Ctrl-C is not for this thread, or for the host alone, and where there are no descriptors and
        threads left."""
        if threading.current_thread() is not threading.main_thread():
            return None
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return None
        try:
            here, there = os.pipe()
        except OSError:
            return None
        os.set_blocking(there, False)
        watch = cls(stops, here, there)
        try:
            watch._thread.start()
        except RuntimeError:
            watch.close()
            return None
        return watch

    def end(self) -> None:
        """The run has ended, in whatever way; what came before has been handed on when this returns."""
        if self in _RUNNING:
            _RUNNING.remove(self)
        if os.getpid() == self._process:  # else the thread stayed with the parent
            os.set_blocking(self.there, True)  # the thread may have much to read
            os.write(self.there, _END)
            self._thread.join()

    def close(self) -> None:
        os.close(self.here)
        os.close(self.there)

    def _wait(self) -> None:
        poll, wait, found = select.poll(), None, b""
        poll.register(self.here, select.POLLIN)
        while _END not in found:
            found = os.read(self.here, 512) if poll.poll(wait) else b""
            self._hand_on(found.replace(_END, b""))
            if signal.SIGINT in found:
                self.came = True
                wait = _AGAIN_MS  # again and again: the code may not have looked at the word for the first time
            if wait is not None:
                self.word.value += 1
        self.close()

    def _hand_on(self, signals: bytes) -> None:
        if signals and self.host and self.host[0] >= 0:
            with contextlib.suppress(OSError):  # full, or closed
                os.write(self.host[0], signals)


def _leave_to_parent() -> None:
    """In a forked child: the thread that waits is the parent's, and so are its descriptors."""
    while _RUNNING:
        watch = _RUNNING.pop()
        if watch.host:
            _set_wakeup(watch.host[0])
        watch.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
