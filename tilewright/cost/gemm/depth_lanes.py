"""Products whose operands both lie in memory along the sum: lanes along the depth, which read them as they lie, or
along the columns, which are copied into panels for that."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import gcd, log2

from tilewright.cost.core import l1_sets, millions
from tilewright.cost.gemm.cost_model import assumed, choose
from tilewright.cost.gemm.register_tile import GemmShape, Tile, cost_of_step, registers_per_vector
from tilewright.target.target import LINE_BYTES, VECTOR_BYTES, Target

COLUMNS = 4
"""Columns of a tile at most: lines of memory that are read in turns, each a stream that the prefetchers follow."""

ROWS = 6
"""Rows of a tile at most: more would need more registers than there are, or leave none to load ahead."""

ROWS_OF_ANY = 4
"""Rows of a tile at most where their number is not known: what whole tiles leave is read row by row."""

ROWS_OF_BLOCK = 64
"""Rows at most whose sums are kept together, while the columns of a tile are near."""

MANY_ROWS = 64
"""Rows up to which it is looked for whether a copy of the columns pays, where their number is not known."""

ADDING_UP = 1.5
"""Cycles of each halving in which the lanes of a sum are added up: 6 for 16 lanes (Zen 5, with its store)."""

TURNING = 0.3
"""Cycles of an element that is copied into a panel through squares of registers (Zen 5, columns of 768 elements)."""

CROWDED_TURNING = 0.8
"""The same, where the lines of a square share few sets of L1 and come from L2 or beyond several times (Zen 5: 0.45 for
columns of 512 elements, 0.96 for those of 1024, 1.9 for those of 2048)."""

LEAST_GAIN = 1.2
"""Ratio of times from which on lanes run along the depth: where the two are close, copies win (Zen 5, 32 to 64 rows by
768 x 768: predicted 0.88 to 0.96 of their time, measured 1.05 to 1.19)."""

CROWDED = 4
"""Lines of a square that one set of L1 holds beside what else is read."""


@lru_cache(maxsize=4096)
def depth_tile(shape: GemmShape, target: Target) -> Tile:
    """The register tile with lanes along the depth: its columns are a part of a vector of the results, and its rows
    those with the fewest cycles that registers hold."""
    known = assumed(shape)
    assert known.rows is not None
    lanes = target.vector_bits // (8 * shape.element)
    columns = min(COLUMNS, shape.lanes)
    per_vector = registers_per_vector(lanes, shape.element, target)
    held = (target.vector_registers - 1) // per_vector // (columns + 1) - 1
    most = max(1, min(held, ROWS_OF_ANY if shape.rows is None else ROWS, known.rows))
    tiles = [Tile(rows, columns, lanes) for rows in range(1, most + 1)]
    return min(tiles, key=lambda tile: (_multiplying(known, tile, target), tile.rows))


def why_not_along_depth(shape: GemmShape, target: Target) -> str:
    """Why lanes are better along the columns, which are copied for that; empty where they are not. An unknown number of
    rows counts as large."""
    known = assumed(shape)
    along, across = _along(known, target), _across(known, target)
    if LEAST_GAIN * along <= across:
        return ""
    return f"{millions(along)} predicted, {millions(across)} with copies of the columns"


@lru_cache(maxsize=4096)
def rows_that_pay_copies(shape: GemmShape, target: Target) -> int:
    """Rows from which on, where their number is not known, copies of the columns pay; 0 where they never do, of so many
    rows as are looked at."""
    found = (n for n in range(1, MANY_ROWS + 1) if why_not_along_depth(replace(shape, rows=n), target))
    return next(found, 0)


def _along(shape: GemmShape, target: Target) -> float:
    """Cycles with lanes along the depth."""
    tile = depth_tile(shape, target)
    return _multiplying(shape, tile, target) + _sums(shape) * ADDING_UP * log2(tile.lanes)


def _multiplying(shape: GemmShape, tile: Tile, target: Target) -> float:
    assert shape.rows is not None and shape.columns is not None and shape.depth is not None
    per_vector = registers_per_vector(tile.lanes, shape.element, target)
    columns = -(-shape.columns * shape.lanes // tile.columns)
    tiles = shape.around * shape.lines * -(-shape.rows // tile.rows) * columns
    steps = -(-shape.depth // tile.lanes) * per_vector
    return tiles * steps * cost_of_step(tile.rows, tile.columns, target)


def _sums(shape: GemmShape) -> int:
    assert shape.rows is not None and shape.columns is not None
    return shape.around * shape.lines * shape.rows * shape.columns * shape.lanes


def _across(shape: GemmShape, target: Target) -> float:
    """Cycles with lanes along the columns, each of which is copied once for all rows."""
    assert shape.columns is not None and shape.depth is not None
    copied = shape.repeats * shape.columns * shape.lanes * shape.depth
    return choose(shape, target).cycles + copied * (CROWDED_TURNING if _is_crowded(shape, target) else TURNING)


def _is_crowded(shape: GemmShape, target: Target) -> bool:
    """Whether columns lie so far apart that the lines of a square share few sets of L1."""
    assert shape.depth is not None
    lines, remainder = divmod(shape.depth * shape.element, LINE_BYTES)
    sets = l1_sets(target)
    return not remainder and VECTOR_BYTES // shape.element * gcd(lines, sets) > CROWDED * sets
