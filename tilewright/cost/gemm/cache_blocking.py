"""Blocks of large contractions: which rows, columns and piece of the depth may stay in L2."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice

from tilewright.cost.core import divisors, l2_room
from tilewright.cost.gemm.register_tile import GemmShape, Tile
from tilewright.cost.parallel import greatest_share, tasks_for_all
from tilewright.target.target import Target

LONGEST_SUMS = (512, 256, 128)
"""Terms of a piece of the depth: a longer running sum loses digits, a shorter one costs more passes over the sums."""

MOST_PARTS = 8
"""Blocks that rows and columns are cut into, unless more cores than half of them ask for more, or long axes do."""

SMALL_BLOCK = 128
"""Rows or columns of the smallest blocks of long axes."""

EVEN = 1.1
"""Largest share of a core, as a multiple of the mean, in the blocks that are preferred."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Extents of a block: `rows`, of whole lines or of a part of one; `columns`, in column tiles; `depth`, steps of the
    outermost reduction axis."""

    rows: int
    columns: int
    depth: int


def candidate_blocks(shape: GemmShape, tile: Tile, target: Target, most: int) -> list[Blocks]:
    """Up to `most` blocks for each length of the depth, that fit L2: those that give every core
    the same first, then the largest."""
    if not may_be_cut(shape, tile):
        return []
    assert shape.rows is not None and shape.columns is not None
    rows, columns = shape.rows * shape.lines, -(-shape.columns // tile.columns)
    unit = shape.rows if shape.lines > 1 else tile.rows
    least = shape.lanes if shape.transposed else 1  # a square of the result, which is transposed
    heights = {rows, *(min(rows, -(-rows // n // unit) * unit) for n in _parts(rows, target))}
    widths = {-(-columns // n) for n in _parts(shape.columns * tile.lanes, target)}
    if shape.exact_columns:
        widths = {n for n in widths if columns % n == 0}

    def of(heights: Iterable[int]) -> list[Blocks]:
        whole = [Blocks(r, n, shape.outer_depth) for r in heights for n in widths if r >= least]
        whole = [b for b in whole if count(shape, tile, b) > 1]
        whole.sort(key=lambda b: (unevenness(shape, tile, b, target) > EVEN, -b.rows * b.columns, -b.rows))
        return whole

    whole, parts = of(heights), of(_parts_of_lines(shape, tile, target))
    room = l2_room(target, "block")
    found: list[Blocks] = []
    for depth in _pieces(shape):
        for each in (whole, parts):
            fitting = (b for b in each if footprint(shape, tile, b.rows, b.columns, depth) <= room)
            some = [Blocks(b.rows, b.columns, depth) for b in islice(fitting, most)]
            found += some
            if some:
                break
    return found


def _parts_of_lines(shape: GemmShape, tile: Tile, target: Target) -> set[int]:
    """Rows of blocks within a line, for lines that do not fit L2 whole: those of an operation on whole images that are
    a batch."""
    assert shape.rows is not None
    if shape.lines == 1:
        return set()
    heights = {-(-shape.rows // n // tile.rows) * tile.rows for n in _parts(shape.rows, target)}
    return {r for r in heights if r < shape.rows}


def as_blocks_see(shape: GemmShape, blocks: Blocks) -> GemmShape:
    """The shape without lines where blocks are parts of them: each line is a contraction of its own."""
    assert shape.rows is not None
    if blocks.rows >= shape.rows:
        return shape
    return replace(shape, lines=1, around=shape.around * shape.lines)


def may_be_cut(shape: GemmShape, tile: Tile) -> bool:
    """Whether the extents are known and there are tiles enough for blocks of them."""
    if shape.uncut or shape.rows is None or shape.columns is None or shape.depth is None:
        return False
    return shape.rows * shape.lines >= 2 * tile.rows and shape.columns >= 2 * tile.columns


def footprint(shape: GemmShape, tile: Tile, rows: int, columns: int, depth: int) -> int:
    """Bytes of the rows and sums of a block of so many rows, column tiles and outer steps, and of two panels."""
    assert shape.depth is not None
    width = tile.columns * tile.lanes
    steps = depth * (shape.depth // shape.outer_depth)
    return shape.element * (int(rows * steps / shape.windows) + rows * columns * width + 2 * steps * width)


def count(shape: GemmShape, tile: Tile, blocks: Blocks) -> int:
    """Blocks in all, which threads share."""
    shape = as_blocks_see(shape, blocks)
    assert shape.rows is not None and shape.columns is not None
    columns = -(-shape.columns // tile.columns)
    return shape.around * -(-shape.rows * shape.lines // blocks.rows) * -(-columns // blocks.columns)


def unevenness(shape: GemmShape, tile: Tile, blocks: Blocks, target: Target) -> float:
    """The greatest share of the blocks that a core gets, in that of the mean."""
    return greatest_share(count(shape, tile, blocks), target)


def _parts(extent: int, target: Target) -> list[int]:
    """Numbers of blocks that an axis of so many rows or columns is cut into."""
    most = max(MOST_PARTS, min(tasks_for_all(2, target), 64), extent // SMALL_BLOCK)
    return [1 << n for n in range(most.bit_length())]


def _pieces(shape: GemmShape) -> list[int]:
    """For each length of sums the largest divisor of the depth; whole runs where rows are copied in such."""
    assert shape.depth is not None
    steps = shape.depth // shape.outer_depth
    run = shape.run if steps == 1 and shape.run else 1
    parts = divisors(shape.outer_depth)
    whole = [d for d in parts if d % run == 0] or parts
    return sorted({max((d for d in whole if d * steps <= most), default=whole[0]) for most in LONGEST_SUMS})


