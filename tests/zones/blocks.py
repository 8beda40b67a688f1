"""Blocks that native code allocates by itself (values of native steps, thread pools), between guard zones.

The C library's functions have other addresses for code that is linked from then on, in this process.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from tilewright.runtime.guarded.pages import ZonedBuffer
from tilewright.runtime.storage.loader import IMPORTS

if TYPE_CHECKING:
    from tests.zones.turned_on import TestZones

_NO_MEMORY = 12  # ENOMEM
_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_LIBC = ctypes.CDLL(None)
_LIBC.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
_LIBC.free.argtypes = [ctypes.c_void_p]

LARGEST = 1 << 32
"""Bytes from which on the C library has to say whether there are so many."""


class Blocks:
    """`posix_memalign` and `free` for native code: blocks end at the end of pages, and are looked at when freed."""

    def __init__(self, zones: TestZones) -> None:
        self._zones = zones
        self._taken: dict[int, ZonedBuffer] = {}
        self._functions: tuple[Any, ...] = (_ALLOCATE(self._allocate), _FREE(self._free))
        for name, function in zip(("posix_memalign", "free"), self._functions, strict=True):
            IMPORTS[name] = ctypes.cast(function, ctypes.c_void_p).value or 0

    def _allocate(self, at: int, alignment: int, nbytes: int) -> int:
        if not self._zones.is_on or nbytes >= LARGEST:
            return int(_LIBC.posix_memalign(at, alignment, nbytes))
        try:
            block = ZonedBuffer(self._zones.memory, "block of native code", nbytes, alignment)
        except MemoryError:
            return _NO_MEMORY
        block.fill()
        self._taken[block.address] = block
        ctypes.c_void_p.from_address(at).value = block.address
        return 0

    def _free(self, address: int | None) -> None:
        block = self._taken.pop(address or 0, None)
        if block is None:
            _LIBC.free(address)
            return
        found = [*self._zones.memory.findings(), block.stores_beside()]
        self._zones.found += [one.text for one in found if one is not None]
        block.release()
