"""The default schedule of contractions whose sums are transformed tile by tile (Winograd's convolutions).

    for batch, bands of tiles {
      rows: scratch = transform of the data of the band, unless another kernel made them
      for panels of columns {
      sums: scratch                            all points of the tiles of a band, for a panel of columns
      contraction into sums                    as gemm.contraction tiles it
      for tiles of the band {
        tile: scratch = transform of its sums
        y = epilogue(tile)
      }
    }

What lies between the two parts stays in L2. The tiles of an image of unknown size are one axis, which is cut into bands
of one length that is computed when the kernel is called; they may begin and end within rows of tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.cost.conv.winograd_bands import Band, Tiles, band_of_any_image, choose_band, tile_of_any_image
from tilewright.cost.gemm.cost_model import Decision
from tilewright.cost.gemm.register_tile import rows_of_remainder
from tilewright.graph.fusion.classify import OpClass
from tilewright.graph.fusion.profitability import tiles_by_bands
from tilewright.graph.fusion.refusals import computed_again, needed_elsewhere, not_worth
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type, extent_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.gemm.contraction import read_through, tile_fused
from tilewright.schedule.gemm.gemm_axes import is_costly
from tilewright.schedule.gemm.reduction_nest import joined
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class _Stages:
    """The stages of the kernel: what transforms the rows (where it belongs to the kernel), the contraction, the tiles,
    and the loops of the one nest that follows."""

    rows: Stage | None
    sums: Stage
    tiles: Stage
    loops: list[Op]


@dataclass(frozen=True, eq=False)
class _Bands:
    """The loops of the last nest: around the bands, over bands, over panels of columns, over the tiles of a band, and
    within a tile. Panels that `are_shared` by threads become one loop with the bands, of which there may be few;
    the `decision` is the register tile, where the cost model of contractions does not choose one."""

    batch: Op
    bands: list[Op]
    panels: Op
    tiles: list[Op]
    within: list[Op]
    are_shared: bool = False
    decision: Decision | None = None

    @property
    def order(self) -> list[Op]:
        return [self.batch, *self.bands, self.panels, *self.tiles, *self.within]


class WinogradTiles(Strategy):
    """A contraction whose result is transformed tile by tile, the transform of its data, where that is made band by
    band, and elementwise work on the tiles."""

    name = "winograd"
    form = "tiles"

    def join(self, join: Join) -> Match | NoMatch | None:
        answer = _with_tiles(join, self)
        return read_through(join) if answer is None and join.consumer.strategy is self else answer

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_winograd(s, lowered, target)


def _with_tiles(join: Join, winograd: WinogradTiles) -> Match | NoMatch | None:
    """Whether the two regions are one kernel; None when `op` neither reads nor makes tiles."""
    facts, producer, consumer, op = join.facts, join.producer, join.consumer, join.op
    taken = Match(consumer.domain)
    sums_tiles = all(facts.info(o).is_tiled for o in producer.ops)
    if join.info.is_tiled:
        return _why_not_into_tiles(join) or taken
    if join.info.kind is OpClass.CONTRACTION and sums_tiles and facts.target is not None:
        return tiles_by_bands(op, facts.typical, facts.target) or taken
    if producer.strategy is winograd:  # elementwise work on tiles while they are in L1
        others = (
            o
            for o in consumer.ops
            if not facts.info(o).is_pointwise or facts.info(o).domain != producer.domain
        )
        stranger = next(others, None)
        if stranger is None:
            return taken
        return not_worth(f"{stranger.name} needs more than the tile of the image that the kernel has at a time")
    return None


def _why_not_into_tiles(join: Join) -> NoMatch | None:
    """Tiles are computed from a part of the sums of a contraction, as soon as these are complete."""
    if join.value is not join.op.operands[0]:
        return not_worth("the kernel reads it only where numbers of a tile are too large for Winograd's algorithm")
    infos = [join.facts.info(o) for o in join.producer.ops]
    bare = all(i.is_tiled or i.kind is OpClass.CONTRACTION for i in infos)
    if join.producer.kind is not OpClass.CONTRACTION or not bare or not join.info.reads_once:
        return computed_again(join, "its elements would be computed again for every tile")
    return None if len(join.value.users) == 1 else needed_elsewhere(join, "the sums are needed elsewhere too")


def schedule_winograd(s: Schedule, lowered: Lowered, target: Target) -> None:
    """ScheduleError when the kernel is not one contraction, one stage of tiles, and elementwise work."""
    stages = _stages(s, lowered)
    nest = _cut_flat(s, stages, target) or _cut(s, stages, target)
    s.reorder(*nest.order)
    transform = s.compute_at(stages.tiles.buffer, nest.tiles[-1])
    vectors = [
        nest.within[-1],
        transform.copies[stages.tiles.axes[-1]],
        *(transform.copies[o] for o in stages.tiles.replaced),
    ]
    part = s.compute_at(stages.sums.buffer, nest.panels, guard="loads")
    if stages.rows is not None:
        rows = s.compute_at(stages.rows.buffer, [nest.batch, *nest.bands][-1])
        vectors.append(rows.copies[stages.rows.axes[-1]])
    tile_fused(s, stages.sums, part, target, nest.decision)
    s.simplify()
    for vector in vectors:
        s.vectorize(vector)
    if not is_costly(nest.within[-1]):
        s.unroll(nest.within[-2])
    if nest.are_shared:
        s.collapse(nest.bands[0], nest.panels)
    parallelize_outer(s, target)


def _stages(s: Schedule, lowered: Lowered) -> _Stages:
    found = list(lowered.stages)
    rows = found.pop(0) if found and found[0].tiles else None
    kinds = [(st.kind, bool(st.tiles)) for st in found]
    if kinds[:2] != [("reduce", False), ("map", True)] or set(kinds[2:]) != {("map", False)}:
        raise ScheduleError("it is not one contraction with tiles and elementwise work after it")
    sums, tiles, *work = found
    if any(len(st.axes) != len(tiles.tiles) for st in work):
        raise ScheduleError("the work on the tiles has other axes than these")
    return _Stages(rows, sums, tiles, joined(s, work))


def _cut_flat(s: Schedule, stages: _Stages, target: Target) -> _Bands | None:
    """The tiles of an image of unknown size as one axis, in bands of one length. None for images of known size, and
    where the number of tiles has no lower bound: nothing could be proved of such bands."""
    batch, columns, *space, vector = stages.loops
    lengths = stages.tiles.tiles[2:-1]
    count = product(-(-extent_of(o) // n) for o, n in zip(space, lengths, strict=True))
    if count.is_const or count.bounds[0] is None:
        return None
    shape = _tiles(stages, 1, 1, extent_of(columns))
    band = band_of_any_image(shape, target)
    tile = tile_of_any_image(shape, lengths, band, target)
    least = rows_of_remainder(tile) or tile.rows
    if not s.at_least(count, least):  # few tiles, or lines of few: those beyond the last one have conditions
        least, tile = 0, replace(tile, rows=-(-tile.rows // 2))
    tiles, within = _in_tiles(s, space, lengths)
    s.reorder(batch, columns, *tiles, *within, vector)
    flat = tiles[0]
    for axis in tiles[1:]:
        flat = s.collapse(flat, axis)
    bands = s.split_evenly(flat, max(band.across, least), least)
    panels = s.split(columns, band.panel)
    return _Bands(
        batch,
        [bands.outer],
        panels.outer,
        [panels.inner, bands.inner],
        [*within, vector],
        are_shared=stages.rows is None,
        decision=Decision(tile),
    )


def _in_tiles(s: Schedule, space: Sequence[Op], lengths: Sequence[int]) -> tuple[list[Op], list[Op]]:
    """Loops over tiles of these lengths, and loops within a tile along the axes where it is longer than one element."""
    parts = [s.split(o, n) if n > 1 else None for o, n in zip(space, lengths, strict=True)]
    tiles = [o if part is None else part.outer for o, part in zip(space, parts, strict=True)]
    return tiles, [part.inner for part in parts if part is not None]


def _cut(s: Schedule, stages: _Stages, target: Target) -> _Bands:
    """Split the axes of the result: those that the tiles cut in tiles, these in bands, and columns in panels. Bands lie
    within a plane of tiles, along the last two axes."""
    batch, columns, *space, vector = stages.loops
    tiles, within = _in_tiles(s, space, stages.tiles.tiles[2:-1])
    planes, tiles = tiles[:-2], tiles[-2:]
    in_planes, in_tiles = ([extent_of(o) for o in axes] for axes in (planes, tiles))
    band = _band(stages, in_planes, in_tiles, extent_of(columns), target)
    lengths_of_band = (band.rows, band.across)[-len(tiles) :]
    bands = [s.split(o, n) if n else None for o, n in zip(tiles, lengths_of_band, strict=True)]
    panels = s.split(columns, band.panel)
    return _Bands(
        batch,
        [*planes, *(b.outer for b in bands if b is not None)],
        panels.outer,
        [panels.inner, *(o if b is None else b.inner for o, b in zip(tiles, bands, strict=True))],
        [*within, vector],
    )


def _band(stages: _Stages, planes: Sequence[Sym], counts: Sequence[Sym], columns: Sym, target: Target) -> Band:
    """The best band of a plane of `counts` tiles, with 0 across where that is all; single rows where their number is
    not known. ScheduleError for lines of unknown length, which have no rows. The `planes` of an image count as
    images."""
    if not all(n.is_const for n in counts):
        if len(counts) == 1:
            raise ScheduleError("a line of unknown length is not cut into bands")
        return replace(band_of_any_image(_tiles(stages, 1, 1, columns), target), across=0)
    tiles = _tiles(stages, product(counts[:-1]).value, counts[-1].value, columns)
    several = product(planes)
    tiles = replace(tiles, images=tiles.images * (several.value if several.is_const else 1))
    band = choose_band(tiles, target)
    return replace(band, across=0) if band.across == tiles.across else band


def _tiles(stages: _Stages, rows: int, across: int, columns: Sym) -> Tiles:
    """What the cost model sees of `rows` x `across` tiles of an image. ScheduleError where the numbers of channels are
    not known."""
    sums = buffer_type(stages.sums.buffer)
    images, _, points, _, lanes = sums.shape
    depth = product(extent_of(o) for o in stages.sums.reduce)
    if not all(n.is_const for n in (columns, points, lanes, depth)):
        raise ScheduleError("the numbers of channels are not known")
    return Tiles(
        images=images.value if images.is_const else 1,
        rows=rows,
        across=across,
        points=points.value,
        depth=depth.value,
        columns=columns.value,
        lanes=lanes.value,
        element=sums.dtype.bytes,
        made_here=stages.rows is not None,
    )
