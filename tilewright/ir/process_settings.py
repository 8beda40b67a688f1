"""Settings of Python that are one for the process or a thread, and other ones while a program is compiled."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

YOUNG_OBJECTS = 2_000_000
"""Objects made and not freed between two collections of the youngest."""
TURN = 0.0005
"""Seconds after which a thread that computes in Python lets another one that waits have a turn."""

FRAME_SLOTS = 1 << 16
"""Words that a frame says it may need, so that it and those of its callees get 1 MiB, of which it takes half."""


class _Setting(Generic[T]):
    """A setting, and for each of those who asked for another one what was there before the first of them."""

    def __init__(self, read: Callable[[], T], write: Callable[[T], None], other: Callable[[T], T]) -> None:
        self._read, self._write, self._other = read, write, other
        self._lock = threading.Lock()
        self._before: list[T] = []

    @property
    def is_changed(self) -> bool:
        """Whether somebody asked for another one who is not done."""
        return bool(self._before)

    @contextmanager
    def changed(self) -> Iterator[None]:
        """The setting is another one until the last of those who asked for that is done."""
        with self._lock:
            before = self._before[0] if self._before else self._read()
            self._before.append(before)
            changed = self._other(before)
            if changed != before:
                self._write(changed)
        try:
            yield
        finally:
            with self._lock:
                self._before.pop()
                if not self._before and self._other(before) != before:
                    self._write(before)


def _rarer(thresholds: tuple[int, int, int]) -> tuple[int, int, int]:
    """A collector that is off, or runs as rarely, stays as it is."""
    return (YOUNG_OBJECTS, *thresholds[1:]) if 0 < thresholds[0] < YOUNG_OBJECTS else thresholds


_COLLECTIONS = _Setting(gc.get_threshold, lambda thresholds: gc.set_threshold(*thresholds), _rarer)
_TURNS = _Setting(sys.getswitchinterval, sys.setswitchinterval, lambda seconds: min(TURN, seconds))


class _Aged:
    """Young objects that compilations left to collections of old ones, since the last of these."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        """Let all objects be old ones, at no cost; collect those where there are too many."""
        self.count += gc.get_count()[0]
        if self.count >= YOUNG_OBJECTS:
            gc.collect()
            self.count = 0
        elif not gc.get_freeze_count():  # else the program keeps some apart, and these would be old ones, too
            gc.freeze()
            gc.unfreeze()


_AGED = _Aged()


def rare_collections() -> AbstractContextManager[None]:
    """Let the collector of cyclic garbage run rarely, in all threads of the process.

    Programs are graphs of objects that refer to each other, nearly all of which live until the end of the compilation.
    By Python's own thresholds the collector looks at all of them again and again, which took a quarter to a third of
    the compiler's time; rarer collections keep some twenty MB more until then.
    """
    return _COLLECTIONS.changed()


@contextmanager
def rarely_collected() -> Iterator[None]:
    """`rare_collections` for what leaves garbage that holds no memory but its own, as a compilation does.

    At the end the collector would look at all that was made before anything else happens: half a second for a graph of
    4,000 nodes, which whoever waits for the model waits for. So it is left to a collection of old objects, or to the
    end of a later compilation where much of it has come together.
    """
    is_outer = not _COLLECTIONS.is_changed
    with rare_collections():
        yield
        if is_outer and gc.isenabled():
            _AGED.add()


def short_turns() -> AbstractContextManager[None]:
    """Let threads of the process take turns often.

    LLVM's threads need Python for a moment only, between two calls. By Python's own setting they wait 5 ms for it each
    time, as long as the thread that makes schedules computes: four kernels took a thread 20 ms of 45.
    """
    return _TURNS.changed()


def with_room_for_frames(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, with memory in one piece for the frames of some 2,000 calls in each other.

    CPython (3.11 to 3.13 at least) keeps the frames of a thread in chunks of 16 KiB, and gives a chunk back with the
    last frame in it. So a loop that happens to call functions where a chunk ends takes memory from the system, and
    gives it back, in each iteration: 7 us for a call in place of 0.03, a sixth of some compilations. A chunk is larger
    for a frame that says it needs more; that memory is not touched.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    if sys.implementation.name == "cpython":
        call.__code__ = call.__code__.replace(co_stacksize=FRAME_SLOTS)
    return functools.wraps(function)(call)
