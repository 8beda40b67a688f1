"""A watch over memory: whether it holds what it held.

Large parts are watched by their pages where the kernel can do that (`pages.py`). All else is read and digested in each
look: small arrays, the ends of large ones, memory that others may write to.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterator, Sequence

import numpy as np

from tilewright.torch.watch.native import ROW, SCAN, Call, native_watch
from tilewright.torch.watch.pages import PAGE, Pages, Range, scan_of

Span = tuple[int, int]
"""The address of a first byte, and a number of bytes."""

LEAST_TRACKED = 16 * PAGE
"""Bytes from which on pages are asked for. Below, reading is about as fast as asking, and asking for many small ranges
would cut the process's memory map into as many pieces."""

_PAGES = Pages()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PAGES.forget)


def refresh() -> None:
    """Make the next look of each watch read all of its memory."""
    _PAGES.generation += 1


class Watch:
    """The memory at some spans as it is when this is made; the spans stay the owner's to keep alive.

    `contents` has a digest of each (64 bits). A watch that `trusts` does not look at the memory unless `refresh` was
    called. May be asked by several threads.
    """

    def __init__(self, spans: Sequence[Span], trusts: bool = False) -> None:
        self._native = native_watch()
        ranges = [] if trusts else [r for span in spans if (r := _inner(span)) is not None]
        tracked = _PAGES.track(ranges)
        weakref.finalize(self, _PAGES.release, tracked).atexit = False
        self._generation = _PAGES.generation  # before anything is read: what happens from here on is seen
        self.contents = self._digests(spans)
        read = [] if trusts else list(_around(spans, set(tracked)))
        self._rows = _rows(read)
        self._native.fill(self._rows.ctypes.data, len(read))
        found = ctypes.addressof(_PAGES.found)
        self._scans = np.array([scan_of(r, found) for r in tracked], np.uint64).reshape(-1, SCAN)
        self._call = Call(
            self._rows.ctypes.data, len(read), self._scans.ctypes.data, len(tracked), _PAGES.pagemap
        )
        self._address = ctypes.addressof(self._call)
        self._unchanged = None if trusts else self._native.unchanged
        self.bytes_read = sum(size for _, size in read)
        """Bytes that each look reads."""

    def is_unchanged(self) -> bool:
        """False where a span was written to since, and where it may have been: a new watch has the contents."""
        if self._generation != _PAGES.generation:
            return False
        return self._unchanged is None or self._unchanged(self._address) == 1

    def _digests(self, spans: Sequence[Span]) -> tuple[int, ...]:
        rows = _rows(spans)
        self._native.fill(rows.ctypes.data, len(spans))
        return tuple(rows[:, 2].tolist())


def _rows(spans: Sequence[Span]) -> np.ndarray:
    return np.array([(*span, 0) for span in spans], np.uint64).reshape(-1, ROW)


def _inner(span: Span) -> Range | None:
    """The whole pages of a span; None of one that is small."""
    start, end = -(-span[0] // PAGE) * PAGE, (span[0] + span[1]) // PAGE * PAGE
    return (start, end) if end - start >= LEAST_TRACKED else None


def _around(spans: Sequence[Span], tracked: set[Range]) -> Iterator[Span]:
    """What must be read of spans, of which some ranges are tracked."""
    for address, size in spans:
        inner = _inner((address, size))
        if inner is None or inner not in tracked:
            yield address, size
            continue
        start, end = inner
        yield from (part for part in ((address, start - address), (end, address + size - end)) if part[1])
