"""The default schedule of reductions in lanes: every operand moves with the lanes, and none is read for more than
its window. Depthwise convolutions, pooling, and sums over outer axes have this form; all are bound by memory.

    for outer parallel {
      for column tile {                     the first and the last on their own, as only these touch the padding
        acc: reg[columns, lanes] = 0
        for k { if row exists { acc[c, :] += x[.., c + k, :] * w[k, :] } }
        y[.., columns, :] = epilogue(acc)
      }
    }
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.cost.conv.window_tile import lanes_of_short_line, tile_of_any_line, vectors_of_tile
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.loops.analysis.bounds import Ranges, holds
from tilewright.loops.edit import extent_of, loop_var, ranges_at
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.lanes.vectorize import MAX_LANES
from tilewright.loops.stages import Lowered
from tilewright.schedule.conv.two_stage_reduction import joins_line_sums, sum_lines, take_line_sums
from tilewright.schedule.gemm.contraction import Contraction, is_contraction
from tilewright.schedule.gemm.dot_products import group_of_taps
from tilewright.schedule.gemm.panels import pack_constants
from tilewright.schedule.gemm.reduction_nest import ReductionNest, one_reduction
from tilewright.schedule.gemm.register_tile import Nest, mark, sum_in_blocks, summation_of, tile_sums
from tilewright.schedule.rows.reduction import Reduction
from tilewright.schedule.steps.access import (
    element_bytes,
    iterations_of,
    known,
    stores_in,
    stride_in,
    variables,
)
from tilewright.schedule.steps.flatten import flatten_short_lines
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.tiling import tile_loop, vectors_of
from tilewright.schedule.strategy import FusedRegion
from tilewright.schedule.trace import Schedule
from tilewright.target.target import VECTOR_BYTES, Target

MOST_UNROLLED = 128
"""Updates of one tile that are unrolled, at most, so that their conditions are decided when compiling."""
STRIDES = (1, 2, 3, 4)
"""Elements between lanes that loads of whole vectors and shuffles serve."""
MOST_PEELED = 2
"""Tiles at one end of a line that are taken out of its loop, at most."""


class SlidingWindow(Contraction):
    """Contractions of windows, one for each element of the result (depthwise convolutions), and sums of the lines that
    they give. Its schedule also serves other contractions, and reductions, whose operands move with the lanes."""

    name = "sliding_window"
    form = "windows"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.CONTRACTION and info.is_sliding_window

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.producer.strategy is self and (answer := joins_line_sums(join)) is not None:
            return answer
        if join.consumer.strategy is self and join.info.is_sliding_window and is_contraction(join.producer):
            return None  # both in one kernel are a strategy of their own
        return super().join(join)

    def match(self, region: FusedRegion) -> Match | NoMatch:
        is_sum = is_contraction(region) or isinstance(region.strategy, Reduction)
        return Match() if is_sum else NoMatch("it is not one sum with elementwise work")

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_windows(s, lowered, target)


def schedule_windows(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Sum several vectors interleaved, along the lanes' axis where it is long and else along the axis next to it.

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    windows, lines = take_line_sums(lowered)
    flatten_short_lines(s, lowered.stages, target)
    sum_windows(s, one_reduction(s, windows), target)
    if lines is not None:
        sum_lines(s, lines)
    parallelize_outer(s, target)


def sum_windows(s: Schedule, windows: ReductionNest, target: Target, within: Op | None = None) -> None:
    """Compute the sums of windows by tiles in registers within the nest that reads them; this keeps the order of the
    other loops. Only what is in the loop `within`, if any, is simplified. ScheduleError when it has not this form."""
    if not windows.stage.reduce:
        raise ScheduleError("it sums over no axis")
    lane = _lane_axis(s, windows)
    group = group_of_taps(s, windows.stage, windows.stage.axes[windows.axis_of[lane]], target)
    tiled = _tiled(s, windows, lane, target)
    reader = tiled.reader
    s.reorder(*reader.loops)
    kept = summation_of(windows.stage, reader.tile[-1])
    lanes = extent_of(reader.tile[-1]).value
    sums = tile_sums(s, windows.stage, reader.outer[-1], tiled.axes, lanes, kept, group)
    pack_constants(s, [[*sums.add.loops, *sums.add.group]])
    for nest in sums.nests:
        mark(s, nest, clamped=False)
    _skip_padding(s, sums.add)
    mark(s, reader, unrolled=not kept.costly, clamped=False)
    _unroll_innermost(s, sums.add)
    s.simplify(within)
    if kept.deep:
        sum_in_blocks(s, sums)
        s.simplify(within)
    if tiled.tiles is not None:
        _peel_padding(s, tiled.tiles)
        s.simplify(within)


def _lane_axis(s: Schedule, windows: ReductionNest) -> Op:
    """The axis in which the result is contiguous. ScheduleError when an operand does not move with it by few
    elements, or when the other axes share what they read."""
    stage = windows.stage
    store = stores_in(windows.loops[0])[0]
    lane = next((o for o in windows.loops if extent_of(o) != 1 and stride_in(store, loop_var(o)) == 1), None)
    if lane is None or lane not in windows.axis_of:
        raise ScheduleError("the result is not contiguous in an axis of the sum")
    if windows.axis_of[lane] >= len(stage.axes):
        raise ScheduleError("the lanes of the sum are elements of vectors that are summed later")
    terms = product(extent_of(o) for o in stage.reduce)
    if not extent_of(lane).is_const and not (terms.is_const and terms.value <= MOST_UNROLLED):
        raise ScheduleError("the lanes' axis has no known extent, and sums of many terms read long lines")
    v = loop_var(stage.axes[windows.axis_of[lane]])
    packed = constants_of(s.func)
    axes = {loop_var(o) for o in (*stage.axes, *stage.reduce)}
    loads = [load for load in windows.loads if axes & variables(load.attrs["idx"])]  # others stay in registers
    served = [
        v in variables(load.attrs["idx"]) if load.operands[0] in packed else stride_in(load, v) in STRIDES
        for load in loads
    ]
    if not loads or not all(served):
        raise ScheduleError("an operand does not move with the lanes")
    live = {loop_var(o) for o in stage.axes if extent_of(o) != 1}
    if not any(live <= variables(load.attrs["idx"]) for load in loads):
        raise ScheduleError("every operand is read again for other elements of the result")
    return lane


@dataclass(frozen=True, eq=False)
class _Tiled:
    """The nest that reads the sums, in tiles over `axes` of these (the last in vectors), and the loop over the tiles of
    a row (None where it is one)."""

    reader: Nest
    axes: list[int]
    tiles: Op | None


def _tiled(s: Schedule, windows: ReductionNest, lane: Op, target: Target) -> _Tiled:
    """Split the axis of the lanes where it is long, else the one next to it."""
    element = element_bytes(windows.sums)
    lanes = VECTOR_BYTES // element
    others = [o for o in windows.loops if o is not lane]
    axis = windows.axis_of[lane]
    if not extent_of(lane).is_const:
        size, tail = _short_or_long(s, lane, lanes)
        parts = s.split(lane, size, tail=tail)
        return _Tiled(Nest([*others, parts.outer], vectors_of(s, [parts.inner], lanes)), [axis], parts.outer)
    extent = extent_of(lane).value
    wide = extent > MAX_LANES
    found = (o for o in reversed(others) if o in windows.axis_of and extent_of(o) != 1)
    column = lane if wide else next(found, None)
    if column is None:
        raise ScheduleError("every axis of the result is in one vector")
    count = -(-extent // lanes) if wide else known(extent_of(column))
    columns = vectors_of_tile(lanes if wide else extent, element, count, wide, target)
    if wide and columns * lanes > extent and not target.masked_memory:
        columns = -(-columns // 2)  # two tiles that overlap
    if count is None and (most := extent_of(column).bounds[1]) is not None:
        columns = max(1, min(columns, -(-most // 2)))
    around = [o for o in others if o is not column]
    if columns == count and not around:
        columns = -(-columns // 2)  # a loop around the tile, for threads to share
    tiles, inner = _whole_tiles(s, column, columns * lanes if wide else columns)
    around += tiles
    if not around:
        raise ScheduleError("every axis of the result is in its register tile")
    tile, axes = ([inner], [axis]) if wide else ([inner, lane], [windows.axis_of[column], axis])
    return _Tiled(Nest(around, vectors_of(s, tile, lanes)), axes, tiles[0] if tiles else None)


def _short_or_long(s: Schedule, lane: Op, lanes: int) -> tuple[int, str]:
    """Elements of tiles of a row of unknown length, and what becomes of those that fill no tile: a few vectors, fewer
    lanes where it is known to be short, and one vector under a mask where it has none of these."""
    most = extent_of(lane).bounds[1]
    size = tile_of_any_line(lanes, most)
    if size and s.at_least(extent_of(lane), size + 1, of_few=True):
        return size, "overlap"
    size = lanes_of_short_line(lanes, most)
    if not size:
        raise ScheduleError("the lanes' axis may be too short for a vector")
    return size, "guard"


def _whole_tiles(s: Schedule, column: Op, size: int) -> tuple[list[Op], Op]:
    """Split in tiles, the last of which may overlap the one before it, unless a later step reads what it writes."""
    if extent_of(column) != size and s.at_least(extent_of(column), size):
        with s.noting("the last tile is masked and does not overlap the one before it"):
            return tile_loop(s, column, size, "overlap")
    return tile_loop(s, column, size)


def _skip_padding(s: Schedule, add: Nest) -> None:
    """Conditions around the iterations instead of zeros within them."""
    with s.noting("padding is multiplied as zeros"):
        s.guard_reduction(add.loops[0])


def _unroll_innermost(s: Schedule, add: Nest) -> None:
    """Unroll the inner reduction loop where it is short: its conditions on columns are then known numbers."""
    inner = [o for o in add.outer if extent_of(o) != 1]
    count = iterations_of([*inner[-1:], *add.tile[:-1]])
    if inner and count is not None and count <= MOST_UNROLLED:
        s.unroll(inner[-1])


def _peel_padding(s: Schedule, tiles: Op) -> None:
    """Take the first and last tiles out as far as only these touch the padding."""
    if tiles.parent is None or not _conditions_on(tiles):
        return
    if not extent_of(tiles).is_const and not s.at_least(extent_of(tiles), 2):
        return
    count, conditions = extent_of(tiles), _conditions_on(tiles)
    some = range(MOST_PEELED + 1)
    choices = [(a, b) for a in some for b in some if not count.is_const or a + b < count.value]
    for first, last in sorted(choices, key=sum):
        within = {loop_var(tiles): (sym(first), count - 1 - last)}
        alone = first + last + 1 == count  # its position is a number, too
        if alone or all(holds(c, ranges | within) for c, ranges in conditions):
            if first + last and s.at_least(count, first + last):
                s.peel(tiles, first, last)
            return


def _conditions_on(tiles: Op) -> list[tuple[Sym, Ranges]]:
    """The conditions inside that depend on the position of the tile, with the ranges of the loops around."""
    return [
        (c, ranges_at(op))
        for op in tiles.walk()
        for c in op.attrs.get("guard", ())
        if op.name in ("load", "if") and loop_var(tiles) in c.vars
    ]
