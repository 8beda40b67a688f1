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
LOAD_SHARE = 0.15  # of a cycle that a load costs beside the FMAs it hides behind


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


def cycles_per_step(rows: int, columns: int, per_vector: int) -> float:
    """Cycles that one reduction step of a tile takes: bound by FMAs, by loads, or by the latency of its chains.

    Column vectors stream from the second-level cache, so each costs a little even when it is not the bound.
    """
    fmas = rows * columns * per_vector
    loads = rows + columns * per_vector
    return max(fmas / FMA_PORTS, loads / LOAD_PORTS, FMA_LATENCY) + LOAD_SHARE * loads


@lru_cache(maxsize=4096)
def choose_tile(
    rows: int | None, columns: int | None, lanes: int, registers: Registers, exact_columns: bool = False
) -> Tile:
    """The cheapest tile for a contraction of `rows` x `columns * lanes` (None: unknown until run time).

    `columns` counts vectors of `lanes`; with `exact_columns` the tile's must divide them. Ties go to more columns:
    these are read in longer runs.
    """
    per_vector = max(1, lanes // registers.lanes)
    best: tuple[float, int, Tile] | None = None
    for tile_columns in range(1, 17):
        if columns is not None and tile_columns > columns:
            break
        if exact_columns and columns is not None and columns % tile_columns:
            continue
        for tile_rows in range(1, 29):
            tile = Tile(tile_rows, tile_columns, lanes)
            if (rows is not None and tile_rows > rows) or registers_used(tile, registers) > registers.count:
                break
            cost = _cost(rows, tile_rows, columns, tile_columns, per_vector)
            if best is None or (cost, -tile_columns) < best[:2]:
                best = (cost, -tile_columns, tile)
    if best is None:
        return Tile(1, 1, lanes)
    return best[2]


def _cost(rows: int | None, tile_rows: int, columns: int | None, tile_columns: int, per_vector: int) -> float:
    """Cycles of one reduction step over the whole matrix; for unknown extents, per element of a large one."""
    row_tiles = 256 / tile_rows if rows is None else -(-rows // tile_rows)
    column_tiles = 64 / tile_columns if columns is None else -(-columns // tile_columns)
    return row_tiles * column_tiles * (cycles_per_step(tile_rows, tile_columns, per_vector) + 0.25)
