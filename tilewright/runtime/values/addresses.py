"""Memory of the process as arrays, by its addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np


def bytes_at(address: int | None, count: int) -> np.ndarray:
    """The memory of so many bytes at an address."""
    if not count or address is None:
        return np.empty(0, np.uint8)
    return np.frombuffer(memoryview((ctypes.c_uint8 * count).from_address(address)).cast("B"), np.uint8)


def memory_of(table: int | None, sizes: Sequence[int]) -> list[np.ndarray]:
    """The bytes of tensors, whose addresses stand in a table."""
    addresses = (ctypes.c_void_p * len(sizes)).from_address(table or 0) if sizes else ()
    return [bytes_at(address, n) for address, n in zip(addresses, sizes, strict=True)]
