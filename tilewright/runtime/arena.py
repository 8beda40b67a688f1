"""Memory that a call needs besides its inputs and outputs, kept from one call to the next."""

from __future__ import annotations

import ctypes
import os

import numpy as np

from tilewright.runtime.errors import NoMemoryError

ALIGNMENT = 64
_HUGE_PAGE = 2 << 20
_MAX_BYTES = 1 << 62
PATIENCE = 64
"""A block that none of so many requests in a row needed half of becomes smaller."""
LEAST_SHRUNK = 1 << 20
"""Bytes up to which a block is not worth making smaller."""

# looked up once: `address_of` runs for each tensor of each call
_address = ctypes.addressof
_byte_at = ctypes.c_char.from_buffer
_pointer_at = ctypes.c_void_p.from_address
_struct = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_DATA = 2 * ctypes.sizeof(ctypes.c_int) + 16 + 2 * ctypes.sizeof(ctypes.c_void_p)
"""Where the pointer to the elements lies in NumPy's `PyArrayInterface`: after two numbers, a letter, the size of an
element and flags, which take 16 bytes with what aligns them, and pointers to the shape and the strides."""


def address_of(array: np.ndarray) -> int:
    """Address of an array's first byte.

    The buffer route is the fastest, but refuses arrays that are read-only, empty or of an ml_dtypes type. For those
    `__array_struct__` takes a third of the time of `__array_interface__`.
    """
    try:
        return _address(_byte_at(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):
        return _pointer_at(_struct(array.__array_struct__, None) + _DATA).value or 0


def flat_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of an array as u8[n], in place where they lie one after the other."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def aligned_bytes(nbytes: int) -> np.ndarray:
    """An uninitialised u8[nbytes] at a multiple of 64, and of a huge page where it fills at least two; MemoryError
    when there is none."""
    alignment = _HUGE_PAGE if nbytes >= 2 * _HUGE_PAGE else ALIGNMENT
    return _aligned(np.empty(nbytes + alignment, np.uint8), nbytes, alignment)


def aligned_zeros(nbytes: int) -> np.ndarray:
    """Zeros u8[nbytes] at a multiple of 64, which take memory where they are written; MemoryError when there is
    none."""
    return _aligned(np.zeros(nbytes + ALIGNMENT, np.uint8), nbytes, ALIGNMENT)


def _aligned(block: np.ndarray, nbytes: int, alignment: int) -> np.ndarray:
    start = -address_of(block) % alignment
    return block[start : start + nbytes]


def aligned_constants(data: bytes | bytearray | memoryview) -> np.ndarray:
    """The constants as u8[n] at an aligned address: in place where they lie well, else copied once."""
    view = np.frombuffer(data, np.uint8) if memoryview(data).nbytes else np.empty(0, np.uint8)
    if address_of(view) % ALIGNMENT == 0:
        return view
    copy = aligned_bytes(view.size)
    copy[:] = view
    return copy


def release_free_memory() -> None:
    """Ask the C library to give memory that is free to the operating system (glibc keeps much of it)."""
    if _malloc_trim is not None:
        _malloc_trim(ctypes.c_size_t(0))


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None


class Arena:
    """A block of memory that grows to the largest size asked for.

    It becomes smaller when `PATIENCE` requests in a row needed less than half of it.
    """

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose
        self._block = aligned_bytes(0)
        self.address = address_of(self._block)
        self._most = self._requests = 0

    @property
    def nbytes(self) -> int:
        """The size of the block."""
        return self._block.size

    def reserve(self, nbytes: int) -> None:
        """Make room for `nbytes`; what was there is lost. NoMemoryError when there is not so much memory."""
        most = self._most_of_late(nbytes)
        if nbytes > self._block.size:
            self._renew(nbytes)
        elif most is not None and self._block.size > max(2 * most, LEAST_SHRUNK):
            self._renew(most)

    def _most_of_late(self, nbytes: int) -> int | None:
        """The most of the last `PATIENCE` requests; None unless this one is the last of so many."""
        self._most = max(self._most, nbytes)
        self._requests += 1
        if self._requests < PATIENCE:
            return None
        most, self._most, self._requests = self._most, 0, 0
        return most

    def _renew(self, nbytes: int) -> None:
        if nbytes > _MAX_BYTES:
            raise self._no_memory(nbytes)
        # The old block goes first, so that both never exist together.
        self._block = aligned_bytes(0)
        self.address = address_of(self._block)
        try:
            self._block = aligned_bytes(nbytes)
        except (MemoryError, ValueError) as error:
            raise self._no_memory(nbytes) from error
        self.address = address_of(self._block)

    def _no_memory(self, nbytes: int) -> NoMemoryError:
        return NoMemoryError(
            f"no memory for the {self._purpose}: {nbytes} bytes are needed",
            hint="use smaller inputs (batch, sequence length), fewer threads, or a machine with more memory",
        )
