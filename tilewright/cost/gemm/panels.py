"""Panels of a contraction's columns: whether copying them pays, how early they are prefetched, in how many streams they
are read, and whether what all columns read stays near while whole lines of the result are written."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.cost.core import is_kept, l2_room
from tilewright.cost.gemm.register_tile import Tile
from tilewright.target.target import LINE_BYTES, Target

FAR_LINES = 16
"""Cache lines between the steps of a sum from which on these share few sets of L1 and push one another out."""

REUSES = 4
"""Times that elements of a panel are read from which on the copy pays."""

LONGEST_RUN = 16
"""Steps of the depth between requests for memory."""

PREFETCHED_LINES = 64
"""Cache lines by which a panel that is read once is prefetched before its use: at 10 bytes in a nanosecond, some times
the latency of memory."""

STREAM_LINES = 2
"""Cache lines that a step reads of a stream at least: streams of single lines are slower than one stream, as lines
come in pairs."""

MOST_ROWS_OF_STREAMS = 2
"""Rows of a tile with several streams at most: more rows multiply for so long that one prefetched stream does
better."""

WINDOWS = 2
"""Reads of an element for a row that make up for loading it from L2."""

APART_LINES = 4
"""Cache lines from which on rows of a result are written as long runs."""


def is_far(step: int) -> bool:
    """Whether steps of a sum so many bytes apart in memory push one another out of L1."""
    return abs(step) >= FAR_LINES * LINE_BYTES


def pays_for_a_copy(reads: int, elements: int = 1) -> bool:
    """Whether a copy of so many elements is worth the time where they are read so many times."""
    return reads >= REUSES * elements


def is_prefetched(panels: int, target: Target) -> bool:
    """Whether packed operands of so many bytes come from beyond L2, so that they are prefetched."""
    return not is_kept(panels, target)


def run_between_requests(steps: int) -> int:
    """Steps of the depth, of so many, that share a request for memory: 1 where there are few, or no such divisor."""
    if steps <= LONGEST_RUN:
        return 1
    return max(d for d in range(1, LONGEST_RUN + 1) if steps % d == 0)


def prefetch_distance(step: int) -> int:
    """How many steps before its use a panel that is read once is prefetched, where a step reads so many bytes of it; 0
    where it reads less than a line, which would be requested several times."""
    return 0 if step < LINE_BYTES else -(-PREFETCHED_LINES * LINE_BYTES // step)


def streams_of(tile: Tile, element: int, target: Target) -> int:
    """Streams of equal width that the columns of a tile are cut into when they are read once."""
    if tile.rows > MOST_ROWS_OF_STREAMS:
        return 1
    most = min(tile.columns, target.bandwidth.streams)
    least = STREAM_LINES * LINE_BYTES
    whole = (d for d in range(2, most + 1) if tile.columns % d == 0)
    return max((d for d in whole if tile.columns // d * tile.lanes * element >= least), default=1)


def rows_lie_apart(steps: Iterable[int]) -> bool:
    """Whether rows of a result are so many bytes apart that pieces of a few lines, written to all of them in turn, take
    memory twice as long as whole lines of the result."""
    return all(abs(step) >= APART_LINES * LINE_BYTES for step in steps)


def why_lines_are_not_written(size: int, rereads: bool, target: Target) -> str:
    """Why row tiles should not go outside of column tiles: the bytes that all columns read would be gone for the next
    row tile; empty where they stay. `rereads` says that windows read an element several times for a row."""
    near = target.calibration.shares.near_lines * target.caches.l1d
    if size <= max(near, l2_room(target, "lines") if rereads else 0):
        return ""
    return f"the {size} bytes that their columns read do not stay near"
