"""Memory whose addresses are reserved, and which is there from when it is first written to."""

from __future__ import annotations

import mmap

import numpy as np

from tilewright.runtime.arena import aligned_bytes
from tilewright.runtime.errors import NoMemoryError
from tilewright.runtime.kept.shared_pages import PageFile, SharedPages

_FLAGS = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))
_DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)


class Reserved:
    """`array`, u8[nbytes] of zeros at first. The operating system gives a page when something is written there, and
    copies share pages until they are written to."""

    def __init__(self, nbytes: int, purpose: str) -> None:
        self._block: mmap.mmap | None = None
        self._shared: SharedPages | None = None
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
        if not self._shared.mapped:
            self._block.madvise(_DONT_NEED, begin, end - begin)
        elif not self._shared.let_be_zeros(begin, end):
            self.array[begin:end] = 0

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
