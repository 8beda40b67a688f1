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
_DONT_NEED = getattr(mmap, "MADV_DONTNEED", -1)
_CAN_RESERVE = bool(_FLAGS) and _DONT_NEED >= 0
_NO_MEMORY = MemoryError, OSError, OverflowError, ValueError
_COLLAPSE = 25 if sys.platform == "linux" else None
"""`MADV_COLLAPSE`, which Linux has from 6.1 on."""
HUGE_PAGE = 2 << 20
"""Bytes; where the system's are larger, none is made."""


class _Block:
    """Bytes that the operating system gives as they are written to, of which some `Reserved` have a part each."""

    def __init__(self, nbytes: int) -> None:
        self.memory = mmap.mmap(-1, nbytes, flags=_FLAGS)
        self.array = np.frombuffer(self.memory, np.uint8)
        self.shared: list[SharedPages] = []
        self._huge: set[int] = set()
        self._seen: tuple[int, int] | None = None  # of what there was no page more

    def forgotten(self, begin: int, end: int) -> None:
        """These bytes were given back, so that their pages may become huge again."""
        self._huge = {page for page in self._huge if page >= end or page + HUGE_PAGE <= begin}
        self._seen = None

    def lie_in_huge_page(self, whole: int, filled: int) -> bool:
        """See `Reserved.lie_in_huge_page`."""
        if self._seen == (whole, filled) or any(pages.mapped for pages in self.shared):
            return False
        first = -address_of(self.array) % HUGE_PAGE
        for page in range(first, self.array.nbytes - HUGE_PAGE + 1, HUGE_PAGE):
            if page in self._huge or 2 * _filled_between(page, page + HUGE_PAGE, whole, filled) < HUGE_PAGE:
                continue
            self._huge.add(page)
            self.array[page] = self.array[page]  # nothing becomes huge of which nothing is there
            with contextlib.suppress(OSError):  # a kernel that has them not, or no free memory in one piece
                self.memory.madvise(_COLLAPSE or 0, page, HUGE_PAGE)
            return True
        self._seen = whole, filled
        return False


class Reserved:
    """`array`, u8[nbytes] of zeros at first. The operating system gives a page when something is written there, and
    copies share pages until they are written to."""

    def __init__(self, nbytes: int, purpose: str, block: _Block | None = None, begin: int = 0) -> None:
        """NoMemoryError where there is none. With a block it is the part of it that begins there."""
        self._shared: SharedPages | None = None
        if block is None and nbytes >= mmap.PAGESIZE and _CAN_RESERVE:
            block = _new_block(nbytes, purpose)
        self._block, self._begin = block, begin
        if block is not None:
            self.array = block.array[begin : begin + nbytes]
            self._shared = SharedPages(self.array)
            block.shared.append(self._shared)
            return
        try:
            self.array = aligned_bytes(nbytes)
            self.array[...] = 0
        except _NO_MEMORY as error:
            raise _no_memory(nbytes, purpose) from error

    @staticmethod
    def side_by_side(nbytes: int, count: int, purpose: str) -> list[Reserved]:
        """Several of one size, which fill huge pages together where each is smaller than one."""
        if nbytes < mmap.PAGESIZE or nbytes % mmap.PAGESIZE or not _CAN_RESERVE:
            return [Reserved(nbytes, purpose) for _ in range(count)]
        block = _new_block(nbytes * count, purpose)
        return [Reserved(nbytes, purpose, block, n * nbytes) for n in range(count)]

    def forget(self, begin: int, end: int) -> None:
        """Give whole pages of these bytes back: they are zeros again. Others stay as they are."""
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if self._block is None or self._shared is None or begin >= end:
            return
        self._shared.written(begin, end)
        self._block.forgotten(self._begin + begin, self._begin + end)
        if not self._shared.mapped:
            self._block.memory.madvise(_DONT_NEED, self._begin + begin, end - begin)
        elif not self._shared.let_be_zeros(begin, end):
            self.array[begin:end] = 0

    def lie_in_huge_page(self, whole: int, filled: int) -> bool:
        """Of parts that begin every `whole` bytes, here and in what lies beside, and are filled so far, or will be, let
        the next of what fills at least half of a huge page lie in one, so that it takes at most twice the memory;
        whether there was such a page. Each takes up to some milliseconds, so callers do not wait for all at once, and a
        third of that where little was written. Processors look addresses up once for each page, which takes nearly as
        long as to read a small one where the machine is a virtual one. Memory that is shared stays as it is, and all
        does where the system has no huge pages."""
        return self._block is not None and _COLLAPSE is not None and self._block.lie_in_huge_page(whole, filled)

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


def _new_block(nbytes: int, purpose: str) -> _Block:
    try:
        return _Block(nbytes)
    except _NO_MEMORY as error:
        raise _no_memory(nbytes, purpose) from error


def _no_memory(nbytes: int, purpose: str) -> NoMemoryError:
    return NoMemoryError(
        f"no memory for {purpose}: {nbytes} bytes are needed",
        hint="use smaller sizes, or a machine with more memory",
    )


def _filled_between(begin: int, end: int, whole: int, filled: int) -> int:
    """Bytes between two places that are filled, of parts that begin every `whole` bytes and are filled so far."""
    return _filled_before(end, whole, filled) - _filled_before(begin, whole, filled)


def _filled_before(place: int, whole: int, filled: int) -> int:
    return place // whole * filled + min(place % whole, filled)
