"""Pages of this process whose rights change: none can ever be written and run at once."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np

from tilewright.runtime.arena import address_of

READ = 1
READ_WRITE = 3
READ_EXECUTE = 5
"""Rights as mprotect has them, on each system."""

_LIBC = ctypes.CDLL(None, use_errno=True) if os.name == "posix" else None
_forget_code = getattr(_LIBC, "sys_icache_invalidate", None)
"""Of macOS; Linux does so itself when pages become executable."""


def allows_code() -> bool:
    """Whether the system lets this process run what it has written to memory."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        protect(address_of_pages(page), mmap.PAGESIZE, READ_EXECUTE)
    except OSError:
        return False
    return True


def address_of_pages(pages: mmap.mmap) -> int:
    """Where mapped memory begins, which must live as long as the address is used."""
    return address_of(np.frombuffer(pages, np.uint8))


def protect(address: int, size: int, rights: int) -> None:
    """Change what may be done with whole pages; OSError where the system forbids it."""
    if size == 0:
        return
    assert _LIBC is not None, "models run on Linux and macOS"
    if rights == READ_EXECUTE and _forget_code is not None:
        _forget_code(ctypes.c_void_p(address), ctypes.c_size_t(size))
    if _LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), rights):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
