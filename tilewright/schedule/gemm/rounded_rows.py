"""Products of many rows by weights of integers: rows rounded to 16 bits in groups, so that instructions for groups of
integers add up each group's products.

    round all rows, in groups that share a scale
    for panel of columns parallel {
      codes of the panel, as the instruction takes them
      for row tile {
        sums = 0
        for group { t: reg i32 = 0;  for step { t += dot(row, codes) };  sums += f32(t) * scales }
        y[row, column] = epilogue(sums)
      }
    }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.cost.gemm.register_tile import tile_of_groups
from tilewright.cost.narrow_products import rounding_gains
from tilewright.cost.narrow_weights import (
    BITS_OF_FLOATS,
    LEAST_ROUNDED_ROWS,
    group_of_rounding,
    share_of_rounded,
)
from tilewright.cost.roofline import form_cycles
from tilewright.graph.fusion.strategy import Match
from tilewright.graph.match import matrix_product
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.edit import buffer_type, extent_of, kind_of, loops_in
from tilewright.loops.kernel_info import constants_of, kernel_info
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.packing import Packing
from tilewright.loops.sums.round_terms import Rounded
from tilewright.loops.sums.second_factors import Columns
from tilewright.schedule.estimates import Counted
from tilewright.schedule.gemm.contraction import Contraction, Tiled, is_contraction, tile_reader
from tilewright.schedule.gemm.dequantize import (
    PAIR,
    Dequantized,
    are_floats,
    groups_of_factors,
    mark_weights,
    split_in_groups,
    split_weights,
    taken_together,
)
from tilewright.schedule.gemm.dot_products import dot_for
from tilewright.schedule.gemm.gemm_axes import assign_axes, is_costly
from tilewright.schedule.gemm.gemm_plan import GemmPlan, plan_gemm
from tilewright.schedule.gemm.panels import pack_constants
from tilewright.schedule.gemm.reduction_nest import one_reduction
from tilewright.schedule.gemm.register_tile import IN_REGISTERS, Nest, Summation, TileSums, mark, tile_sums
from tilewright.schedule.steps.access import element_bytes, known, loads_in
from tilewright.schedule.steps.parallelize import parallelize_each
from tilewright.schedule.steps.tiling import tile_loop, vectors_of
from tilewright.schedule.steps.vectorize import vectorize_inner
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.dots import Dot
from tilewright.target.target import VECTOR_BYTES, Target

MOST_UNROLLED = 4
"""Vectors of a group of elements that are rounded without a loop over them: such loops end as soon as they begin."""


class RoundedRows(Strategy):
    """A contraction whose columns are computed from constant integers, and whose rows are many."""

    name = "rounded_rows"

    def match(self, region: FusedRegion) -> Match | NoMatch:
        if not is_contraction(region) or not isinstance(region.target, Target):
            return NoMatch("it is no contraction")
        if not multiplies_computed(region.op) or not _gains(region.target):
            return NoMatch("its columns are not computed from integers that the machine multiplies in groups")
        return Match()

    def estimate(self, counted: Counted, target: Any) -> float | None:
        dot = _dot(target) if isinstance(target, Target) else None
        if dot is None or not counted.nests:
            return None
        floats = form_cycles("tiles", counted.nests, counted.arguments, target)
        return floats * share_of_rounded(dot, target)

    def for_other_dims(self, later: Sequence[Strategy]) -> Sequence[Strategy]:
        return [s for s in later if isinstance(s, Contraction)]

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_rounded(s, lowered, target)


def multiplies_computed(region: Op) -> bool:
    """Whether a product of a region reads a matrix that the region computes."""
    (body,) = region.blocks
    products = [(op, matrix_product(op)) for op in body.ops]
    return any(p is not None and op.operands[p.weights].op is not None for op, p in products)


def _gains(target: Target) -> bool:
    dot = _dot(target)
    return dot is not None and rounding_gains(share_of_rounded(dot, target))


def _dot(target: Target, digits: int = 16) -> Dot | None:
    rows, codes = (dt.i16, dt.i16) if digits > 8 else (dt.i8, dt.u8)
    return dot_for(rows, codes, dt.i32, target)


def schedule_rounded(s: Schedule, lowered: Lowered, target: Target) -> None:
    """ScheduleError when the kernel has not this form."""
    digits = kernel_info(s.func).rounded_rows
    if not digits:
        raise ScheduleError("its rows are not to be rounded")
    stages, others = split_weights(lowered)
    if len(stages) != 1:
        raise ScheduleError("its columns are not computed by one stage from constants")
    (weights,) = stages
    sums = one_reduction(s, others)
    axes = assign_axes(sums)
    factors = BITS_OF_FLOATS if are_floats(weights) else 0
    digits = factors or digits
    dot = _dot(target, digits)
    reduce = [o for o in sums.stage.reduce if extent_of(o) != 1]
    if axes.row is None or axes.block is not None or axes.line is not None or len(reduce) != 1 or dot is None:
        raise ScheduleError("it is no product of rows and columns")
    if not extent_of(axes.vector).is_const:
        raise ScheduleError("the number of columns is not known")
    shared = groups_of_factors(weights)
    group = group_of_rounding(shared, known(extent_of(reduce[0])), dot.group)
    if group is None:
        raise ScheduleError("no groups of its terms share their factors")
    if not s.at_least(extent_of(axes.row), LEAST_ROUNDED_ROWS, of_few=True):
        raise ScheduleError("its rows are few")
    together = taken_together(s, weights)
    plan = plan_gemm(s, sums, target, None, [weights], False)
    panel = plan.panel or plan.decision.tile.columns
    tile = tile_of_groups(panel, plan.shape, target)
    if tile is None:
        raise ScheduleError("its columns are few")
    plan = replace(plan, decision=replace(plan.decision, tile=tile), panel=panel)
    made = s.round_terms(sums.sums, reduce[0], group, digits, factors=factors)
    _round(s, made, target)
    sums.stage.reduce = split_in_groups(s, [made.groups], [n // group for n in shared if n > group])
    terms = Stage("terms", "reduce", "add", made.sums, made.axes, [made.terms])
    codes = Stage(weights.name, "map", "", made.codes, weights.axes)
    tiled = tile_reader(s, replace(plan, weights=[codes]), target, may_write_lines=False)  # rows share codes
    _sum_groups(s, plan, tiled, terms, codes, made, dot, together)
    parallelize_each(s, [o for o in tiled.parts[0].outer if o.parent is not None][:1], target)


def _sum_groups(
    s: Schedule, plan: GemmPlan, tiled: Tiled, terms: Stage, codes: Stage, made: Rounded, dot: Dot, together: int
) -> None:
    """Sums of groups in registers, which are added to those of the tile in memory."""
    lanes = plan.decision.tile.lanes
    kept = Summation(costly=is_costly(tiled.parts[0].tile[-1]))
    split = s.split(terms.reduce[0], dot.group)
    terms.reduce = [split.outer]
    added: list[TileSums] = []
    groups: list[TileSums] = []
    for part in tiled.parts:
        added.append(tile_sums(s, plan.stage, part.outer[-1], plan.axes.tile, lanes, kept))
        over = added[-1].add.outer[-1]
        groups.append(tile_sums(s, terms, over, plan.axes.tile, lanes, IN_REGISTERS, split.inner))
    panel = tiled.panel[-1] if tiled.panel else tiled.parts[0].outer[0]
    dequantized, step = _codes_of_panel(s, groups, codes, panel, lanes, dot, together)
    if made.columns is not None:
        groups.append(_steps_of_panel(s, made.columns, panel, step, lanes))
    orders = [dequantized.loops, *([*o.add.outer, *o.add.tile] for o in (*groups, *added))]
    pack_constants(s, orders, [dequantized], tiled.parts_of_panel, merged=True)
    s.simplify()
    for sums in (*groups, *added):
        for nest in sums.nests:
            mark(s, nest)
    for part in tiled.parts:
        ask_for_next_rows(s, part)
        mark(s, part, unrolled=not kept.costly)
    for sums in groups[: len(tiled.parts)]:  # a loop of few steps ends before the next group's products begin
        unroll_all(s, sums.add.outer[-1:])
    mark_weights(s, dequantized)
    unroll_all(s, dequantized.loops[:-1])


def _codes_of_panel(
    s: Schedule, sums: Sequence[TileSums], codes: Stage, panel: Op, lanes: int, dot: Dot, together: int
) -> tuple[Dequantized, Op]:
    """Codes of a panel in the order of the instruction: those of a step and a column together; and the loop over
    steps."""
    loads = [load for group in sums for load in loads_in(group.add.loops[0]) if load.operands[0] is codes.buffer]
    packing = Packing(((dot.group,), ()), (0, 2, 1))
    fill = s.pack(codes.buffer, panel, packing, only=loads).fill
    step, column, within = fill
    made = s.compute_at(codes.buffer, step, space="reg", guard="loads")
    loops = [made.copies[o] for o in codes.axes]
    both = s.split(s.collapse(column, within), VECTOR_BYTES // element_bytes(made.buffer))
    s.vectorize(both.inner)
    s.unroll(both.outer)
    if together > dot.group:  # all bytes of a word in one iteration
        s.unroll(s.split(step, together // dot.group).inner)
    if together == 1:
        return Dequantized(vectors_of(s, loops, lanes), None), step
    depth, *others = loops
    outer, taken = tile_loop(s, depth, min(together, dot.group))
    return Dequantized(vectors_of(s, [*outer, taken, *others], lanes), taken, together, together > PAIR), step


def _steps_of_panel(s: Schedule, columns: Columns, panel: Op, step: Op, lanes: int) -> TileSums:
    """The steps of a panel's groups, each before the codes of the group, and from the largest element of it."""
    each = s.split(step, extent_of(step).value // extent_of(columns.step[0]).value).outer
    inverted = s.compute_at(columns.inverses, each, space="reg", guard="loads")
    made = s.compute_at(columns.steps, panel, guard="loads")
    over, column = (made.copies[o] for o in columns.step)
    g, j, k = columns.largest
    stage = Stage("largest", "reduce", "max", columns.sizes, [g, j], [k])
    largest = tile_sums(s, stage, over, (1,), lanes)
    s.fuse(over, each)
    for loops in ([column], [inverted.copies[o] for o in columns.inverse]):
        mark(s, Nest([], vectors_of(s, loops, lanes)), clamped=False)
    return largest


def ask_for_next_rows(s: Schedule, part: Nest) -> None:
    """Request what the next tile of rows reads beside its sums: a piece of each row, on a page of its own."""
    constants = constants_of(s.func)
    for load in loads_in(part.tile[0]):
        if buffer_type(load.operands[0]).space == "global" and load.operands[0] not in constants:
            with s.noting("what the next rows read is not prefetched"):
                s.prefetch_run(load, part.outer[-1])


def unroll_all(s: Schedule, loops: Sequence[Op]) -> None:
    """Unroll those of some loops that are there and serial."""
    for loop in loops:
        if loop.parent is not None and kind_of(loop) == "serial":
            s.unroll(loop)


def _round(s: Schedule, made: Rounded, target: Target) -> Op:
    """One nest that rounds rows, a group after the other; the loop over rows."""
    first, *others = made.rows
    depth = len(made.axes) if not first else len(first) - 1
    for loops in others:
        for a, b in zip(first[:depth], loops[:depth], strict=True):
            s.fuse(a, b)
    over, *rows = first[: depth - 1]
    for row in rows:
        over = s.collapse(over, row)
    for loops in made.rows:
        for terms in loops[depth:]:
            vectorize_inner(s, terms, target)
    unroll_all(s, [o for o in loops_in(over) if o is not over and known(extent_of(o)) in range(2, MOST_UNROLLED + 1)])
    with s.noting("rows are rounded by one thread"):
        s.parallel(over)
    return over


