"""Bands of tiles and panels of columns: what of a contraction with transforms of tiles around it is computed at a time.

A band is read with all columns' operands (filters); a panel is a number of blocks of columns for which the tiles of a
band are read. Their sums wait for the transform that follows. Larger bands read filters less often, larger panels read
tiles less often, until sums and tiles do not fit L2. Like the choice of register tiles, this
counts cycles from the target's facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from tilewright.cost.core import divisors, is_kept, l2_room, move_cycles, read_cycles
from tilewright.cost.gemm.cost_model import Decision, cycles
from tilewright.cost.gemm.register_tile import (
    GemmShape,
    Tile,
    candidate_tiles,
    cost_of_step,
    registers_per_vector,
)
from tilewright.cost.parallel import greatest_share, threads
from tilewright.cost.typical import typical_extents
from tilewright.target.target import Target

SPILL_PASSES = 3
"""Times that data which do not fit a cache are moved between it and the next: allocated, written, read."""


MOST_TILES = 64
"""Tiles of a band of an image of unknown size at most: many enough for whole register tiles, and for few readings of
the filters."""

MOST_PANEL = 4
"""Blocks of columns of a panel of such an image at most: enough for the columns of a register tile."""

@dataclass(frozen=True, slots=True)
class Tiles:
    """A contraction of tiles: `rows` x `across` of them for each of `images`, `points` sums for each; `depth`
    channels; `columns` blocks of `lanes` elements of `element` bytes. `made_here` says that the kernel makes the
    tiles of a band itself: all panels of a band are then computed by one thread."""

    images: int
    rows: int
    across: int
    points: int
    depth: int
    columns: int
    lanes: int
    element: int
    made_here: bool


@dataclass(frozen=True, slots=True)
class Band:
    """`rows` x `across` tiles, whose sums are computed for `panel` blocks of columns at a time. Only bands of one row
    are cut across: tiles follow each other in memory row by row."""

    rows: int
    across: int
    panel: int


@lru_cache(maxsize=4096)
def choose_band(tiles: Tiles, target: Target) -> Band:
    """The cheapest band that keeps all cores busy. Its extents divide those of the tiles: no band needs conditions."""
    candidates = list(_candidates(tiles))
    most = max(_tasks(tiles, b) for b in candidates)
    enough = min(most, threads(target))
    return min((b for b in candidates if _tasks(tiles, b) >= enough), key=lambda b: cost(tiles, b, target))


def cost(tiles: Tiles, band: Band, target: Target) -> float:
    """Cycles of one core for all bands, as far as they depend on the band."""
    length = band.rows * band.across
    bands = tiles.images * tiles.rows * tiles.across // length
    panels = tiles.columns // band.panel
    width = tiles.columns * tiles.lanes
    shape = GemmShape(length, band.panel, tiles.depth, tiles.lanes, tiles.element, exact_columns=True)
    tile = candidate_tiles(shape, target)[0]
    step = cost_of_step(
        tile.rows, tile.columns * registers_per_vector(tiles.lanes, tiles.element, target), target
    )
    register_tiles = bands * panels * -(-length // tile.rows) * -(-band.panel // tile.columns)
    multiplying = register_tiles * tiles.points * tiles.depth * step
    filters = tiles.points * tiles.depth * width * tiles.element
    data = bands * length * tiles.points * tiles.depth * tiles.element
    sums = bands * length * tiles.points * width * tiles.element
    fits = _held(tiles, band) <= l2_room(target, "tiles")
    reading_filters = 0.0 if is_kept(filters, target) else bands * move_cycles(filters, "l3", target)
    if not tiles.made_here:
        moving = move_cycles(panels * data, "l3", target) + (0 if fits else spilled(sums, target))
    elif fits:
        moving = move_cycles(panels * data, "l2", target)
    else:
        moving = read_cycles(panels * data, "l3", target) + spilled(sums + data, target)
    tasks = _tasks(tiles, band)
    return greatest_share(tasks, target) * (multiplying + reading_filters + moving)


def spilled(size: float, target: Target) -> float:
    """Cycles in which what does not fit L2 passes its border."""
    return read_cycles(SPILL_PASSES * size, "l3", target)


def _held(tiles: Tiles, band: Band) -> int:
    """Bytes that are in use while a panel is computed: sums of all points, the tiles (all of them where they are made
    here, else those of one point), and filters of one point for two blocks."""
    length = band.rows * band.across
    sums = length * tiles.points * band.panel * tiles.lanes
    data = length * tiles.depth * (tiles.points if tiles.made_here else 1)
    return tiles.element * (sums + data + 2 * tiles.depth * tiles.lanes)


def _tasks(tiles: Tiles, band: Band) -> int:
    bands = tiles.images * tiles.rows * tiles.across // (band.rows * band.across)
    return bands if tiles.made_here else bands * (tiles.columns // band.panel)


def _candidates(tiles: Tiles) -> Iterator[Band]:
    for panel in divisors(tiles.columns):
        for rows in divisors(tiles.rows):
            yield Band(rows, tiles.across, panel)
        for across in divisors(tiles.across)[:-1]:
            yield Band(1, across, panel)


def band_of_any_image(tiles: Tiles, target: Target) -> Band:
    """The largest band, and its panel, of an image of unknown size; `tiles` has all but its extents. Threads find
    panels enough in a single band, unless the kernel makes the tiles of a band itself."""
    shared = 1 if tiles.made_here else threads(target)
    panels = [
        n for n in divisors(tiles.columns) if n <= MOST_PANEL and (n == 1 or tiles.columns // n >= shared)
    ]
    band = Band(1, 1, panels[-1])
    room = l2_room(target, "tiles") - _held(tiles, replace(band, across=0))
    each = _held(tiles, band) - _held(tiles, replace(band, across=0))
    return replace(band, across=min(MOST_TILES, max(1, int(room // each))))


def typical_bands(tiles: Tiles, lengths: Sequence[int], band: Band) -> list[int]:
    """Tiles of a band, as long as all of its image, for each typical extent of an image; `lengths` of a tile."""
    extents = typical_extents(max(tiles.depth, tiles.columns * tiles.lanes))
    counts = [prod(-(-n // length) for length in lengths) for n in extents]
    return [-(-n // -(-n // band.across)) for n in counts]


def tile_of_any_image(tiles: Tiles, lengths: Sequence[int], band: Band, target: Target) -> Tile:
    """The register tile for bands of unknown length: the one with the least time, in that of the best one for each
    typical band, in the mean of these. What whole tiles leave of a band is computed in smaller ones; what these have
    beyond its last tile is in vain."""
    found: dict[Tile, float] = {}
    shape = GemmShape(
        None, band.panel, tiles.depth, tiles.lanes, tiles.element, exact_columns=True, packed=True, splits_rows=True
    )
    shapes = [replace(shape, rows=n) for n in typical_bands(tiles, lengths, band)]
    candidates = {tile for shape in shapes for tile in candidate_tiles(shape, target)}
    for shape in shapes:
        times = {tile: cycles(shape, Decision(tile), target) for tile in candidates}
        for tile, time in times.items():
            found[tile] = found.get(tile, 0.0) + time / min(times.values())
    return min(found, key=lambda tile: (found[tile], tile.rows, tile.columns))
