"""Memory whose addresses are reserved, and which is there from when it is first written to."""

from __future__ import annotations

import contextlib
import mmap
import sys

import numpy as np

from tilewright.runtime.arena import address_of, aligned_bytes
from tilewright.runtime.errors import NoMemoryError
from tilewright.runtime.kept.shared_pages import PageFile, SharedPages

_FLAGS = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))
_DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)
_COLLAPSE = 25 if sys.platform == "linux" else None
"""`MADV_COLLAPSE`, which Linux has from 6.1 on."""
HUGE_PAGE = 2 << 20
"""Bytes; where the system's are larger, none is made."""


class Reserved:
    """`array`, u8[nbytes] of zeros at first. The operating system gives a page when something is written there, and
    copies share pages until they are written to."""

    def __init__(self, nbytes: int, purpose: str) -> None:
        self._block: mmap.mmap | None = None
        self._shared: SharedPages | None = None
        self._huge: set[int] = set()
        try:
            if nbytes >= mmap.PAGESIZE and _FLAGS and _DONT_NEED is not None:
                self._block = mmap.mmap(-1, nbytes, flags=_FLAGS)
                self.array = np.frombuffer(self._block, np.uint8)
                self._shared = SharedPages(self.array)
            else:
                self.array = aligned_bytes(nbytes)
                self.array[...] = 0
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise NoMemoryError(
                f"no memory for {purpose}: {nbytes} bytes are needed",
                hint="use smaller sizes, or a machine with more memory",
            ) from error

    def forget(self, begin: int, end: int) -> None:
        """Give whole pages of these bytes back: they are zeros again. Others stay as they are."""
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._block is None or self._shared is None or _DONT_NEED is None or begin >= end:
            return
        self._shared.written(begin, end)
        self._huge = {page for page in self._huge if page >= end or page + HUGE_PAGE <= begin}
        if not self._shared.mapped:
            self._block.madvise(_DONT_NEED, begin, end - begin)
        elif not self._shared.let_be_zeros(begin, end):
            self.array[begin:end] = 0

    def lie_in_huge_page(self, whole: int, filled: int) -> bool:
        """Of parts that begin every `whole` bytes and are filled so far, or will be, let the next of what fills at
        least half of a huge page lie in one, so that it takes at most twice the memory; whether there was such a page.
        Each takes up to some milliseconds, so callers do not wait for all at once, and a third of that where little was
        written. Processors look addresses up once for each page, which takes nearly as long as to read a small one
        where the machine is a virtual one. Memory that is shared stays as it is, and all does where the system has no
        huge pages."""
        if self._block is None or self._shared is None or self._shared.mapped or _COLLAPSE is None:
            return False
        first = -address_of(self.array) % HUGE_PAGE
        for page in range(first, self.array.nbytes - HUGE_PAGE + 1, HUGE_PAGE):
            if page in self._huge or 2 * _filled_between(page, page + HUGE_PAGE, whole, filled) < HUGE_PAGE:
                continue
            self._huge.add(page)
            self.array[page] = self.array[page]  # nothing becomes huge of which nothing is there
            with contextlib.suppress(OSError):  # a kernel that has them not, or no free memory in one piece
                self._block.madvise(_COLLAPSE, page, HUGE_PAGE)
            return True
        return False

    def copy_from(self, other: Reserved, begin: int, end: int, file: PageFile) -> None:
        """Hold what another one of the same size has between two bytes. What both share from then on is in the file."""
        if self._shared is not None and other._shared is not None:
            self._shared.copy_from(other._shared, begin, end, file)
        else:
            self.array[begin:end] = other.array[begin:end]

    def written(self, begin: int, end: int) -> None:
        """Somebody may write to these bytes, which are as they were for who has copied them."""
        if self._shared is not None:
            self._shared.written(begin, end)


def _filled_between(begin: int, end: int, whole: int, filled: int) -> int:
    """Bytes between two places that are filled, of parts that begin every `whole` bytes and are filled so far."""
    return _filled_before(end, whole, filled) - _filled_before(begin, whole, filled)


def _filled_before(place: int, whole: int, filled: int) -> int:
    return place // whole * filled + min(place % whole, filled)
