"""Panels of a contraction's columns: whether copying them pays, how early they are prefetched, in how many streams they
are read, and whether what all columns read stays near while whole lines of the result are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilewright.cost.core import (
    begin_cycles,
    exposed_load_cycles,
    is_kept,
    l1_room,
    l1_sets,
    l2_room,
    lines_before_bytes,
    move_cycles,
    pass_cycles,
    streams,
)
from tilewright.cost.gemm.register_tile import Tile, registers_per_vector
from tilewright.target.target import LINE_BYTES, Target

FAR_LINES = 16
"""Cache lines between the steps of a sum from which on these share few sets of L1 and push one another out."""

MASK_INSTRUCTIONS = 8
"""That make a mask from an index: where lanes end, at least none and at most all of them, their bits, in a register."""

LONGEST_RUN = 16
"""Steps of the depth between requests for memory."""

PREFETCHED_LINES = 64
"""Cache lines by which a panel that is read once is prefetched before its use: at 10 bytes in a nanosecond, some times
the latency of memory."""

LINES_OF_NARROW_WEIGHTS = 2 * PREFETCHED_LINES
"""The same for weights that are made floats when they are read: 42 GB/s of 43, 30 without requests, 37 by half as many
(Zen 5, one row, 4 bits)."""

STREAM_LINES = 2
"""Cache lines that a step reads of a stream at least: streams of single lines are slower than one stream, as lines
come in pairs."""

MOST_ROWS_OF_STREAMS = 2
"""Rows of a tile with several streams at most: more rows multiply for so long that one prefetched stream does
better."""

WINDOWS = 2
"""Reads of an element for a row that make up for loading it from L2."""

RUN_LINES = 4
"""Cache lines of a row that a copy reads together at least: of single lines of rows that lie apart each is waited for
(Zen 5, bytes of 1024 x 1024: 140 us by lines, 30 by fours)."""

APART_LINES = 4
"""Cache lines from which on rows of a result are written as long runs."""


def is_far(step: int | None) -> bool:
    """Whether steps of a sum so many bytes apart in memory (None: not constant) push one another out of L1."""
    return step is None or abs(step) >= FAR_LINES * LINE_BYTES


@dataclass(frozen=True, slots=True)
class ColumnReads:
    """How the register tiles of a panel read its columns, which lie side by side in memory: every element so many times
    (`reads`); in each of `steps`, which are `step` bytes apart (None: not constant), `vectors` of `lanes` elements of
    `element` bytes. Lanes have so many `conditions`, which may change from step to step (`conditions_move`)."""

    reads: float
    steps: int
    step: int | None
    vectors: int
    lanes: int
    element: int
    conditions: int
    conditions_move: bool

    @property
    def bytes(self) -> int:
        """Of one vector."""
        return self.lanes * self.element


def copies_columns(columns: ColumnReads, target: Target) -> bool:
    """Whether a copy of a panel, which is written and read once, takes less time than it saves where it is read."""
    lines = columns.bytes / LINE_BYTES
    saved = _masking(columns, target) if columns.conditions else 0.0
    if _leaves_l1(columns, target):
        saved += move_cycles(columns.bytes, "l2", target)
    return columns.reads * saved >= pass_cycles(lines, target)


def _masking(columns: ColumnReads, target: Target) -> float:
    """Cycles of the conditions of a vector's lanes in each load. In mask registers those are free that no step changes.
    Else LLVM compares anew in each step with limits from memory, registers being full of sums; without masked loads it
    loads elements."""
    if not target.masked_memory:
        return begin_cycles(columns.lanes, "loads", target)
    if target.has_mask_registers:
        return begin_cycles(MASK_INSTRUCTIONS, "issue", target) * columns.conditions * columns.conditions_move
    compared = columns.conditions * registers_per_vector(columns.lanes, columns.element, target)
    return compared * (begin_cycles(1, "arithmetic", target) + exposed_load_cycles(1, target))


def _leaves_l1(columns: ColumnReads, target: Target) -> bool:
    """Whether steps push one another out of L1, as their lines share few of its sets, where a copy would stay there.
    Steps of unknown length count as such: often it is a power of two."""
    if columns.step is None:
        return True
    all_sets, lines = l1_sets(target), -(-columns.vectors * columns.bytes // LINE_BYTES)
    apart, crossing = divmod(abs(columns.step), LINE_BYTES)
    if not apart or crossing:
        return False
    shared = gcd(apart, all_sets)
    sets = all_sets // shared * min(lines, shared)
    held = l1_room(target, "near") / LINE_BYTES
    return held * sets / all_sets < columns.steps * lines <= held


def panels_of_a_copy(panels: int, panel: int, run: int, target: Target) -> int:
    """How many of so many panels, of `panel` bytes each, are copied at a time, where one takes `run` bytes of each row
    of the operand: a divisor of their number."""
    fit = min(-(-RUN_LINES * LINE_BYTES // run), int(l2_room(target, "block")) // max(1, panel))
    return max((n for n in range(1, min(fit, panels) + 1) if panels % n == 0), default=1)


def loops_around_groups(
    rows: int, columns: int, groups: int, repeats: int, around: Sequence[int], target: Target
) -> int:
    """How many of the loops that move the rows alone (`around`, from the outermost on, by their iterations) best stand
    around the loop over blocks of columns of all groups, of which `repeats` one after the other read the same rows.

    Within them each group has fewer of the `rows` bytes, which may stay in L2 for its other blocks; but the `columns`
    bytes are read in each of their iterations.
    """

    def bytes_read(count: int) -> int:
        times = prod(around[:count])
        return rows * (1 if is_kept(rows / groups / times, target) else repeats) + columns * times

    return min(range(len(around) + 1), key=bytes_read)


def is_prefetched(panels: int, target: Target) -> bool:
    """Whether packed operands of so many bytes come from beyond L2, so that they are prefetched."""
    return not is_kept(panels, target)


def run_between_requests(steps: int) -> int:
    """Steps of the depth, of so many, that share a request for memory: 1 where there are few, or no such divisor."""
    if steps <= LONGEST_RUN:
        return 1
    return max(d for d in range(1, LONGEST_RUN + 1) if steps % d == 0)


def prefetch_distance(step: int, lines: int = PREFETCHED_LINES) -> int:
    """How many steps before its use, `lines` ahead, a panel that is read once is prefetched, where a step reads so many
    bytes of it; 0 where it reads less than a line, which would be requested several times."""
    return 0 if step < LINE_BYTES else -(-lines * LINE_BYTES // step)


def lines_of_narrow_weights(pieces: int, target: Target) -> int:
    """By how many cache lines narrow weights that rows of bytes read once, so many for each element, are requested. One
    byte is multiplied so quickly that on Zen 4 the requests take turns with what the hardware reads ahead by itself: a
    token of 110 million weights of 4 bits takes 3.14 ms, and 3.55 with requests as far ahead as two bytes want."""
    return LINES_OF_NARROW_WEIGHTS if pieces > 1 else lines_before_bytes(target)


def streams_of(tile: Tile, element: int, target: Target) -> int:
    """Streams of equal width that the columns of a tile are cut into when they are read once."""
    if tile.rows > MOST_ROWS_OF_STREAMS:
        return 1
    most = min(tile.columns, streams(target))
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
    near = l1_room(target, "near_lines")
    if size <= max(near, l2_room(target, "lines") if rereads else 0):
        return ""
    return f"the {size} bytes that their columns read do not stay in a cache of the core"
