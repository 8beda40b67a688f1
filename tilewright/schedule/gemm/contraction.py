"""The default schedule of contractions (matrix products, convolutions) and of other reductions with a vector axis.

    for outer parallel {                      batch, column tiles, image rows, row tiles
      acc: reg[rows, columns, lanes] = 0
      for k { acc[..] += A[row, k] * B[k, column] }      rows and columns unrolled, lanes one vector
      y[row, column] = epilogue(acc[..])
    }

Tiles come from the cost model (`cost.gemm.cost_model`); constant operands are packed in the order in which this nest
reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.cost.data_movement import leaves_lanes_idle
from tilewright.cost.gemm.cost_model import Decision
from tilewright.cost.gemm.panels import LINES_OF_NARROW_WEIGHTS, loops_around_groups
from tilewright.cost.gemm.register_tile import (
    Tile,
    holds_sums_of_groups,
    least_rows_of_few,
    least_rows_of_one_tile,
    rows_of_remainder,
)
from tilewright.cost.narrow_weights import waits_for_weights
from tilewright.cost.parallel import columns_suffice
from tilewright.cost.recompute import weights_are_cheap
from tilewright.cost.roofline import Form
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.refusals import TILE_SIDE, computed_again, needed_elsewhere, not_worth
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.rules import epilogue, read_by_epilogue
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.graph.match import is_known, is_picked_of_known, picks_matrices
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import sym, weighted_sum
from tilewright.ir.types import row_major
from tilewright.loops.edit import buffer_type, enclosing_loops, extent_of
from tilewright.loops.kernel_info import constants_of, kernel_info
from tilewright.loops.order.compute_at import Fused
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.sums.factor_out import Factored
from tilewright.ops.define import OPERATORS
from tilewright.ops.traits.derive import is_view
from tilewright.schedule.gemm.cache_blocking import tile_in_blocks
from tilewright.schedule.gemm.dequantize import (
    Dequantized,
    dequantize,
    groups_of_factors,
    has_factors,
    mark_groups,
    mark_weights,
    split_weights,
    step_of_groups,
    step_together,
    sum_by_groups,
    taken_together,
    widen_by_columns,
)
from tilewright.schedule.gemm.gemm_axes import GemmAxes, same_rows
from tilewright.schedule.gemm.gemm_plan import GemmPlan, plan_gemm
from tilewright.schedule.gemm.gemm_shape import writes_lines
from tilewright.schedule.gemm.panels import (
    cut_in_streams,
    order_of_streams,
    pack_columns,
    pack_constants,
    pack_groups,
    prefetch_panels,
)
from tilewright.schedule.gemm.reduction_nest import ReductionNest, copied, one_reduction, reduction_of
from tilewright.schedule.gemm.register_tile import (
    Nest,
    Summation,
    TileSums,
    mark,
    skip_padding,
    sum_in_blocks,
    summation_of,
    tile_sums,
)
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.steps.access import (
    bytes_of,
    conditional_nest,
    element_bytes,
    known,
    loads_in,
    stride_of,
)
from tilewright.schedule.steps.blocked_summation import whole_part
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.tiling import column_tiles, loop_around, tile_loop, vectors_of
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class Contraction(Strategy):
    """One contraction with the index maps through which it reads its operands, and elementwise work on its result."""

    name = "contraction"
    form: Form | None = "tiles"
    respecialize_remainder = True

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.CONTRACTION

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.consumer.strategy is self:
            if is_elementwise(join.producer) and (answer := read_by_epilogue(join)) is not None:
                return answer
            return read_through(join)
        if join.producer.strategy is self and is_elementwise(join.consumer):
            if join.info.is_tiled or join.info.unblocks_channels:  # belongs to other strategies
                return None
            if _turns_groups(join):
                return not_worth("groups of products are added up in lanes along the columns")
            if _leaves_short_lines(join):
                return not_worth("the axis that comes last fills a small part of a vector")
            return epilogue(join)
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
    moves = all(facts.info(o).is_index_map or _picks_known(o) for o in producer.ops)
    if not is_elementwise(producer) or not (moves or _is_weight(join)):
        again = "its elements would be computed again for every tile of the contraction"
        return computed_again(join, again, side=TILE_SIDE)
    if not join.info.reads_through:
        change = "operators that take the tensor as it lies"
        return NoMatch(f"{op.name} reads its operands in their own layout", change)
    is_narrow = join.value.tensor.dtype.bits < op.result.tensor.dtype.bits
    if is_narrow and join.value is op.operands[0] and not _keeps_rows(producer, op):
        return not_worth("narrow numbers that are multiplied in groups lie together")
    if not join.leaves_nothing_else():
        return needed_elsewhere(join, "the reordered tensor is needed elsewhere too")
    return Match(join.consumer.domain)


def _turns_groups(join: Join) -> bool:
    """Whether sums of narrow floats, whose lanes are columns of constants, would be stored along the rows of data."""
    narrow = any(
        join.facts.info(o).kind is OpClass.CONTRACTION
        and o.result.tensor.dtype.is_float
        and all(v.tensor.dtype.bits < o.result.tensor.dtype.bits for v in o.operands)
        for o in join.producer.ops
    )
    return narrow and any(join.facts.info(o).changes_last_axis for o in join.consumer.ops)


def _leaves_short_lines(join: Join) -> bool:
    """Whether sums with long lines would be stored in an order whose lines fill a small part of a vector. Products of
    two tensors of the call may belong to attention, which stores its rows in any order."""

    def is_short(value: Value) -> bool:
        most = value.tensor.shape[-1].bounds[1]
        return most is not None and most > 1 and leaves_lanes_idle(most, value.tensor.dtype.bytes)

    if any(join.facts.info(o).is_matrix_product and not any(map(is_known, o.operands)) for o in join.producer.ops):
        return False
    turned = [o.result for o in join.consumer.ops if join.facts.info(o).changes_last_axis]
    return any(map(is_short, turned)) and not is_short(join.value)


def _keeps_rows(producer: Region, op: Op) -> bool:
    """Whether what moves rows of floats leaves neighbours in a row neighbours."""
    if not op.result.tensor.dtype.is_float:
        return False
    return all(map(_leaves_neighbours, producer.ops))


def _leaves_neighbours(op: Op) -> bool:
    """Whether lines of its result are parts of lines of its operand, neighbours in a line and in memory."""
    if not is_view(op) or not op.result.tensor.shape:
        return False
    source, line = op.operands[0].tensor, op.result.tensor.shape[-1]
    compute = OPERATORS[op.name].compute([source], op.attrs)
    idx = next(o.attrs["idx"] for o in compute.body.ops if o.name == "load")
    steps = (stride_of(e, compute.axes[-1][0]) for e in (weighted_sum(sym(0), idx, row_major(source.shape)), *idx[-1:]))
    in_memory, in_line = (step == 1 for step in steps)
    return in_memory and (in_line or source.shape[-1] % line == 0)


def _picks_known(op: Op) -> bool:
    """Whether it picks matrices of a constant stack."""
    return picks_matrices(op) and is_known(op.operands[0])


def _is_weight(join: Join) -> bool:
    """Whether a map gives the right operand of a contraction from constants alone, or from matrices of them that data
    pick: each element then serves all rows, and may be computed for a panel of columns at a time."""
    known = all(map(is_picked_of_known, (v for o in join.producer.ops for v in o.results)))
    return known and join.value is join.op.operands[1] and weights_are_cheap(join.facts.cost(join.producer))


def schedule_contraction(
    s: Schedule, lowered: Lowered, target: Target, decision: Decision | None = None, *, transposed: bool = False
) -> None:
    """Tile the reduction stage and compute the stages after it on each tile in registers: as the cost model chooses, or
    as `decision` says (for vectors along the rows, if `transposed`).

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    weights, others = split_weights(lowered)
    tile_contraction(s, one_reduction(s, others), target, decision, weights, transposed=transposed)
    parallelize_outer(s, target)


def tile_contraction(
    s: Schedule,
    sums: ReductionNest,
    target: Target,
    decision: Decision | None = None,
    weights: Sequence[Stage] = (),
    *,
    transposed: bool = False,
) -> None:
    """Compute sums by tiles in registers within the nest that reads them; stages of `weights` compute operands from
    constants. ScheduleError when they have not this form."""
    plan = plan_gemm(s, sums, target, decision, weights, transposed)
    if plan.decision.blocks is None:
        tile_whole_depth(s, plan, target)
    else:
        tile_in_blocks(s, plan, target)


def tile_fused(
    s: Schedule, stage: Stage, fused: Fused, target: Target, decision: Decision | None = None
) -> None:
    """Tile what `compute_at` made of the reduction `stage`."""
    made = s.cache_write(fused.buffer)
    tile_contraction(s, reduction_of(copied(stage, fused.copies, made.buffer), made.drain), target, decision)


def tile_whole_depth(s: Schedule, plan: GemmPlan, target: Target) -> None:
    """Keep the sums of a tile in registers for the whole depth."""
    tiled = tile_reader(s, plan, target)
    groups = _groups_of_terms(s, plan) if tiled.is_one else []
    kept = _kept(plan, tiled, groups, target)
    lanes = plan.decision.tile.lanes
    made = [tile_sums(s, plan.stage, o.outer[-1], plan.axes.tile, lanes, kept, plan.group) for o in tiled.parts]
    step, together = made[0].add.outer[-1], [taken_together(s, w) for w in plan.weights]
    within, taken = None, None
    if groups:
        made[0] = step_of_groups(s, made[0], groups)
        step = within = made[0].add.outer[-1]
    if tiled.is_one and (count := max(together, default=1)) > 1:
        made[0], taken = step_together(s, made[0], count)
        within = None if within is None else made[0].add.outer[-2]
    operands = _lay_out(s, plan, tiled, made, step, together, within, target)
    s.simplify()
    if taken is not None and tiled.is_one:
        for k, weights in enumerate(operands.weights):
            made[0], operands.weights[k] = widen_by_columns(s, made[0], weights, taken)
    for reader, sums in zip(tiled.parts, made, strict=True):
        for nest in sums.nests:
            mark(s, nest)
        mark(s, reader, unrolled=not kept.costly)
    for dequantized in operands.weights:
        mark_weights(s, dequantized)
    if taken is not None and taken.parent is not None:
        s.unroll(taken)
    if operands.groups is not None:
        mark_groups(s, operands.groups, lanes)
    elif kept.deep:
        for sums in made:
            sum_in_blocks(s, sums)
        s.simplify()
    for sums in made:
        skip_padding(s, sums.add)
    read_once = tiled.is_one and bool(plan.weights)
    if not (read_once and step.parent is not None and _waits_for_weights(s, step, plan.decision.tile.rows)):
        prefetch_panels(s, step, tiled.parts[0].outer, target, once=LINES_OF_NARROW_WEIGHTS if read_once else 0)


def _waits_for_weights(s: Schedule, step: Op, rows: int) -> bool:
    """Whether the machine brings all constants that a step reads as fast as it can by itself."""
    constants = constants_of(s.func)
    read = [load.operands[0] for load in loads_in(step) if load.operands[0] in constants]
    return all(waits_for_weights(rows, element_bytes(operand)) for operand in read)


def _groups_of_terms(s: Schedule, plan: GemmPlan) -> list[int]:
    """Lengths of groups of terms, the last of which have factors in common that may multiply their sum; none where
    there are no such."""
    if kernel_info(s.func).rounds_as_written or len(plan.weights) != 1 or len(plan.stage.reduce) != 1:
        return []
    (weights,) = plan.weights
    if plan.group is not None or not has_factors(weights):
        return []
    depth = known(extent_of(plan.stage.reduce[-1]))
    return groups_of_factors(weights) or ([] if depth is None else [whole_part(depth)])


def _kept(plan: GemmPlan, tiled: Tiled, groups: Sequence[int], target: Target) -> Summation:
    """How to keep the sums. Those of groups are added to them from registers, which may leave none for them."""
    kept = summation_of(plan.stage, tiled.parts[0].tile[-1])
    if not groups:
        return kept
    fits = holds_sums_of_groups(plan.decision.tile, plan.shape.element, target)
    return Summation(kept.costly, deep=kept.costly or not fits)


# The nest that reads the sums


@dataclass(frozen=True, eq=False)
class Tiled:
    """The nest that reads the sums, in tiles: the loops that a panel of columns is read in, those over tiles of rows
    within, the nests on tiles of each size, whether one of these is all rows, and the loop over parts of a panel that
    lies together as a whole, if there is such."""

    panel: list[Op]
    rows: list[Op]
    parts: list[Nest]
    is_one: bool
    parts_of_panel: Sequence[Op] = ()


def tile_reader(s: Schedule, plan: GemmPlan, target: Target, *, may_write_lines: bool = True) -> Tiled:
    """Split the axes into tiles, and order the loops around these."""
    axes = plan.axes
    tile = plan.decision.tile
    remainder = _rows_of_remainder(s, axes, tile, target)
    by_lines = may_write_lines and not remainder and writes_lines(s, axes, target)
    is_one = _is_one_tile(axes, tile)
    rows, row = _row_tiles(s, plan, remainder, target)
    if not remainder and _may_leave_columns(axes, tile) and not _begin_earlier(s, plan, is_one):
        return _tiles_of_any_columns(s, axes, rows, row, plan.decision, target)
    alone = not remainder and not any(o.attrs.get("overlap") for o in rows)  # rows, too, would overlap
    tail = "overlap" if alone and not plan.shape.packed and _fills_tile(axes, tile) else "guard"
    panels: list[Op] = []
    vector, in_parts = axes.vector, plan.panel > tile.columns
    if in_parts:
        panels, vector = tile_loop(s, axes.vector, plan.panel * tile.lanes, tail)
    columns, inner = column_tiles(s, vector, axes.block, tile.columns, tile.lanes, tail)
    parts, columns = (columns if in_parts else []), [*panels, *columns]
    inner = [*row, *inner]
    panel = _panel_order(axes, columns, plan.decision.columns_outside, target)
    around = [*panel, *rows]
    if by_lines and (lines := [o for o in panel if o not in columns]):
        panel, around = lines, [*lines, *rows, *columns]
    around = loop_around(s, around, inner)
    s.reorder(*around, *inner)
    return Tiled(panel, rows, _sizes_of_tiles(s, Nest(around, inner), tile, remainder), is_one, parts)


def _fills_tile(axes: GemmAxes, tile: Tile) -> bool:
    """Whether the columns are a register tile at least, so that the last one may begin earlier: without conditions on
    its lanes, of which processors hold a few."""
    least = extent_of(axes.vector).bounds[0]
    return least is not None and least >= tile.columns * tile.lanes


def _may_leave_columns(axes: GemmAxes, tile: Tile) -> bool:
    """Whether columns of unknown number may leave less than a register tile: computed as a whole one, most of it would
    be in vain."""
    count = extent_of(axes.vector)
    may_leave = not count.is_const and count % (tile.columns * tile.lanes) != 0
    return axes.block is None and tile.columns > 1 and may_leave


def _begin_earlier(s: Schedule, plan: GemmPlan, is_one: bool) -> bool:
    """Whether the last columns of an unknown number, of a single row and as they lie in the call, are a tile that
    begins earlier: of each line of memory one vector alone would be read again and again, from far."""
    tile = plan.decision.tile
    if not is_one or tile.rows > 1 or plan.shape.packed or plan.group is not None:
        return False
    return s.at_least(extent_of(plan.axes.vector), tile.columns * tile.lanes, of_few=True)


def _tiles_of_any_columns(
    s: Schedule, axes: GemmAxes, rows: list[Op], row: list[Op], decision: Decision, target: Target
) -> Tiled:
    """Whole tiles, and the columns that these leave in tiles of one vector. Both are within the same loops, which
    threads share."""
    tile = decision.tile
    s.reorder(*axes.outer, *rows, axes.vector, *row)
    parts = s.split(axes.vector, tile.columns * tile.lanes, tail="branch")
    panel = _panel_order(axes, [parts.outer], decision.columns_outside, target)
    around = [*panel, *rows]
    s.reorder(*around)
    assert parts.tail is not None
    whole = [*conditional_nest(parts.inner)[1 : len(row) + 1], parts.inner]
    last, *left = conditional_nest(parts.tail)[: len(row) + 1]
    vectors, last = tile_loop(s, last, tile.lanes)
    nests = []
    for within, loops in (([], vectors_of(s, whole, tile.lanes)), (vectors, [*left, last])):
        within = loop_around(s, within, loops)
        s.reorder(*within, *loops)
        nests.append(Nest([*around, *within], loops))
    return Tiled(panel, rows, nests, _is_one_tile(axes, tile))


def _panel_order(axes: GemmAxes, columns: list[Op], columns_outside: bool, target: Target) -> list[Op]:
    """Loops around the row tiles. What only moves the rows' operand goes inside of the column tiles when these are to
    be read once; else outside, so that rows are read once."""
    batch = [o for o in axes.outer if axes.sums.moving(o) & axes.columns]
    space = [o for o in axes.outer if o not in batch]
    count = _loops_around_groups(axes, batch, space, target)
    first, space = space[:count], space[count:]
    return [*first, *batch, *columns, *space] if columns_outside else [*first, *batch, *space, *columns]


def _loops_around_groups(axes: GemmAxes, batch: Sequence[Op], space: Sequence[Op], target: Target) -> int:
    """How many loops that move the rows alone stand around that over blocks of groups of columns, if there is such."""
    repeats = same_rows(axes, batch[0]) if len(batch) == 1 else 1
    moved = axes.sums.moving(batch[0]) - axes.columns if batch else set()
    operands = [{o.operands[0] for o in loads} for loads in (moved, axes.columns)]
    sizes = [d for b in set[Value]().union(*operands) for d in buffer_type(b).shape]
    if repeats == 1 or not all(d.is_const for d in (*sizes, *map(extent_of, (*batch, *space)))):
        return 0
    rows, cols = (sum(map(bytes_of, found)) for found in operands)
    blocks, *around = (extent_of(o).value for o in (*batch, *space))
    return loops_around_groups(rows, cols, blocks // repeats, repeats, around, target)


def _rows_of_remainder(s: Schedule, axes: GemmAxes, tile: Tile, target: Target) -> int:
    """Rows of the smaller tiles of those that whole tiles leave, where the number of rows is not known; 0 where the
    last tile repeats rows of the one before instead."""
    row, remainder = axes.row, rows_of_remainder(tile)
    if row is None or not remainder or extent_of(row).is_const:
        return 0
    most = extent_of(row).bounds[1]
    if most is not None and most <= tile.rows:
        return 0
    if not _needs_no_rows_to_share(axes, tile, target):
        s.missed.append("no smaller tiles for the last rows: threads need tiles of rows to share")
        return 0
    extent = extent_of(row)
    low = extent.bounds[0] or 0
    least = remainder if low >= remainder or len(extent.vars) > 1 or _reads_columns_again(axes) else tile.rows
    return remainder if s.at_least(extent, least, of_few=True) else 0


def _reads_columns_again(axes: GemmAxes) -> bool:
    """Whether loops around the rows read the same columns, as the lines of an image do."""
    return any(extent_of(o) != 1 and not axes.sums.moving(o) & axes.columns for o in axes.outer)


def _needs_no_rows_to_share(axes: GemmAxes, tile: Tile, target: Target) -> bool:
    """Whether threads share what is around the nest, or find columns enough in it."""
    assert axes.row is not None
    if not set(enclosing_loops(axes.row)) <= set(axes.sums.loops):
        return True
    columns = extent_of(axes.vector if axes.block is None else axes.block)
    width = tile.columns * (tile.lanes if axes.block is None else 1)
    return columns.is_const and columns_suffice(columns.value // width, target)


def _row_tiles(s: Schedule, plan: GemmPlan, remainder: int, target: Target) -> tuple[list[Op], list[Op]]:
    """The loop over tiles of rows and the one within, if there are such; rows that get tiles of two sizes are not split
    yet."""
    row, tile = plan.axes.row, plan.decision.tile
    if row is None:
        return [], []
    if remainder:
        return [row], []
    extent, size = extent_of(row), tile.rows
    whole = False
    if size > 1 and not extent.is_const and _is_one_tile(plan.axes, tile):
        s.at_least(extent, _least_rows(plan, target), of_few=True)
    elif size > 1 and extent != size:
        whole = s.at_least(extent, size, of_few=True)
    around, row = tile_loop(s, row, size, "overlap" if whole else "guard")
    return around, [row]


def _least_rows(plan: GemmPlan, target: Target) -> int:
    """From how many rows on these are one tile."""
    tile = plan.decision.tile
    if plan.panel:
        return least_rows_of_few(tile)
    return least_rows_of_one_tile(tile, plan.shape.element, target)


def _sizes_of_tiles(s: Schedule, nest: Nest, tile: Tile, remainder: int) -> list[Nest]:
    """All rows in tiles of one size; or whole tiles, and those of as many rows as the `remainder` says."""
    if not remainder:
        return [nest]
    parts = s.split(nest.outer[-1], tile.rows, tail="overlap", remainder=remainder)
    whole = Nest(nest.outer, [parts.inner, *nest.tile])
    if parts.tail is None:
        return [whole]
    last, *within = conditional_nest(parts.tail)[: len(nest.tile) + 2]
    return [whole, Nest([*nest.outer[:-1], last], within)]


# Operands


@dataclass(frozen=True, eq=False)
class _Operands:
    """The loops that dequantise weights, and those of sums of groups of their elements."""

    weights: list[Dequantized]
    groups: Factored | None


def _lay_out(
    s: Schedule,
    plan: GemmPlan,
    tiled: Tiled,
    made: list[TileSums],
    step: Op,
    together: Sequence[int],
    within: Op | None,
    target: Target,
) -> _Operands:
    """Lay operands out in the order in which the tiles read them: constants when compiling, others in panels. Weights
    are dequantised in each `step` or for a panel; the loop `within` a group of terms sums these without what they
    share."""
    add, around = made[0].add, tiled.parts[0].outer
    tile = plan.decision.tile
    home = step if tiled.is_one else None
    weights = [
        dequantize(s, w, around, home, tile.lanes, together=count, groups=groups_of_factors(w))
        for w, count in zip(plan.weights, together, strict=True)
    ]
    if any(op.name == "bind" for op in s.func.body.walk()):
        s.choose_before(stay=[o for part in tiled.parts for o in part.outer])
    groups = None if within is None else sum_by_groups(s, made[0], within, tile.lanes)
    read_once = tiled.is_one and all(extent_of(o) == 1 for o in plan.axes.outer)
    read_once = read_once and plan.shape.rows is not None  # kernels for other rows read constants in the same order
    stream = None
    if read_once and plan.shape.packed and plan.group is None and not plan.weights:
        stream = cut_in_streams(s, add.tile, tile, plan.shape.element, target)
    orders = [[*order_of_streams(o.add.outer, o.add.tile, stream), *o.add.group] for o in made]
    orders += [w.loops for w in weights]
    if groups is not None:
        orders.append(groups.add)
    pack_constants(s, orders, weights, tiled.parts_of_panel, merged=bool(weights))
    if plan.group is None:
        depth = [o for o in add.outer if o not in around and extent_of(o) != 1]
        pack_columns(s, [o.add for o in made], depth, tiled.panel, target)
    elif tiled.is_one:
        for sums in made:
            pack_groups(s, [sums.add], sums.add.outer[-1], target)
    elif tiled.panel:
        pack_groups(s, [o.add for o in made], tiled.panel[-1], target)
    return _Operands(weights, groups)


def _is_one_tile(axes: GemmAxes, tile: Tile) -> bool:
    """Whether all rows are one register tile."""
    most = 1 if axes.row is None else extent_of(axes.row).bounds[1]
    return most is not None and most <= tile.rows
