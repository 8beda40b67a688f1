"""Pages that several memories share: who writes to one has a copy of it from then on.

    for a part of some memory that is to be copied:
        its pages go to a file without a name, which is mapped in their place      (they are written once)
        the copy maps the same pages of the file

A mapping is private, so writes reach neither the file nor the others.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilewright.runtime.arena import address_of

LEAST = 8 * mmap.PAGESIZE
"""Bytes that are worth a mapping of their own."""
MOST = 1 << 14
"""Parts of memories that a process maps from files at most: each may be two mappings more, of which Linux gives 65,530
by default."""
MOST_FILES = 256
"""Files that a process has open for them at most, of which Linux gives 1,024 by default."""

_Range = tuple[int, int]

_FIXED = 0x10 | getattr(mmap, "MAP_PRIVATE", 2) | 0x4000  # MAP_FIXED, MAP_NORESERVE on Linux
_ANONYMOUS = getattr(mmap, "MAP_ANONYMOUS", 0)
_READ_WRITE = 3
_IS_THERE = hasattr(os, "memfd_create") and hasattr(ctypes, "CDLL")


class PageFile:
    """A file without a name, which is there as long as somebody maps parts of it."""

    def __init__(self) -> None:
        self._file = -1
        self._size = 0

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            _FILES.less(1)

    def added(self, part: np.ndarray) -> int:
        """Where u8[n] lies in it. OSError where there is no room, or are too many files."""
        if self._file < 0:
            if _FILES.now >= MOST_FILES:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            self._file = os.memfd_create("tilewright", os.MFD_CLOEXEC)
            _FILES.less(-1)
        offset, left = self._size, part.data
        while left:
            written = os.pwrite(self._file, left, self._size)
            self._size, left = self._size + written, left[written:]
        return offset

    def map(self, address: int, count: int, offset: int) -> bool:
        """Let pages of memory be some of the file; whether they are. Where there are too many mappings Linux says so
        before it takes the old one away."""
        return _map(address, count, self._file, offset)


def _map(address: int, count: int, file: int, offset: int) -> bool:
    flags = _FIXED | (_ANONYMOUS if file < 0 else 0)
    found: int | None = _native()(address, count, _READ_WRITE, flags, file, offset)
    return found == address


@lru_cache(maxsize=1)
def _native() -> ctypes._NamedFuncPointer:
    function = ctypes.CDLL(None).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = [
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong
    ]  # fmt: skip
    return function


@dataclass(frozen=True)
class _Part:
    """Bytes of a memory, whole pages, that are what lies at an offset of a file, as long as nobody writes to them."""

    begin: int
    end: int
    file: PageFile
    offset: int

    def within(self, begin: int, end: int) -> _Part | None:
        """What of it lies between two bytes, as whole pages."""
        first, last = max(self.begin, _up(begin)), min(self.end, _down(end))
        return _Part(first, last, self.file, self.offset + first - self.begin) if first < last else None


@dataclass(eq=False)
class SharedPages:
    """What of a memory, an array of bytes, others may share, or it shares with others. `mapped` are the bytes that are
    pages of files, or were before somebody wrote to them: these mappings stay."""

    array: np.ndarray
    parts: list[_Part] = field(default_factory=list)
    mapped: list[_Range] = field(default_factory=list)

    def __del__(self) -> None:
        _COUNT.less(len(self.mapped))

    def copy_from(self, other: SharedPages, begin: int, end: int, file: PageFile) -> None:
        """Hold what the other has between two bytes, of which this one has no parts. Pages of the other that are in no
        file yet go to this one."""
        if _IS_THERE and end - begin >= LEAST:
            other._freeze(begin, end, file)
        at = begin
        for known in [p for p in other.parts if p.begin < end and begin < p.end]:
            part = known.within(begin, end)
            if part is not None and part.end - part.begin >= LEAST and self._take(part):
                self.array[at : part.begin] = other.array[at : part.begin]
                at = part.end
        self.array[at:end] = other.array[at:end]

    def written(self, begin: int, end: int) -> None:
        """Somebody writes, or may write, to these bytes: nobody shares them from now on."""
        for part in [p for p in self.parts if p.begin < end and begin < p.end]:
            self.parts.remove(part)
            rest = [part.within(part.begin, begin), part.within(end, part.end)]
            self.parts += [p for p in rest if p is not None]
        self.parts.sort(key=lambda part: part.begin)

    def let_be_zeros(self, begin: int, end: int) -> bool:
        """Let pages be zeros again, whatever they were; whether they are."""
        done = _map(address_of(self.array) + begin, end - begin, -1, 0)
        if done:
            self._set_mapped(_without(self.mapped, begin, end))
        return done

    def _freeze(self, begin: int, end: int, file: PageFile) -> None:
        """Let whole pages that are no part yet become some."""
        for first, last in self._others(_up(begin), _down(end)):
            if last - first < LEAST or _COUNT.now >= MOST:
                continue
            try:
                offset = file.added(self.array[first:last])
            except OSError:  # no room, or too many files
                return
            self._take(_Part(first, last, file, offset))

    def _others(self, begin: int, end: int) -> Sequence[tuple[int, int]]:
        """What lies between the parts."""
        found = []
        for part in [p for p in self.parts if p.begin < end and begin < p.end]:
            found.append((begin, part.begin))
            begin = part.end
        return [*found, (begin, end)]

    def _take(self, part: _Part) -> bool:
        """Let a part of the memory be pages of a file; whether it is."""
        if _COUNT.now >= MOST:
            return False
        taken = part.file.map(address_of(self.array) + part.begin, part.end - part.begin, part.offset)
        if taken:
            self.parts.append(part)
            self.parts.sort(key=lambda part: part.begin)
            self._set_mapped([*_without(self.mapped, part.begin, part.end), (part.begin, part.end)])
        return taken

    def _set_mapped(self, mapped: list[_Range]) -> None:
        _COUNT.less(len(self.mapped) - len(mapped))
        self.mapped = mapped


class _Count:
    """Of parts or files in this process, about: threads may count at once."""

    now = 0

    def less(self, count: int) -> None:
        self.now -= count


_COUNT, _FILES = _Count(), _Count()


def _without(ranges: Sequence[_Range], begin: int, end: int) -> list[_Range]:
    """What lies outside of some bytes."""
    cut = (piece for first, last in ranges for piece in ((first, min(last, begin)), (max(first, end), last)))
    return [(first, last) for first, last in cut if first < last]


def _up(place: int) -> int:
    return -(-place // mmap.PAGESIZE) * mmap.PAGESIZE


def _down(place: int) -> int:
    return place // mmap.PAGESIZE * mmap.PAGESIZE
