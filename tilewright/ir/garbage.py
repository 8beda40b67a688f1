"""Python's collector of cyclic garbage, which runs rarely while a program is compiled.

Programs are graphs of objects that refer to each other, nearly all of which live until the end of the compilation. By
Python's own thresholds the collector looks at all of them again and again, which took a quarter to a third of the
compiler's time; rarer collections keep some twenty MB more until then.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 1_000_000
"""Objects made and not freed between two collections of the youngest."""

_LOCK = threading.Lock()
_thresholds: list[tuple[int, int, int]] = []
"""For each compilation that is under way, the thresholds that were there before the first of them: the collector is one
for the process."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run rarely, in all threads of the process, until the last of those who asked for it is done.
    A collector that is off, or runs as rarely, stays as it is."""
    with _LOCK:
        before = _thresholds[0] if _thresholds else gc.get_threshold()
        _thresholds.append(before)
        if 0 < before[0] < YOUNG_OBJECTS:
            gc.set_threshold(YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        with _LOCK:
            _thresholds.pop()
            if not _thresholds:
                gc.set_threshold(*before)
