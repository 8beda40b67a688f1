"""Rows of a reduction: how many are interleaved, and whether the next one is prefetched."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.core import far_rows, is_evicted, l1_half, l1_room
from tilewright.cost.parallel import enough_iterations
from tilewright.target.target import LINE_BYTES, Target

MOST = 4
"""Rows that are interleaved at most: the latency of a row, some hundred cycles, is hidden when three others compute
meanwhile."""

PAGE = 4096
"""Bytes after which the same addresses within a page come again: cores take rows so far apart for one another (on Zen 4
norms of 1024 elements take 1.2 times as long in twos, a softmax of 1000 as AVX2 code 1.4 times)."""

LEAST_OF_ROW = 128
"""Elements of a row at least, where all elements of a tensor are reduced row by row: the lanes of the last vector are
reduced once a row, in about the time of eight vectors."""


def row_of_all(elements: int, element: int, target: Target | None) -> int:
    """Into rows of how many elements (of `element` bytes) a tensor is best cut, all of whose elements are reduced: the
    longest that leaves no remainder, and half of L1 to what else a row needs; 0 where there is none."""
    room = PAGE if target is None else l1_half(target)
    longest = max(LEAST_OF_ROW, room // element)
    found = (n for n in range(min(longest, elements // 2), LEAST_OF_ROW - 1, -1) if elements % n == 0)
    return next(found, 0)


def interleaved_rows(
    longest: int, element: int, rows: int | None, far: bool, halves: bool, once: bool, target: Target
) -> int:
    """How many of `rows` rows (None: not known) of up to `longest` elements of `element` bytes run in turns: a power of
    two. `far` says that operands come from beyond L2, `halves` that rows can be taken half of the tensor apart, `once`
    that rows are read in one pass and none is written."""
    if once and far:
        return MOST if rows is None or rows // enough_iterations(target) >= MOST else 1
    size = longest * element
    fours, twos = l1_room(target, "near_row"), l1_room(target, "near_lines")
    count = MOST if MOST * size <= fours else 2 if 2 * size <= twos else 1
    if size > PAGE // 2 and min(size % PAGE, -size % PAGE) < 2 * LINE_BYTES:
        count = 1
    beyond = far_rows(target)
    if longest >= beyond.long and far:
        count = min(count, beyond.most)
    if longest > beyond.long and far and not halves:
        count = 1
    if rows is not None:
        count = min(count, rows // enough_iterations(target))
    return 1 if count < 2 else 1 << count.bit_length() - 1


def come_from_memory(operands: Sequence[int], target: Target) -> bool:
    """Whether one of the operands, of so many bytes, is known not to be in a core's cache. Then interleaved rows are
    best far apart: the prefetchers follow each of them as they follow a single row, while neighbours that are read in
    turns confuse them (on Zen 4 sums of rows of 256 from memory take three times as long, norms of 512 from L3 half as
    long again). In a core's cache rows that far apart would take each other's sets."""
    return any(is_evicted(size, target) for size in operands)


def is_prefetched(size: int, target: Target) -> bool:
    """Whether the next row, of so many bytes, is prefetched while the current one is computed: of rows that are a large
    part of L1 the next one would take the place of the current one."""
    return size <= int(l1_room(target, "near_row"))
