"""Blocks of large contractions: which rows, columns and piece of the depth stay in the second-level cache.

Like the choice of register tiles, this counts cycles from the target's facts. All costs are in parts of the time that
the multiplications take.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tilewright.schedule.tiles import FMA_PORTS, L2_BYTES_PER_CYCLE, L3_BYTES_PER_CYCLE, Tile

L2_SHARE = 0.6
"""Of the second-level cache that a block may fill: pages lie anywhere in memory, so that some of its sets are taken
before others."""

PANEL_SHARE = 0.25
"""Of the time that panels take from far memory which prefetching does not hide."""

APART_SHARE = 0.12
CROWDED_SHARE = 0.25
"""Of the time of multiplications that first-level misses take where rows lie far apart, or crowd few sets; measured."""

LONGEST_SUM = 512
"""Terms of a piece: a longer running sum loses digits."""

MOST_CANDIDATES = 12
"""Extents that are tried for each of rows, columns and depth."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Extents of a block: `rows`; `columns`, in column tiles; `depth`, steps of the outermost reduction axis."""

    rows: int
    columns: int
    depth: int


@dataclass(frozen=True, slots=True)
class Large:
    """A contraction to be cut: `rows`, which only whole multiples of `unit` may be cut into; `columns`, in tiles of
    `tile.columns` vectors; `depth` of the outermost reduction axis, each step of which is `steps` steps in all.

    Elements have `element` bytes, and those of the rows' operand are used by `windows` steps and rows on average.
    `apart` says that the rows of a tile lie far from each other (in blocks they are copied), `crowded` that they share
    few sets of the first-level cache, `exact` that the columns of a block must divide all. `around` counts the
    contractions of this size in the kernel, `lanes` the elements of a register, `cores` those that share the work."""

    rows: int
    unit: int
    columns: int
    depth: int
    steps: int
    element: int
    windows: float
    tile: Tile
    apart: bool
    crowded: bool
    exact: bool
    around: int
    lanes: int
    cores: int


@lru_cache(maxsize=4096)
def choose_blocks(large: Large, l2: int) -> Blocks | None:
    """The cheapest blocks that fit `l2` bytes of second-level cache; None when none does."""
    candidates = [
        Blocks(rows, columns, depth)
        for rows in _near_equal(large.rows, large.unit)
        for depth in _pieces(large)
        for columns in _columns(large)
    ]
    fitting = [b for b in candidates if footprint(large, b) <= L2_SHARE * l2 and _count(large, b) > 1]
    return min(fitting, key=lambda b: cost(large, b), default=None)


def footprint(large: Large, blocks: Blocks) -> int:
    """Bytes of a block's rows and sums, and of two panels of columns."""
    width = large.tile.columns * large.tile.lanes
    depth = blocks.depth * large.steps
    rows, sums = int(blocks.rows * depth / large.windows), blocks.rows * blocks.columns * width
    return large.element * (rows + sums + 2 * depth * width)


def cost(large: Large, blocks: Blocks) -> float:
    """Cycles beside those of the multiplications, for each of the latter."""
    per_cycle = FMA_PORTS * large.lanes
    width = blocks.columns * large.tile.columns * large.tile.lanes
    depth = blocks.depth * large.steps
    near, far = large.element / L2_BYTES_PER_CYCLE, large.element / L3_BYTES_PER_CYCLE
    reading_rows = (far + (near if large.apart else 0)) * per_cycle / width / large.windows
    adding_up = 2 * near * per_cycle / depth
    reading_panels = PANEL_SHARE * far * per_cycle / blocks.rows
    rounds = _count(large, blocks)
    surplus = rounds * blocks.rows * blocks.columns / (large.around * large.rows * large.columns) - 1
    imbalance = -(-rounds // large.cores) * large.cores / rounds - 1
    return reading_rows + adding_up + reading_panels + surplus + imbalance


def cost_without(large: Large, l2: int) -> float:
    """The same for register tiles alone: rows are read for each column tile, once where all columns fit the cache, and
    a panel for each row tile."""
    per_cycle = FMA_PORTS * large.lanes
    width = large.tile.columns * large.tile.lanes
    column = large.depth * large.steps * large.element
    rows_fit = large.rows * column / large.windows <= l2 // 2
    columns = large.columns * width if large.columns * width * column <= l2 // 2 else width
    far = large.element / L3_BYTES_PER_CYCLE * per_cycle
    reading_rows = 0.0 if rows_fit else far / columns / large.windows
    panel_fits = width * column <= L2_SHARE / 2 * l2
    reading_panels = 0.0 if panel_fits else PANEL_SHARE * far / large.tile.rows
    return reading_rows + reading_panels + APART_SHARE * large.apart + CROWDED_SHARE * large.crowded


def _count(large: Large, blocks: Blocks) -> int:
    """Blocks in all, which threads share."""
    return large.around * -(-large.rows // blocks.rows) * -(-large.columns // blocks.columns)


def _near_equal(rows: int, unit: int) -> Iterator[int]:
    """Rows of a block where all rows make 1, 2, ... near-equal blocks of whole units."""
    seen = set()
    for blocks in range(1, max(1, rows // (2 * unit)) + 1):
        block = rows if blocks == 1 else min(rows, -(-rows // blocks // unit) * unit)
        if block not in seen:
            seen.add(block)
            yield block
        if len(seen) == MOST_CANDIDATES:
            return


def _pieces(large: Large) -> list[int]:
    """The largest divisors of the depth that make exact sums, or the smallest one."""
    pieces = [d for d in range(large.depth, 0, -1) if large.depth % d == 0]
    return [d for d in pieces if d * large.steps <= LONGEST_SUM][:MOST_CANDIDATES] or pieces[-1:]


def _columns(large: Large) -> list[int]:
    """Columns of a block where all columns make 1, 2, ... blocks."""
    n = large.columns
    counts = [-(-n // blocks) for blocks in range(1, min(n, 4 * MOST_CANDIDATES) + 1)]
    if large.exact:
        counts = [c for c in counts if n % c == 0]
    return list(dict.fromkeys(counts))[:MOST_CANDIDATES]
