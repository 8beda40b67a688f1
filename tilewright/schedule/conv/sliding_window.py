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

from tilewright.cost.window_tile import tile_of_any_line, vectors_of_tile
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.scalar import COSTLY
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.loops.analysis.bounds import Ranges, holds
from tilewright.loops.edit import body_of, buffer_type, extent_of, loop_var, ranges_at
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.lanes.vectorize import MAX_LANES
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.order.split import Split
from tilewright.schedule.conv.two_stage_reduction import joins_line_sums, sum_lines, take_line_sums
from tilewright.schedule.gemm.contraction import Contraction, is_contraction
from tilewright.schedule.gemm.gemm_axes import axes_read, one_nest, separate_sums
from tilewright.schedule.rows.reduction import Reduction
from tilewright.schedule.steps.access import loads_in, stores_in, stride_in, variables
from tilewright.schedule.steps.blocked_summation import is_deep, sum_in_parts
from tilewright.schedule.steps.packing import packing_for
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.strategy import FusedRegion
from tilewright.schedule.trace import Schedule
from tilewright.target.target import VECTOR_BYTES, Target

WRITTEN_OUT = 128
"""Updates of one tile that are written out, at most, so that their conditions are decided when compiling."""
STRIDES = (1, 2, 3, 4)
"""Elements between lanes that loads of whole vectors and shuffles serve."""
MOST_PEELED = 2
"""Tiles at one end of a line that are taken out of its loop, at most."""


@dataclass(eq=False)
class _Nest:
    """Loops of one part of the kernel: those around its tile (sums among them), the tile's columns, its lanes."""

    around: list[Op]
    columns: list[Op]
    lanes: Op

    @property
    def root(self) -> Op:
        return [*self.around, *self.columns, self.lanes][0]


class SlidingWindow(Contraction):
    """Contractions of windows, one for each element of the result (depthwise convolutions), and sums of the lines that
    they give. Its schedule also serves other contractions, and reductions, whose operands move with the lanes."""

    name = "sliding_window"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.CONTRACTION and info.slides

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.producer.strategy is self and (answer := joins_line_sums(join)) is not None:
            return answer
        if join.consumer.strategy is self and join.info.slides and is_contraction(join.producer):
            return None  # both in one kernel are a strategy of their own
        return super().join(join)

    def match(self, region: FusedRegion) -> Match | NoMatch:
        is_sum = is_contraction(region) or isinstance(region.strategy, Reduction)
        return Match() if is_sum else NoMatch("it is not one sum with elementwise work")

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_windows(s, lowered, target)


def schedule_windows(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Sum several vectors side by side, along the lanes' axis where it is long and else along the axis next to it.

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    windows, lines = take_line_sums(lowered)
    stage, loops, sums = one_nest(s, windows)
    sum_windows(s, stage, loops, sums, target)
    if lines is not None:
        sum_lines(s, lines)
    parallelize_outer(s, target)


def sum_windows(
    s: Schedule, stage: Stage, loops: list[Op], sums: Value, target: Target, within: Op | None = None
) -> None:
    """Compute the sums of `stage`, which `sums` holds, by tiles in registers within the nest `loops` that reads them;
    this keeps the order of the other loops. Only what is in the loop `within`, if any, is simplified. ScheduleError
    when it has not this form."""
    if not stage.reduce or not loops:
        raise ScheduleError("it sums over no axis, or gives a single element")
    axis_of = axes_read(loops, sums)
    lane = _lane_axis(s, stage, loops, axis_of)
    result, tile_loop = _tiled(s, loops, axis_of, lane, sums, target)
    s.reorder(*result.around, *result.columns, result.lanes)
    costly = any(op.name in COSTLY for op in body_of(result.lanes).walk())
    deep = is_deep(stage.reduce)
    fused = s.compute_at(sums, result.around[-1], space="scratch" if costly or deep else "reg", guard="loads")
    clear, update = _parts(s, stage, fused.copies, axis_of, lane, result)
    nests = [clear, update]
    if costly and not deep:
        drained = s.cache(fused.buffer, clear.root, update.root).drain
        nests.append(_on_tile(s, drained, update))
    _pack_constants(s, update)
    for nest in nests:
        _mark(s, nest)
    _skip_padding(s, update)
    _mark(s, result, unrolled=not costly)
    _write_out_innermost(s, update)
    s.simplify(within)
    if deep:
        for part in sum_in_parts(s, fused.buffer, [o for o in update.around if extent_of(o) != 1]):
            _mark(s, _on_tile(s, part.clear, update))
            _mark(s, _on_tile(s, part.add, update))
        s.simplify(within)
    if tile_loop is not None:
        _peel_padding(s, tile_loop)
        s.simplify(within)


def _lane_axis(s: Schedule, stage: Stage, loops: list[Op], axis_of: dict[Op, int]) -> Op:
    """The axis in which the result is contiguous. ScheduleError when an operand does not move with it by few
    elements, or when the other axes share what they read."""
    store = stores_in(loops[0])[0]
    lane = next((o for o in loops if extent_of(o) != 1 and stride_in(store, loop_var(o)) == 1), None)
    if lane is None or lane not in axis_of:
        raise ScheduleError("the result is not contiguous in an axis of the sum")
    terms = product(extent_of(o) for o in stage.reduce)
    if not extent_of(lane).is_const and not (terms.is_const and terms.value <= WRITTEN_OUT):
        raise ScheduleError("the lanes' axis has no known extent, and sums of many terms read long lines")
    loads = [op for op in loads_in(stage.axes[0]) if op.operands[0] is not stage.buffer]
    v = loop_var(stage.axes[axis_of[lane]])
    packed = constants_of(s.func)
    axes = {loop_var(o) for o in (*stage.axes, *stage.reduce)}
    loads = [
        load for load in loads if not axes.isdisjoint(variables(load.attrs["idx"]))
    ]  # others stay in registers
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


def _tiled(
    s: Schedule, loops: list[Op], axis_of: dict[Op, int], lane: Op, sums: Value, target: Target
) -> tuple[_Nest, Op | None]:
    """The result's nest with its tile split off, and the loop over the tiles of a row (None where it is one)."""
    element = buffer_type(sums).dtype.bytes
    lanes = VECTOR_BYTES // element
    others = [o for o in loops if o is not lane]
    if not extent_of(lane).is_const:
        return _in_vectors(s, others, lane, lanes)
    extent = extent_of(lane).value
    wide = extent > MAX_LANES
    column = lane if wide else next((o for o in reversed(others) if o in axis_of and extent_of(o) != 1), None)
    if column is None:
        raise ScheduleError("every axis of the result is in one vector")
    count = -(-extent // lanes) if wide else extent_of(column).value if extent_of(column).is_const else None
    columns = vectors_of_tile(lanes if wide else extent, element, count, wide, target)
    if wide and columns * lanes > extent and not target.masked_memory:
        columns = -(-columns // 2)  # two tiles that overlap
    if count is None and (most := extent_of(column).bounds[1]) is not None:
        columns = max(1, min(columns, -(-most // 2)))
    if columns == count and not [o for o in others if o is not column]:
        columns = -(-columns // 2)  # a loop around the tile, for threads to share
    size = columns * lanes if wide else columns
    tile_loop: Op | None = None
    inner = column
    if extent_of(column) != size:
        parts = _in_whole_tiles(s, column, size)
        tile_loop, inner = parts.outer, parts.inner
    around = [o for o in others if o is not column]
    if tile_loop is not None:
        around.append(tile_loop)
    if not around:
        raise ScheduleError("every axis of the result is in its register tile")
    if not wide:
        return _Nest(around, [inner], lane), tile_loop
    if columns == 1:
        return _Nest(around, [], inner), tile_loop
    within = s.split(inner, lanes)
    return _Nest(around, [within.outer], within.inner), tile_loop


def _in_vectors(s: Schedule, others: list[Op], lane: Op, lanes: int) -> tuple[_Nest, Op]:
    """The nest with tiles of a few vectors, of a row of unknown length: fewer lanes where it is known to be short."""
    size = tile_of_any_line(lanes, extent_of(lane).bounds[1])
    if not size or not s.at_least(extent_of(lane), size + 1, of_few=True):
        raise ScheduleError("the lanes' axis may be too short for a vector")
    parts = s.split(lane, size, tail="overlap")
    if size <= lanes:
        return _Nest([*others, parts.outer], [], parts.inner), parts.outer
    within = s.split(parts.inner, lanes)
    return _Nest([*others, parts.outer], [within.outer], within.inner), parts.outer


def _in_whole_tiles(s: Schedule, column: Op, size: int) -> Split:
    """Split in tiles, the last of which may overlap the one before it, unless a later step reads what it writes."""
    if s.at_least(extent_of(column), size):
        try:
            return s.split(column, size, tail="overlap")
        except ScheduleError as e:
            s.missed.append(str(e))
    return s.split(column, size)


def _parts(
    s: Schedule, stage: Stage, copies: dict[Op, Op], axis_of: dict[Op, int], lane: Op, result: _Nest
) -> tuple[_Nest, _Nest]:
    """The nests that clear and that sum a tile, with the reduction loops outside of its columns."""
    reduce = [copies[o] for o in stage.reduce]
    parts = separate_sums(s, stage, copies)
    made = []
    for loops, summing in ((parts.before, []), (parts.after, reduce)):
        vector = loops[axis_of[lane]]
        rest = [o for o in loops if o is not vector]
        columns = [o for o in rest if extent_of(o) != 1]
        around = [*(o for o in rest if o not in columns), *summing]
        if extent_of(vector) != extent_of(result.lanes):
            within = s.split(vector, extent_of(result.lanes).value)
            columns, vector = [*columns, within.outer], within.inner
        s.reorder(*around, *columns, vector)
        made.append(_Nest(around, columns, vector))
    return made[0], made[1]


def _on_tile(s: Schedule, loops: list[Op], update: _Nest) -> _Nest:
    """Loops over a tile of sums, such as those that copy it, in the form of the nest that sums it."""
    *columns, vector = loops
    width = extent_of(update.lanes).value
    if extent_of(vector) != width:
        within = s.split(vector, width)
        columns, vector = [*columns, within.outer], within.inner
    return _Nest([], columns, vector)


def _pack_constants(s: Schedule, update: _Nest) -> None:
    """Lay constant operands out in the order in which the summing nest reads them."""
    loops = [*update.around, *update.columns, update.lanes]
    for operand in constants_of(s.func):
        loads = [op for op in loads_in(update.root) if op.operands[0] is operand]
        if len(loads) == 1 and all(u is loads[0] for u in operand.users):
            packing = packing_for(loads[0], loops)
            if packing is not None:
                s.pack_argument(operand, packing)


def _skip_padding(s: Schedule, update: _Nest) -> None:
    """Conditions around the rounds instead of zeros within them."""
    try:
        s.guard_reduction(update.root)
    except ScheduleError:
        return


def _mark(s: Schedule, nest: _Nest, *, unrolled: bool = True) -> None:
    s.vectorize(nest.lanes)
    for loop in nest.columns:
        if unrolled:
            s.unroll(loop)


def _write_out_innermost(s: Schedule, update: _Nest) -> None:
    """Write the inner reduction loop out where it is short: its conditions on columns are then known numbers."""
    inner = [o for o in update.around if extent_of(o) != 1]
    rounds = product(extent_of(o) for o in (*inner[-1:], *update.columns))
    if inner and rounds.is_const and rounds.value <= WRITTEN_OUT:
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
