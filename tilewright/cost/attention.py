"""Attention: rows of a block whose scores stay in L2, and rows of a head that a thread takes at once."""

from __future__ import annotations

from tilewright.cost.core import divisors, l2_room
from tilewright.cost.gemm.cost_model import choose_tile
from tilewright.cost.gemm.register_tile import GemmShape, Tile
from tilewright.cost.parallel import UNEVEN, greatest_share, tasks_for_all
from tilewright.target.target import VECTOR_BYTES, Target

MOST_ROWS = 72
"""Rows of a block at most; more would only push keys and values out of the cache."""

LONG = 1024
"""Keys that are assumed where their number is not known."""

ASSUMED_ROWS = 32
"""Rows of a block where their number is not known: sentences may be short, and rows too many cost time."""

ASSUMED_VECTORS = 3
"""Vectors of keys of a tile where the number of keys is not known."""

FEW_ROWS = 8
"""Rows below which keys and values are not worth a copy."""

MOST_SHARING = 16
"""Heads at most whose few rows read a key together: their results are kept in registers."""

SUMS_OF_A_SCORE = 2
"""Vectors of `VECTOR_BYTES` in which a score is summed."""

SPARE = 4
"""Registers for elements of a key, and for what these are widened by."""

LEAST_COLUMNS = 64
"""Columns of a piece of the values at least: pieces of lines take longer to read than threads gain by equal shares."""

KEYS_OF_A_PIECE = 64
"""Keys with which few rows are multiplied by one thread after the other."""

ITERATIONS_PER_THREAD = 2
"""Heads for each thread from which on whole heads are shared out."""

BLOCKS_PER_CHUNK = 4
"""Blocks of rows for which keys and values are packed, where the number of rows is not known."""

ELEMENT = 4
"""Bytes of a score, and of a weight."""


def is_one_block(most: int | None) -> bool:
    """Whether so many rows at most (None: any number) are one block, for which nothing is packed."""
    return most is not None and most < FEW_ROWS


def heads_at_once(heads: int, target: Target) -> int:
    """How many of the heads that share a key are multiplied by it at once: those whose sums are in registers, and as
    many each time."""
    sums = SUMS_OF_A_SCORE * 8 * VECTOR_BYTES // target.vector_bits
    most = max(1, (target.vector_registers - SPARE) // max(1, sums))
    return max(d for d in divisors(heads) if d <= most)


def most_rows(keys: int | None, target: Target) -> int:
    """Rows of a block whose scores and weights L2 holds."""
    row = 2 * ELEMENT * (LONG if keys is None else keys)
    return max(FEW_ROWS, min(MOST_ROWS, int(l2_room(target, "kept")) // row))


def rows_of_block(rows: int | None, most: int) -> int:
    """Rows of a block, spread evenly over the blocks."""
    return min(most, ASSUMED_ROWS) if rows is None else -(-rows // -(-rows // most))


def rows_of_chunk(heads: int | None, rows: int | None, most: int, target: Target) -> int | None:
    """Rows of a head that a thread takes at once where there are fewer heads than keep the threads busy; else None."""
    wanted = tasks_for_all(ITERATIONS_PER_THREAD, target)
    if heads is None or heads >= wanted:
        return None
    if rows is None:
        return BLOCKS_PER_CHUNK * most
    chunk = -(-rows // -(-wanted // heads))
    return chunk if chunk >= FEW_ROWS else None


def columns_of_piece(groups: int | None, columns: int | None, tile: Tile, target: Target) -> int:
    """Columns of the results that a thread takes at once where few rows are multiplied with all values: those of a
    register tile, or fewer where threads share the groups and these unevenly otherwise."""
    size = tile.columns * tile.lanes
    while (
        groups is not None and columns is not None
        and greatest_share(groups * -(-columns // size), target) > UNEVEN
        and size % (2 * LEAST_COLUMNS) == 0
    ):  # fmt: skip
        size //= 2
    return size


def tile_of_products(rows: int, columns: int | None, depth: int | None, target: Target) -> Tile:
    """The register tile of one of the two products of a block; None for extents that are not known."""
    lanes = VECTOR_BYTES // ELEMENT
    vectors = ASSUMED_VECTORS if columns is None else -(-columns // lanes)
    return choose_tile(GemmShape(rows=rows, columns=vectors, depth=depth, lanes=lanes), target)
