"""Data movement: transposes by squares of registers, results that are stored past the caches, weights that stay
quantised."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.cost.core import fits_l2, is_kept, largest_cache, requests_stores, rows_of_short_weights
from tilewright.ir.sym import Sym, gt
from tilewright.target.target import LINE_BYTES, VECTOR_BYTES, Target

SMALLEST_SQUARE, LARGEST_SQUARE = 4, 16
"""Rows of a square: fewer are read faster one by one, more would not fit the registers of any target."""

IDLE_SHARE = 4
"""A vector of so many parts, of which one is filled, is worth a pass over the data."""

LEAST_RUN = 4
"""Elements beside one another from which on one index for all of them is faster than one for each: vectors of fewer are
hardly faster than single loads."""

BLOCK = 1024
"""Elements of the result's rows that squares go along before those of the next rows: each is in a cache line of the
operand of its own, and these lines are to stay in L2."""


LEAST_SHARED = 64 << 10
"""Bytes of a constant from which on kernels are made to read one copy of it."""


def side_of_square(element: int, extents: Iterable[int], target: Target) -> int:
    """Rows and columns of a square of elements of so many bytes: lanes of one register, fewer for short axes; 0 where
    there is no such square. `extents` are those of the two axes that are known."""
    side = min(LARGEST_SQUARE, target.vector_bits // 8 // element)
    known = list(extents)
    while side >= SMALLEST_SQUARE and any(n < side for n in known):
        side //= 2
    return side if side >= SMALLEST_SQUARE else 0


def leaves_lanes_idle(line: int, element: int) -> bool:
    """Whether sums whose vectors lie along lines of so many elements take longer than to bring these into that order
    afterwards."""
    return IDLE_SHARE * line * element <= VECTOR_BYTES


def block_of_squares(extent: int | None, side: int) -> int:
    """Elements of the result's rows that squares go along: blocks of equal numbers of squares; 0 for all of them, where
    they are few or their number is not known."""
    if extent is None or extent <= BLOCK:
        return 0
    blocks = -(-extent // BLOCK)
    return side * -(-extent // (blocks * side))


def lines_come_late(size: int | None, target: Target) -> bool:
    """Whether lines of a result of so many bytes (None: not known) come from L3 or memory, so that they are
    prefetched."""
    return requests_stores(target) and (size is None or not is_kept(size, target))


def passes_caches(size: Sym, target: Target) -> Sym:
    """When a result of so many bytes is stored past the caches: no cache could hold it until it is read, so that to
    read its lines before they are written is wasted."""
    return gt(size, largest_cache(target))


def weights_stay_quantized(wide: int, target: Target) -> bool:
    """Whether weights of so many bytes, all together, are better dequantised each time they are read."""
    return not fits_l2(wide, target)


def reads_weights_once(rows: int | None, target: Target) -> bool:
    """Whether so many rows (None: not known) are so few that their product waits for its weights, and gains by reading
    half of the bytes; others gain more by weights that are cut into blocks as they are."""
    return rows is None or rows <= rows_of_short_weights(target)


def are_picked(elements: int, size: int) -> bool:
    """Whether so many elements that are read of a constant of so many bytes may each come from a line of its own: this
    takes no longer than another kernel takes to read all of it."""
    return elements * LINE_BYTES <= size
