"""What it costs to compute tensors some rows at a time."""

from __future__ import annotations

from tilewright.cost.core import move_cycles, source_of
from tilewright.cost.elementwise import CYCLES_OF_A_COPY, CYCLES_OF_A_LOOP
from tilewright.target.target import VECTOR_BYTES, Target

ALIGNMENT = 64
"""Bytes to a multiple of which tensors are counted, as the planner of memory aligns them."""

CYCLES_OF_A_PIECE = 400
"""Cycles that a kernel takes more for each further piece of its rows, but for reading its weights again: it is called
once more, and fills fewer tiles. Assumed, not measured."""

MOST_OPS = 48
"""Kernels and views of one cascade, at most, so that few are tried. Assumed, not measured."""

PIECES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 1 << 20)
"""In how many pieces tensors of a cascade are tried; with the last one each row is a piece."""

CLOSE = 256
"""The least bytes of a program are searched for up to this part of them. Assumed, not measured."""

TOO_MUCH = 1 << 62
"""Bytes of a cascade that cannot be computed in so many pieces."""

MOST_KERNELS = 1000
"""Calls of kernels that a cascade is made of, at most: each further one is work for the compiler."""


def cycles_of_weights(bytes: int, all: int, target: Target | None) -> float:
    """Cycles in which a kernel that is called for further rows reads its weights again, after the weights of all
    kernels of a cascade."""
    return 0.0 if target is None else move_cycles(bytes, source_of(all, target), target)


def cycles_of_copy(bytes: int) -> float:
    """Cycles of a kernel that moves so many bytes."""
    return CYCLES_OF_A_PIECE + CYCLES_OF_A_LOOP + CYCLES_OF_A_COPY * -(-bytes // VECTOR_BYTES)
