"""Arrays between pages that nobody may touch: what is read beyond them ends the process."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_LIBC = ctypes.CDLL(None, use_errno=True)
_PAGE = mmap.PAGESIZE


@contextmanager
def guarded(array: np.ndarray, at_end: bool) -> Iterator[np.ndarray]:
    """A copy of the array that ends, or begins, at a page without access."""
    room = -(-max(array.nbytes, 1) // _PAGE) * _PAGE
    memory = mmap.mmap(-1, room + 2 * _PAGE)
    handle = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(handle)
    del handle
    for start in (address, address + _PAGE + room):
        if _LIBC.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(_PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    offset = _PAGE + (room - array.nbytes if at_end else 0)
    copy = np.frombuffer(memory, np.uint8, array.nbytes, offset).view(array.dtype).reshape(array.shape)
    copy[...] = array
    yield copy  # the memory goes when nothing refers to it
