"""Memory whose addresses are reserved, and which is there from when it is first written to."""

from __future__ import annotations

import mmap

import numpy as np

from tilewright.runtime.arena import aligned_bytes
from tilewright.runtime.errors import ExecutionError

_FLAGS = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))
_DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)


class Reserved:
    """`array`, u8[nbytes] of zeros at first. The operating system gives a page when something is written there."""

    def __init__(self, nbytes: int, purpose: str) -> None:
        self._block: mmap.mmap | None = None
        try:
            if nbytes >= mmap.PAGESIZE and _FLAGS and _DONT_NEED is not None:
                self._block = mmap.mmap(-1, nbytes, flags=_FLAGS)
                self.array = np.frombuffer(self._block, np.uint8)
            else:
                self.array = aligned_bytes(nbytes)
                self.array[...] = 0
        except (MemoryError, OSError, OverflowError, ValueError) as error:
            raise ExecutionError(
                f"no memory for {purpose}: {nbytes} bytes are needed",
                hint="use smaller sizes, or a machine with more memory",
            ) from error

    def forget(self, begin: int, end: int) -> None:
        """Give whole pages of these bytes back: they are zeros again. Others stay as they are."""
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._block is not None and _DONT_NEED is not None and begin < end:
            self._block.madvise(_DONT_NEED, begin, end - begin)
