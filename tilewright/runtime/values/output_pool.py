"""Memory of a call's outputs: aligned, and used again once nobody holds the arrays that were made of it."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.arena import address_of, aligned_bytes
from tilewright.runtime.values.inputs import Shape

LEAST_BYTES = 4096
"""Smaller outputs are ordinary new arrays: making one costs less than a look at a block."""
_MOST_TIMES = 2
"""A block that is larger than an output by more than this is not used for it: who keeps the output keeps the block."""

# names without a dot are found faster, and these are called for each output of each call
_empty, _array, _reference = np.empty, np.ndarray, weakref.ref


class Results:
    """Makes the output arrays of calls, one call after the other.

    New memory is dear: a large block comes from the operating system page by page while kernels write it, and the
    allocator aligns to 16 bytes, so each store of a whole vector would touch two cache lines. So an output gets a
    block of its own, whose memory serves again as soon as the array made of it is gone.
    """

    def __init__(self) -> None:
        self.shapes: list[tuple[Shape, np.dtype]] = []
        self._blocks: list[_Block | None] = []

    def plan(self, shapes: Sequence[tuple[Shape, np.dtype]]) -> None:
        """The shapes and dtypes of the outputs from now on; what earlier calls have handed out stays untouched."""
        old = self._blocks or [None] * len(shapes)
        self.shapes = list(shapes)
        self._blocks = [
            _fitting(block, math.prod(shape) * dtype.itemsize)
            for block, (shape, dtype) in zip(old, shapes, strict=True)
        ]

    def make(self, addresses: Any) -> list[np.ndarray]:
        """Arrays for the outputs, of any content, and their addresses, which are written to an array of ctypes.

        MemoryError, ValueError, OverflowError: there is not so much memory.
        """
        made = []
        for index, (shape, dtype) in enumerate(self.shapes):
            block = self._blocks[index]
            if block is None:
                array = _empty(shape, dtype)
                addresses[index] = address_of(array)
            else:
                array = block.lend(shape, dtype)
                addresses[index] = block.address
            made.append(array)
        return made


_Reference = Callable[[], "np.ndarray | None"]
"""A weak reference to an array: itself, or None once it is gone."""


class _Block:
    """Memory for one output: of the array handed out last, and of the one before, which callers often still hold while
    they compute the next. `address` is that of the last."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = 0
        self._memory: Any = None  # an array of ctypes
        self._lent: _Reference = _never
        self._before: tuple[Any, int, _Reference] = (None, 0, _never)

    def lend(self, shape: Shape, dtype: np.dtype) -> np.ndarray:
        """An array in memory of which the last array is gone, else in new memory, which is the block's from now on.

        The memory belongs to an object that is no array. So views of the array hold the array itself (NumPy
        shortens chains of views only as far as the last array), and as long as it lives somebody can see the memory.
        """
        if self._memory is None or self._lent() is not None:
            last = (self._memory, self.address, self._lent)
            self._memory, self.address, self._lent = self._before
            self._before = last
            if self._memory is None or self._lent() is not None:
                self._renew()
        made = _array(shape, dtype, self._memory)
        self._lent = _reference(made)
        return made

    def _renew(self) -> None:
        self._memory = None
        memory: Any = aligned_bytes(self.nbytes)
        self._memory = (ctypes.c_char * self.nbytes).from_buffer(memory)
        self.address = address_of(memory)


def _never() -> None:
    """Stands for a reference to an array where none was handed out."""


def _fitting(block: _Block | None, nbytes: int) -> _Block | None:
    if nbytes < LEAST_BYTES:
        return None
    if block is not None and nbytes <= block.nbytes <= _MOST_TIMES * nbytes:
        return block
    return _Block(nbytes)
