"""Small pages that lie together in memory, so that processors look their addresses up together.

A huge page is taken from the system and moved, a piece after the other, to where memory is needed:

    2 MB of one huge page    [a][b][c][d] ...
    parts that grow          [....][a]....     [....][b]....     [....][c]....

What is moved are entries of page tables; the bytes stay where they are. Cores of AMD keep one entry for neighbouring
small pages whose memory is contiguous, too. A loop over caches as attention reads them is as fast in pieces of 32 KB as
in huge pages, and takes 1.5 times as long in pages that the system gives one by one (Zen 4, virtual machine, 128
positions of 12 heads: 39, 40 and 63 us; 512 positions: 125, 129 and 190).

A piece of 32 KB that is moved to where nothing was written takes 12 us, and 4 for its share of a huge page; the eight
faults of its pages would take 18. To where something was written it takes 18 us, and 6 to copy it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from tilewright.runtime.process.forks import free_in_children

UNIT = 32 << 10
"""Bytes of the smallest piece; all begin at multiples of it."""
HUGE_PAGE = 2 << 20
"""Bytes; where the system's are larger, pieces are whatever pages it gives."""
MOST = 1 << 14
"""Pieces of a process at most: each is a mapping, of which Linux gives 65,530 by default."""
MOST_LEFT = 8
"""Pieces of huge pages that wait for somebody who wants so few bytes."""

_ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_ANONYMOUS = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))
_FIXED = 0x10
_READ_WRITE = 3
_MAY_MOVE_TO = 3
_HUGE = 14
"""MAP_FIXED, PROT_READ | PROT_WRITE, MREMAP_MAYMOVE | MREMAP_FIXED and MADV_HUGEPAGE of Linux."""


class Pieces:
    """Pieces of huge pages, which threads may ask for at once."""

    def __init__(self) -> None:
        self._lock = free_in_children(threading.Lock())
        self._left: list[tuple[int, int]] = []
        self._moved = 0

    def move(self, address: int, size: int, held: Sequence[tuple[int, int]]) -> bool:
        """Let `size` bytes of private memory at an address, multiples of `UNIT` both, be a piece that holds what is
        there between the addresses `held`, and zeros or nothing in particular elsewhere; whether it is one. Nobody else
        writes to these bytes meanwhile."""
        source = self._taken(size)
        if source is None:
            return False
        for begin, end in held:
            ctypes.memmove(source + begin - address, begin, end - begin)
        if _native().mremap(source, size, size, _MAY_MOVE_TO, address) == address:
            return True
        # Linux may have taken away what was there
        if _native().mmap(address, size, _READ_WRITE, _ANONYMOUS | _FIXED, -1, 0) != address:
            raise MemoryError("the system has no room for mappings")
        for begin, end in held:
            ctypes.memmove(begin, source + begin - address, end - begin)
        _native().munmap(source, size)
        self.given_up(1)
        return False

    def given_up(self, count: int) -> None:
        """So many pieces are not there any more."""
        self._moved -= count

    def _taken(self, size: int) -> int | None:
        """The address of a piece that is for the caller; None where there is none."""
        with self._lock:
            if self._moved >= MOST:
                return None
            found = next((k for k, (_, left) in enumerate(self._left) if left >= size), None)
            address, left = _huge_page() if found is None else self._left.pop(found)
            if left < size:
                return None
            if left > size:
                self._left.append((address + size, left - size))
            for rest in self._left[:-MOST_LEFT]:
                _native().munmap(*rest)
            self._left = self._left[-MOST_LEFT:]
            self._moved += 1
            return address


PIECES = Pieces()


@lru_cache(maxsize=1)
def are_there() -> bool:
    """Whether the system gives huge pages to those who ask for them, and moves them."""
    with contextlib.suppress(OSError):
        return sys.platform == "linux" and "[never]" not in _ENABLED.read_text()
    return False


def _huge_page() -> tuple[int, int]:
    """The address and bytes of a huge page that nobody else has; nothing where there is no memory. It is there at once,
    as pages that are looked for behind a move would be small."""
    whole: int | None = _native().mmap(None, 2 * HUGE_PAGE, _READ_WRITE, _ANONYMOUS, -1, 0)
    if whole is None or whole == ctypes.c_void_p(-1).value:
        return 0, 0
    address = -(-whole // HUGE_PAGE) * HUGE_PAGE
    for begin, end in ((whole, address), (address + HUGE_PAGE, whole + 2 * HUGE_PAGE)):
        if begin < end:
            _native().munmap(begin, end - begin)
    _native().madvise(address, HUGE_PAGE, _HUGE)
    ctypes.memset(address, 0, 1)
    return address, HUGE_PAGE


@lru_cache(maxsize=1)
def _native() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    address, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    library.mmap.argtypes = [address, size, number, number, number, ctypes.c_longlong]
    library.mremap.argtypes = [address, size, size, number, address]
    library.munmap.argtypes = [address, size]
    library.madvise.argtypes = [address, size, number]
    library.mmap.restype = library.mremap.restype = address
    return library
