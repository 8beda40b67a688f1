"""Register tiles of contractions: how many rows and column vectors one core keeps in registers.

The inner loop of a contraction multiplies `rows` broadcast elements with `columns` vectors; its accumulators stay in
registers. The choice minimises a count of cycles that follows from the target's registers, FMA units and load ports,
so it needs no tuning and is the same on every machine of a kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

FMA_LATENCY = 4  # cycles, on every core of the last ten years (Zen, Skylake and later, Neoverse)
FMA_PORTS = 2
LOAD_PORTS = 2
L2_BYTES_PER_CYCLE = 24
L3_BYTES_PER_CYCLE = 7
L2_SHARE = 0.6  # of the second-level cache that a panel of columns may fill, beside the rows
LARGE = 512  # stands for an extent that is not known
STREAM_SHARE = 0.15  # of the time that streaming takes, which the FMAs do not hide
LOAD_SHARE = 0.25  # of a cycle that a load costs beside the FMAs it hides behind


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile: `rows` x `columns` vectors of `lanes` elements each."""

    rows: int
    columns: int
    lanes: int


@dataclass(frozen=True, slots=True)
class Registers:
    """What a tile may use: `count` vector registers of `lanes` float32 each; `embedded_broadcast` says that an FMA
    can read a broadcast element from memory (AVX-512), so that it needs no register."""

    count: int
    lanes: int
    embedded_broadcast: bool


def registers_used(tile: Tile, registers: Registers) -> int:
    """Accumulators, one row of column vectors, and a broadcast element where it needs a register."""
    per_vector = max(1, tile.lanes // registers.lanes)
    columns = tile.columns * per_vector
    return tile.rows * columns + columns + (0 if registers.embedded_broadcast and tile.columns == 1 else 1)


@dataclass(frozen=True, slots=True)
class Contraction:
    """Extents that decide a tile: `rows`, `columns` (vectors of `lanes` elements of `element` bytes), `depth` of the
    reduction; None where only known at run time. With `exact_columns` the tile's columns must divide them."""

    rows: int | None
    columns: int | None
    depth: int | None
    lanes: int
    element: int = 4
    exact_columns: bool = False


def cycles_per_step(rows: int, columns: int, per_vector: int, column_bytes: float, bandwidth: float) -> float:
    """Cycles that one reduction step of a tile takes: bound by FMAs, by loads, by the latency of its chains, or by
    the cache that the column vectors stream from (`bandwidth` in bytes per cycle)."""
    fmas = rows * columns * per_vector
    loads = rows + columns * per_vector
    stream = column_bytes / bandwidth
    bound = max(fmas / FMA_PORTS, loads / LOAD_PORTS, FMA_LATENCY, stream)
    return bound + LOAD_SHARE * loads + STREAM_SHARE * stream


@lru_cache(maxsize=4096)
def choose_tile(shape: Contraction, registers: Registers, l2: int) -> Tile:
    """The cheapest tile for a contraction, on a core with `l2` bytes of second-level cache.

    Ties go to more columns: these are read in longer runs.
    """
    best: tuple[float, int, Tile] | None = None
    for columns in range(1, 17):
        if shape.columns is not None and columns > shape.columns:
            break
        if shape.exact_columns and shape.columns is not None and shape.columns % columns:
            continue
        for rows in range(1, 29):
            tile = Tile(rows, columns, shape.lanes)
            if (shape.rows is not None and rows > shape.rows) or registers_used(
                tile, registers
            ) > registers.count:
                break
            cost = _cost(shape, tile, registers, l2)
            if best is None or (cost, -columns) < best[:2]:
                best = (cost, -columns, tile)
    return Tile(1, 1, shape.lanes) if best is None else best[2]


def _cost(shape: Contraction, tile: Tile, registers: Registers, l2: int) -> float:
    """Cycles of one reduction step over the whole matrix; for unknown extents, over a large one."""
    row_tiles = LARGE / tile.rows if shape.rows is None else -(-shape.rows // tile.rows)
    column_tiles = LARGE / tile.columns if shape.columns is None else -(-shape.columns // tile.columns)
    column_bytes = tile.columns * tile.lanes * shape.element
    panel = column_bytes * (shape.depth or LARGE)
    bandwidth = L2_BYTES_PER_CYCLE if panel <= L2_SHARE * l2 or row_tiles == 1 else L3_BYTES_PER_CYCLE
    per_vector = max(1, tile.lanes // registers.lanes)
    return (
        row_tiles
        * column_tiles
        * cycles_per_step(tile.rows, tile.columns, per_vector, column_bytes, bandwidth)
    )
