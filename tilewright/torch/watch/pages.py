"""Pages of memory that were written to, as Linux tells: a look at a gigabyte costs half a millisecond.

A range is registered with a userfaultfd in its asynchronous mode (Linux 6.7): its pages are write-protected, and at the
first write to one the kernel lifts that by itself, with no signal and no handler. Which pages are not protected any
more, PAGEMAP_SCAN tells. That holds for every write through this process's pages, system calls included. What others
write to memory that is mapped twice (shared memory, files) goes past it: such ranges are refused. Where the kernel, a
container's rules or the platform know no such thing, every range is.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tilewright.torch.watch.native import PAGEMAP_SCAN, SCAN

try:
    import fcntl
except ImportError:  # pragma: no cover - there is none on Windows
    fcntl = None  # type: ignore[assignment]

PAGE = mmap.PAGESIZE
Range = tuple[int, int]
"""The addresses of a first byte and behind the last one, both at the start of a page."""

_SYSCALLS = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = (
    1  # what processes without privileges may ask for; asynchronous faults need no handler anyway
)
_API, _REGISTER, _UNREGISTER, _PROTECT = 0xC018AA3F, 0xC020AA00, 0x8010AA01, 0xC018AA06
_VERSION, _WRITES = 0xAA, 2
_UNPOPULATED, _ASYNC = 1 << 13, 1 << 15
_CHECK_REGISTERED = 2
_WRITTEN, _PRESENT = 1 << 1, 1 << 3


def scan_of(range: Range, found: int) -> tuple[int, ...]:
    """The words of a scan for one page of a range that was written to or is gone; `found` is where it is put. It fails
    where a part of the range is not registered any more."""
    either = _WRITTEN | _PRESENT
    return 8 * SCAN, _CHECK_REGISTERED, *range, 0, found, 1, 1, _PRESENT, 0, either, either


class Pages:
    """The ranges that are registered in this process."""

    def __init__(self) -> None:
        self.generation = 0
        """Another number each time that marks of pages were taken away which somebody may have waited for."""
        self.found = ctypes.create_string_buffer(64)
        self.pagemap = -1
        self._faults: int | None = None
        self._users: dict[Range, int] = {}
        self._lock = threading.Lock()

    def track(self, ranges: Sequence[Range]) -> list[Range]:
        """Those of the ranges whose writes are seen from now on. Each is to be given back by `release`."""
        with self._lock:
            if not ranges or not self._open():
                return []
            private = _private_ranges()
            return [r for r in ranges if _holds(private, r) and self._protect(r)]

    def release(self, ranges: Sequence[Range]) -> None:
        with self._lock:
            for range in ranges:
                left = self._users.get(range, 0) - 1
                if left > 0:
                    self._users[range] = left
                elif self._users.pop(range, None) is not None and self._faults is not None:
                    with contextlib.suppress(OSError):  # the memory may be gone
                        fcntl.ioctl(self._faults, _UNREGISTER, bytearray(struct.pack("QQ", *_extent(range))))

    def forget(self) -> None:
        """In a forked child: what is open belongs to the parent, and no range of this process is registered."""
        for file in (self._faults, self.pagemap):
            if file is not None and file >= 0:
                os.close(file)
        self._faults, self.pagemap = None, -1
        self._users.clear()
        self._lock = threading.Lock()
        self.generation += 1

    def _open(self) -> bool:
        if self._faults is None:
            self._faults = _open_faults()
            if self._faults >= 0:
                try:
                    self.pagemap = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    os.close(self._faults)
                    self._faults = -1
        return self._faults >= 0

    def _protect(self, range: Range) -> bool:
        """Protect the pages of a range; those who wait for writes to them are told to look for themselves."""
        assert self._faults is not None
        users = self._users.get(range, 0)
        if not users or self._is_written(range):
            if any(start < range[1] and range[0] < end for start, end in self._users):
                self.generation += 1  # before marks go: who looks in between must not take them for clean
            try:
                fcntl.ioctl(
                    self._faults, _REGISTER, bytearray(struct.pack("QQQQ", *_extent(range), _WRITES, 0))
                )
                fcntl.ioctl(self._faults, _PROTECT, bytearray(struct.pack("QQQ", *_extent(range), 1)))
            except OSError:
                return False
            if self._is_written(range):  # another thread wrote just now, or a kernel that cannot do it
                return False
        self._users[range] = users + 1
        return True

    def _is_written(self, range: Range) -> bool:
        words = struct.pack(f"{SCAN}Q", *scan_of(range, ctypes.addressof(self.found)))
        try:
            return fcntl.ioctl(self.pagemap, PAGEMAP_SCAN, bytearray(words)) != 0
        except OSError:
            return True


def _open_faults() -> int:
    """A userfaultfd with asynchronous protection of pages; -1 where there is none."""
    number = _SYSCALLS.get(platform.machine()) if sys.platform == "linux" else None
    if number is None:
        return -1
    file = int(ctypes.CDLL(None).syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY))
    if file < 0:
        return -1
    try:
        fcntl.ioctl(file, _API, bytearray(struct.pack("QQQ", _VERSION, _UNPOPULATED | _ASYNC, 0)))
    except OSError:
        os.close(file)
        return -1
    return file


def _extent(range: Range) -> Range:
    return range[0], range[1] - range[0]


def _private_ranges() -> list[Range]:
    """The memory of this process that nothing else can be mapped to: anonymous and private, in order."""
    found: list[Range] = []
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    for line in lines:
        addresses, modes, _, _, inode, *_ = line.split()
        if modes[3] != "p" or inode != "0":
            continue
        start, end = (int(part, 16) for part in addresses.split("-"))
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _holds(held: Sequence[Range], range: Range) -> bool:
    return any(start <= range[0] and range[1] <= end for start, end in held)
