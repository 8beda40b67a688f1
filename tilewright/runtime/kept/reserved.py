"""Memory whose addresses are reserved, and which is there from when it is first written to."""

from __future__ import annotations

import mmap

import numpy as np

from tilewright.runtime.arena import address_of, aligned_bytes
from tilewright.runtime.errors import NoMemoryError
from tilewright.runtime.kept.contiguous import HUGE_PAGE, PIECES, UNIT, are_there
from tilewright.runtime.kept.shared_pages import PageFile, SharedPages

_FLAGS = sum(getattr(mmap, name, 0) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_NORESERVE"))
_DONT_NEED = getattr(mmap, "MADV_DONTNEED", None)
LEAST = 8 * UNIT
"""Bytes from which on memory is worth pieces that lie together."""

_UNITS = HUGE_PAGE // UNIT
_PIECE, _PAGE = 1, 2
"""What a unit belongs to."""


class Reserved:
    """`array`, u8[nbytes] of zeros at first. The operating system gives a page when something is written there, and
    copies share pages until they are written to."""

    def __init__(self, nbytes: int, purpose: str) -> None:
        self._block: mmap.mmap | None = None
        self._shared: SharedPages | None = None
        self._laid = bytearray()
        self._pieces: set[int] = set()
        try:
            if nbytes >= mmap.PAGESIZE and _FLAGS and _DONT_NEED is not None:
                self._block = mmap.mmap(-1, nbytes, flags=_FLAGS)
                self.array = np.frombuffer(self._block, np.uint8)
                self._shared = SharedPages(self.array)
                self._laid = bytearray(max((address_of(self.array) + nbytes) // UNIT - self._first, 0))
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
        first, last = self._units(begin, end)
        self._laid[first:last] = bytes(len(self._laid[first:last]))
        if not self._shared.mapped:
            self._block.madvise(_DONT_NEED, begin, end - begin)
        elif not self._shared.let_be_zeros(begin, end):
            self.array[begin:end] = 0

    def lie_together(self, begin: int, end: int, whole: int, filled: int) -> int:
        """Let the first bytes between two places that do not yet lie together do so: one piece, so many bytes, or none
        where all do. `begin` is where one of the parts begins that take `whole` bytes each and are filled so far; what
        lies behind that is lost. What these parts fill at least half of, if all end as far behind their begin, becomes
        a huge page. Memory that is shared stays as it is, and all does where the system has no huge pages."""
        if self._block is None or self._shared is None or self._shared.mapped or not are_there():
            return 0
        first, last = self._units(begin, end)
        found = self._page_of(first, last, whole, end - begin) or self._piece_of(first, last)
        if found is None or len(self._laid) * UNIT < LEAST:
            return 0
        unit, count = found
        kind = _PAGE if count == _UNITS else _PIECE
        self._laid[unit : unit + count] = bytes([kind]) * count  # also where it is refused: nobody asks again
        place, size = self._place(unit), count * UNIT
        if not PIECES.move(place + address_of(self.array), size, self._held(place, size, whole, filled)):
            return 0
        gone = {piece for piece in self._pieces if unit <= piece < unit + count}
        self._pieces = self._pieces - gone | {unit}
        PIECES.given_up(len(gone))
        return size

    def _page_of(self, first: int, last: int, whole: int, filled: int) -> tuple[int, int] | None:
        """The next huge page, among some units and their neighbours, that is filled for the most part and is none."""
        begin = first - (self._first + first) % _UNITS
        for unit in range(begin if begin >= 0 else begin + _UNITS, min(last, len(self._laid) - _UNITS + 1), _UNITS):
            held = self._held(self._place(unit), HUGE_PAGE, whole, filled)
            if self._laid[unit] != _PAGE and 2 * sum(end - start for start, end in held) >= HUGE_PAGE:
                return unit, _UNITS
        return None

    def _piece_of(self, first: int, last: int) -> tuple[int, int] | None:
        """The next units, of some, that are in no piece and may become one, which begins at a multiple of its size."""
        unit = self._laid.find(0, first, last)
        if unit < 0:
            return None
        count = 1
        while (
            2 * count <= min(last - unit, _UNITS)
            and not (self._first + unit) % (2 * count) and not any(self._laid[unit : unit + 2 * count])
        ):  # fmt: skip
            count *= 2
        return unit, count

    def _place(self, unit: int) -> int:
        return (self._first + unit) * UNIT - address_of(self.array)

    @property
    def _first(self) -> int:
        """The first unit that lies within."""
        return -(-address_of(self.array) // UNIT)

    def _units(self, begin: int, end: int) -> tuple[int, int]:
        """Those that bytes between two places lie in, of all that lie within."""
        base = address_of(self.array) - self._first * UNIT
        return max((base + begin) // UNIT, 0), min(-(-(base + end) // UNIT), len(self._laid))

    def _held(self, place: int, size: int, whole: int, filled: int) -> list[tuple[int, int]]:
        """The addresses between which some bytes are filled."""
        base = address_of(self.array)
        parts = range(place // whole * whole, place + size, whole)
        found = ((max(place, part), min(place + size, part + filled)) for part in parts)
        return [(base + begin, base + end) for begin, end in found if begin < end]

    def __del__(self) -> None:
        PIECES.given_up(len(self._pieces))

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
