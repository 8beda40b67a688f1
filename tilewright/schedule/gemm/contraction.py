"""The default schedule of contractions (matrix products, convolutions) and of other reductions with a vector axis.

    for outer parallel {                      batch, column tiles, image rows, row tiles
      acc: reg[rows, columns, lanes] = 0
      for k { acc[..] += A[row, k] * B[k, column] }      rows and columns unrolled, lanes one vector
      y[row, column] = epilogue(acc[..])
    }

Tiles come from the cost model (`cost.gemm`); constant operands are packed in the order in which this nest reads
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tilewright.cost.gemm import Decision, choose, why_not_cut, why_not_turned
from tilewright.cost.parallel import columns_suffice
from tilewright.cost.recompute import is_cheap
from tilewright.cost.register_tile import Tile, rows_of_remainder
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.rules import epilogue
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.graph.rewrites.weight_only import is_known
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.scalar import COSTLY
from tilewright.loops.edit import buffer_type, extent_of
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.lower import Lowered, Stage
from tilewright.schedule.gemm.cache_blocking import blocking_of, tile_in_blocks
from tilewright.schedule.gemm.dequantize import mark, weights_apart, widen
from tilewright.schedule.gemm.dot_products import group_of_products
from tilewright.schedule.gemm.gemm_axes import (
    GemmAxes,
    assign_axes,
    axes_read,
    for_its_rows,
    one_nest,
    operands_moving,
    separate_sums,
    transposed_axes,
)
from tilewright.schedule.gemm.gemm_shape import gemm_shape, transposed_shape
from tilewright.schedule.gemm.loop_order import writes_lines
from tilewright.schedule.gemm.multi_stream_panels import cut_in_streams, order_of_streams
from tilewright.schedule.gemm.panels import pack_columns, pack_constants, prefetch_panels
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.steps.access import conditional_nest
from tilewright.schedule.steps.blocked_summation import is_deep, sum_in_parts
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class Contraction(Strategy):
    """One contraction with the index maps through which it reads its operands, and elementwise work on its result."""

    name = "contraction"
    in_steps = True

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.CONTRACTION

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.consumer.strategy is self:
            return read_through(join)
        if join.producer.strategy is self and is_elementwise(join.consumer):
            # what computes whole tiles, or unpacks the image, belongs to other strategies
            return None if join.info.is_tiled or join.info.unpacks else epilogue(join)
        return None

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Match() if is_contraction(region) else NoMatch("it is not one contraction with elementwise work")

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_contraction(s, lowered, target)


def is_contraction(region: Region | FusedRegion) -> bool:
    """Whether fusion has made a region for this strategy, or for one that adds to it."""
    return isinstance(region.strategy, Contraction)


def read_through(join: Join) -> Match | NoMatch | None:
    """What a contraction reads: only pure index maps are read through, and maps of constants. Anything else would be
    computed once for each tile."""
    facts, producer, op = join.facts, join.producer, join.op
    reads_tiles = all(facts.info(o).is_tiled for o in producer.ops)
    if join.info.is_tiled or (reads_tiles and join.info.kind is OpClass.CONTRACTION):
        return None
    moves = all(facts.info(o).is_index_map for o in producer.ops)
    if not is_elementwise(producer) or not (moves or _is_weight(join)):
        return NoMatch("its elements would be computed again for every tile of the contraction")
    if not join.info.reads_through:
        return NoMatch(f"{op.name} reads its operands in their own layout")
    if not join.leaves_nothing_else():
        return NoMatch("the reordered tensor is needed elsewhere too")
    return Match(join.consumer.domain)


def _is_weight(join: Join) -> bool:
    """Whether a map gives the right operand of a contraction from constants alone: each element then serves all rows,
    and may be computed for a panel of columns at a time."""
    known = all(is_known(v) for o in join.producer.ops for v in o.results)
    return known and join.value is join.op.operands[1] and is_cheap(join.facts.cost(join.producer))


def schedule_contraction(
    s: Schedule, lowered: Lowered, target: Target, decision: Decision | None = None, *, turned: bool = False
) -> None:
    """Tile the reduction stage and compute the stages after it on each tile in registers: as the cost model chooses, or
    as `decision` says (for vectors along the rows, if `turned`).

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    weights, sums = weights_apart(lowered)
    stage, loops, accumulator = one_nest(s, sums)
    tile_contraction(s, stage, loops, accumulator, target, decision, weights, turned)
    parallelize_outer(s, target)


def tile_contraction(
    s: Schedule,
    stage: Stage,
    loops: list[Op],
    accumulator: Value,
    target: Target,
    decision: Decision | None = None,
    weights: Sequence[Stage] = (),
    turned: bool = False,
) -> None:
    """Compute the sums of `stage`, which `accumulator` holds, by tiles in registers within the nest `loops` that
    reads them; stages of `weights` compute operands from constants. ScheduleError when it has not this form."""
    axis_of = axes_read(loops, accumulator)
    axes = assign_axes(stage, loops, accumulator, axis_of)
    constants = constants_of(s.func) + [w.buffer for w in weights]
    group = group_of_products(s, stage, axes, axis_of, constants, target)
    shape = gemm_shape(stage, axes, axis_of, constants)
    if group is not None:
        shape = replace(shape, uncut="groups of integers are multiplied in tiles of the whole depth")
    if weights:
        shape = replace(shape, uncut="weights become wide by panels of the whole depth")
    if group is None and (turned or decision is None):
        across = transposed_axes(stage, loops, accumulator, axis_of, axes, constants)
        if across is None and turned:
            raise ScheduleError("its constant rows are not whole vectors")
        if across is not None:
            shape_across = transposed_shape(stage, across, axis_of, constants)
            reason = "" if turned else why_not_turned(shape, shape_across, target)
            if reason:
                s.missed.append(f"vectors along the constants, the result transposed: {reason}")
            else:
                axes, shape = across, shape_across
    if decision is None:
        choice = choose(shape, target)
        decision = choice.decision
        s.missed += choice.declined
        if decision.blocks is None:
            s.missed.append(f"not cut into blocks: {why_not_cut(shape, choice)}")
    if decision.blocks is not None:
        blocking = blocking_of(stage, shape, decision.blocks)
        tile_in_blocks(s, stage, axes, axis_of, accumulator, decision.tile, blocking, target)
        return
    tile = for_its_rows(decision.tile, axes)
    rest = _rows_of_rest(s, axes, tile, target)
    one_tile = _is_one_tile(axes, tile)
    by_lines = not rest and writes_lines(s, stage, axes, loops, axis_of, target)
    column_tile, row_tile, inner = _tile_loops(s, axes, tile, rest)
    around = _outer_order(stage, axes, axis_of, column_tile, row_tile, decision.columns_outside)
    shared = around[: len(around) - len(row_tile)]
    if by_lines and (lines := [o for o in shared if o not in column_tile]):
        shared, around = lines, [*lines, *row_tile, *column_tile]
    if not around:  # all of it is one tile; the sums still need a loop to be computed in
        whole = s.split(inner[0], extent_of(inner[0]).value)
        around, inner[0] = [whole.outer], whole.inner
    s.reorder(*around, *inner)
    parts = _row_parts(s, around, inner, tile, rest)
    costly = any(op.name in COSTLY for op in inner[-1].walk())
    deep = buffer_type(accumulator).dtype.is_float and is_deep(stage.reduce)
    summed: list[_Summed] = []
    for part in parts:
        made = s.compute_at(
            accumulator, part.around[-1], space="scratch" if costly or deep else "reg", guard="loads"
        )
        nests = _tile_nests(s, stage, axes, part.tile, axis_of, made.copies, group)
        drain = [_in_registers(s, made.buffer, nests, part.tile)] if costly and not deep else []
        summed.append(_Summed(part, made.buffer, nests, drain))
    updates = [n.nests[1] for n in summed]
    step = updates[0].outer[-1] if one_tile else None
    widening = [widen(s, w, parts[0].around, step, tile.lanes) for w in weights]
    once = shape.packed and group is None and not weights and _is_read_once(axes, tile)
    nontemporal = cut_in_streams(s, updates[0].tile, tile, shape.element, target) if once else None
    packed = [[*order_of_streams(u.outer, u.tile, nontemporal), *u.group] for u in updates]
    pack_constants(s, [*packed, *widening])
    summing = [[*update.outer, *update.tile] for update in updates]
    depth = [o for o in updates[0].outer if o not in parts[0].around and extent_of(o) != 1]
    if group is None:
        pack_columns(s, summing, depth, shared, row_tile)
    s.simplify()
    for n in summed:
        for nest in (*n.nests, *n.drain):
            _mark_tile(s, nest)
        _mark_tile(s, Nest([], n.part.inner), unrolled=not costly)
    for loops in widening:
        mark(s, loops)
    for n in summed if deep else ():
        for sums in sum_in_parts(s, n.sums, [o for o in n.nests[1].outer if o.parent is not None]):
            _mark_tile(s, _tile_nest(s, sums.clear, tile))
            _mark_tile(s, _tile_nest(s, sums.add, tile))
    if deep:
        s.simplify()
    prefetch_panels(s, updates[0].outer[-1], parts[0].around, target)


def _is_one_tile(axes: GemmAxes, tile: Tile) -> bool:
    """Whether all rows are one register tile."""
    most = 1 if axes.row is None else extent_of(axes.row).bounds[1]
    return most is not None and most <= tile.rows


def _is_read_once(axes: GemmAxes, tile: Tile) -> bool:
    """Whether columns are read for one register tile of rows alone."""
    return _is_one_tile(axes, tile) and all(extent_of(o) == 1 for o in axes.outer)


@dataclass(eq=False)
class Nest:
    """A nest on the register tile: loops around (reductions among them), and the tile's own, vector last. Inside of
    that may be the loop over a group of products that are added at once."""

    outer: list[Op]
    tile: list[Op]
    group: list[Op] = field(default_factory=list)


@dataclass(eq=False)
class _RowPart:
    """Rows that tiles of one size compute: the loops around a tile, those of the tile in the nest that reads the sums,
    and what `compute_at` made there."""

    tile: Tile
    around: list[Op]
    inner: list[Op]


@dataclass(eq=False)
class _Summed:
    """A part of the rows with its sums: the nests that clear and add, and one that copies what registers hold."""

    part: _RowPart
    sums: Value
    nests: tuple[Nest, Nest]
    drain: list[Nest]


def _outer_order(
    stage: Stage,
    axes: GemmAxes,
    axis_of: dict[Op, int],
    columns: list[Op],
    rows: list[Op],
    columns_outside: bool,
) -> list[Op]:
    """Loops around the tile. What only moves the rows' operand goes inside of the column tiles when these are to be
    read once; else outside, so that rows are read once."""
    vector = operands_moving(stage, axis_of[axes.vector])
    batch = [o for o in axes.outer if operands_moving(stage, axis_of.get(o)) & vector]
    space = [o for o in axes.outer if o not in batch]
    return [*batch, *columns, *space, *rows] if columns_outside else [*batch, *space, *columns, *rows]


def _rows_of_rest(s: Schedule, axes: GemmAxes, tile: Tile, target: Target) -> int:
    """Rows of the smaller tiles of those that whole tiles leave, where the number of rows is not known; 0 where the
    last tile repeats rows of the one before instead. Threads then share columns alone: there must be enough."""
    row, rest = axes.row, rows_of_remainder(tile)
    if row is None or not rest or extent_of(row).bounds[1] is not None:
        return 0
    columns = extent_of(axes.vector if axes.block is None else axes.block)
    width = tile.columns * (tile.lanes if axes.block is None else 1)
    if not columns.is_const or not columns_suffice(columns.value // width, target):
        s.missed.append("no smaller tiles for the last rows: threads need tiles of rows to share")
        return 0
    return rest if s.at_least(extent_of(row), rest, of_few=True) else 0


def _row_parts(s: Schedule, around: list[Op], inner: list[Op], tile: Tile, rest: int) -> list[_RowPart]:
    """All rows in tiles of one size; or whole tiles, and those of `rest` rows."""
    if not rest:
        return [_RowPart(tile, around, inner)]
    parts = s.split(around[-1], tile.rows, tail="overlap", rest=rest)
    if parts.tail is None:
        return [_RowPart(tile, around, [parts.inner, *inner])]
    last, *within = conditional_nest(parts.tail)[: len(inner) + 2]
    return [
        _RowPart(tile, around, [parts.inner, *inner]),
        _RowPart(replace(tile, rows=rest), [*around[:-1], last], within),
    ]


def _tile_loops(s: Schedule, axes: GemmAxes, tile: Tile, rest: int) -> tuple[list[Op], list[Op], list[Op]]:
    """Split the axes; returns (column tiles, row tiles, inner loops from the outermost). Rows that get tiles of two
    sizes are not split yet."""
    inner: list[Op] = []
    column_tile: list[Op] = []
    row_tile: list[Op] = []
    if axes.row is not None:
        if extent_of(axes.row) == tile.rows:
            inner.append(axes.row)
        elif rest:
            row_tile.append(axes.row)
        else:
            whole = tile.rows > 1 and s.at_least(extent_of(axes.row), tile.rows, of_few=True)
            parts = s.split(axes.row, tile.rows, tail="overlap" if whole else "guard")
            row_tile.append(parts.outer)
            inner.append(parts.inner)
    vector = axes.vector
    if axes.block is not None:
        parts = s.split(axes.block, tile.columns)
        column_tile.append(parts.outer)
        inner.append(parts.inner)
    elif extent_of(vector) != tile.lanes:
        if extent_of(vector) != tile.lanes * tile.columns:
            parts = s.split(vector, tile.lanes * tile.columns)
            column_tile.append(parts.outer)
            vector = parts.inner
        if tile.columns > 1:
            within = s.split(vector, tile.lanes)
            inner.append(within.outer)
            vector = within.inner
    return column_tile, row_tile, [*inner, vector]


def _tile_nests(
    s: Schedule,
    stage: Stage,
    axes: GemmAxes,
    tile: Tile,
    axis_of: dict[Op, int],
    copies: dict[Op, Op],
    group: Op | None,
) -> tuple[Nest, Nest]:
    """Separate clearing from summing, and bring the reduction loops (but for that of a `group`) outside of the
    tile's."""
    reduce = [copies[o] for o in stage.reduce]
    if not reduce:
        raise ScheduleError("it sums over no axis")
    parts = separate_sums(s, stage, copies)
    nests = []
    groups = [] if group is None else [copies[group]]
    for loops, summing, inmost in ((parts.before, [], []), (parts.after, reduce, groups)):
        inner = [loops[axis_of[o]] for o in (axes.row, axes.block) if o is not None]
        vector = loops[axis_of[axes.vector]]
        around = [o for o in loops if o not in (*inner, vector)]
        if axes.block is None and tile.columns > 1 and extent_of(vector) != tile.lanes:
            within = s.split(vector, tile.lanes)
            inner.append(within.outer)
            vector = within.inner
        nest = Nest([*around, *summing], [*inner, vector], inmost)
        s.reorder(*nest.outer, *nest.tile, *nest.group)
        nests.append(nest)
    return nests[0], nests[1]


def _in_registers(s: Schedule, sums: Value, nests: tuple[Nest, Nest], tile: Tile) -> Nest:
    """Keep the sums of a tile in registers while summing, and in memory for a costly epilogue: such an epilogue is a
    loop, as writing it out for every vector of the tile would make megabytes of code."""
    first, last = (nest.outer[0] if nest.outer else nest.tile[0] for nest in nests)
    return _tile_nest(s, s.cache(sums, first, last).drain, tile)


def _tile_nest(s: Schedule, loops: list[Op], tile: Tile) -> Nest:
    """Loops over the elements of a tile, the last of which becomes one vector."""
    vector = loops[-1]
    others = loops[:-1]
    if extent_of(vector).is_const and extent_of(vector).value > tile.lanes:
        parts = s.split(vector, tile.lanes)
        others, vector = [*others, parts.outer], parts.inner
    return Nest([], [*others, vector])


def _mark_tile(s: Schedule, nest: Nest, *, unrolled: bool = True) -> None:
    """The innermost loop becomes a vector, the tile's others are written out; loops of one round are gone."""
    *others, vector = nest.tile
    for loop in nest.group:
        s.dot(loop)
    if vector.parent is not None:
        s.vectorize(vector)
    for loop in others:
        if loop.parent is not None and unrolled:
            s.clamp(loop)
            s.unroll(loop)
