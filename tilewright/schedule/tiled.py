"""The default schedule of contractions whose sums are transformed tile by tile (Winograd's convolutions).

    for batch, bands of tiles {
      rows: scratch = transform of the data of the band, unless another kernel made them
      for panels of columns {
      sums: scratch                            all points of the tiles of a band, for a panel of columns
      contraction into sums                    as schedule.contraction tiles it
      for tiles of the band {
        tile: scratch = transform of its sums
        y = epilogue(tile)
      }
    }

What lies between the two parts stays in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import COSTLY
from tilewright.ir.sym import Sym, sym
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.nest import buffer_type, extent_of
from tilewright.schedule.contraction import tile_contraction
from tilewright.schedule.parallelize import parallelize_outer
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

L2_SHARE = 0.4
"""Of the second-level cache, for the data of a band; the rest is for the other operand of the contraction."""

PANEL = 2
"""Blocks of columns that share the reading of the rows."""

UNEVEN = 1.06
"""Of the mean share of the cores in the bands, the greatest that one of them may have."""

FEWEST_TILES = 8
"""Tiles of a band that keep the registers of the contraction busy."""


@dataclass(eq=False)
class _Stages:
    """The stages of the kernel: what transforms the rows (where it belongs to the kernel), the contraction, the tiles,
    and the loops of the one nest that follows."""

    rows: Stage | None
    sums: Stage
    tiles: Stage
    loops: list[Op]


@dataclass(eq=False)
class _Nest:
    """The loops of the last nest: around the bands, over bands, over panels of columns, over the tiles of a band, and
    within a tile."""

    batch: list[Op]
    bands: list[Op]
    panels: Op
    tiles: list[Op]
    within: list[Op]

    @property
    def order(self) -> list[Op]:
        return [*self.batch, *self.bands, self.panels, *self.tiles, *self.within]


def schedule_tiled(s: Schedule, lowered: Lowered, target: Target) -> None:
    """ScheduleError when the kernel is not one contraction, one stage of tiles, and elementwise work."""
    stages = _stages(s, lowered)
    nest = _cut(s, stages, target)
    s.reorder(*nest.order)
    transform = s.fuse_at(stages.tiles.buffer, nest.tiles[-1])
    vectors = [nest.within[-1], transform.copies[stages.tiles.axes[-1]]]
    part = s.fuse_at(stages.sums.buffer, nest.panels)
    if stages.rows is not None:
        vectors.append(_transform_rows(s, stages.rows, nest))
    sums = stages.sums
    made = s.cache_write(part.buffer)
    axes, reduce = ([part.copies[o] for o in loops] for loops in (sums.axes, sums.reduce))
    stage = Stage(sums.name, sums.kind, sums.combine, made.buffer, axes, reduce)
    tile_contraction(s, stage, made.drain, made.buffer, target)
    s.simplify()
    for vector in vectors:
        s.vectorize(vector)
    if not any(op.name in COSTLY for op in nest.within[-1].walk()):
        s.unroll(nest.within[-2])
    parallelize_outer(s, target)


def _stages(s: Schedule, lowered: Lowered) -> _Stages:
    found = list(lowered.stages)
    rows = found.pop(0) if found and found[0].tiles else None
    kinds = [(st.kind, bool(st.tiles)) for st in found]
    if (
        len(kinds) < 3
        or kinds[:2] != [("reduce", False), ("map", True)]
        or set(kinds[2:]) != {("map", False)}
    ):
        raise ScheduleError("it is not one contraction with tiles and elementwise work after it")
    first, *others = found[2:]
    for other in others:
        for a, b in zip(first.axes, other.axes, strict=True):
            s.fuse_siblings(a, b)
    return _Stages(rows, found[0], found[1], list(first.axes))


def _cut(s: Schedule, stages: _Stages, target: Target) -> _Nest:
    """Split the axes of the result: those that the tiles cut in tiles, these in bands, and columns in panels."""
    tiles = stages.tiles.tiles
    *batch, columns, vector = [o for o, n in zip(stages.loops, tiles, strict=True) if n == 1]
    cut = [s.split(o, n) for o, n in zip(stages.loops, tiles, strict=True) if n > 1]
    lengths = _band([extent_of(p.outer) for p in cut], _tile_bytes(stages), target)
    bands = [s.split(p.outer, n) if n else None for p, n in zip(cut, lengths, strict=True)]
    panels = s.split(columns, max(n for n in divisors(extent_of(columns)) if n <= PANEL))
    return _Nest(
        batch,
        [b.outer for b in bands if b is not None],
        panels.outer,
        [panels.inner, *(p.outer if b is None else b.inner for p, b in zip(cut, bands, strict=True))],
        [*(p.inner for p in cut), vector],
    )


def _tile_bytes(stages: _Stages) -> Sym:
    """Bytes of a band for each of its tiles: sums of a panel, and all rows where the kernel makes these."""
    sums = buffer_type(stages.sums.buffer)
    _, _, points, _, lanes = sums.shape
    blocks: Sym = sym(PANEL)
    if stages.rows is not None:
        blocks = blocks + buffer_type(stages.rows.buffer).shape[1]
    return blocks * points * lanes * sums.dtype.bytes


def _band(counts: Sequence[Sym], tile_bytes: Sym, target: Target) -> list[int | None]:
    """Tiles of a band along each axis; None for all of them. They divide the tiles, so that no band needs conditions.

    Only bands of one row are cut across: tiles follow each other in memory row by row.
    """
    room = int(L2_SHARE * target.caches.l2) // tile_bytes.value if tile_bytes.is_const else 1
    rows, across = counts
    if not across.is_const:
        return [1, None]
    if room >= across.value:
        return [_even(rows, room // across.value, target.cores) if rows.is_const else 1, None]
    lengths = [n for n in divisors(across) if n >= min(FEWEST_TILES, across.value)]
    return [1, max([n for n in lengths if n <= room], default=lengths[0])]


def _even(rows: Sym, most: int, cores: int) -> int:
    """Rows of a band, at most `most`: as many as leave every core the same number of bands, or nearly so."""
    lengths = [n for n in divisors(rows) if n <= most]
    shares = {n: rows.value // n / cores for n in lengths}
    even = [n for n, share in shares.items() if -(-share // 1) <= UNEVEN * share]
    return max(even, default=max(lengths))


def _transform_rows(s: Schedule, rows: Stage, nest: _Nest) -> Op:
    """Make the rows of a band at its start; the loop for vectors."""
    made = s.fuse_at(rows.buffer, nest.bands[-1])
    return made.copies[rows.axes[-1]]


def divisors(extent: Sym) -> list[int]:
    """In ascending order; only 1 for an extent that is not known."""
    if not extent.is_const:
        return [1]
    return [n for n in range(1, extent.value + 1) if extent.value % n == 0]
