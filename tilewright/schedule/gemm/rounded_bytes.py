"""Products by weights of at most 8 bits: rows rounded in groups to integers of one or two bytes, so that instructions
for groups of bytes add up each group's products; weights are taken apart in registers.

    round all rows, in groups that share a scale
    for panel of columns parallel {
      for row tile {
        sums = 0
        for group {
          t: reg i32[rows, pieces, columns] = 0
          for step { codes: reg u8 = ..;  t += dot(row's bytes, codes) }
          sums += f32(t[.., 0] + 256 * t[.., 1]) * scales
        }
        y[row, column] = epilogue(sums)
      }
    }

Sums of groups are exact, and are added in one order: the bits of a row do not depend on how many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.cost.gemm.panels import lines_of_narrow_weights
from tilewright.cost.gemm.register_tile import MOST_FEW, columns_of_byte_panel, tile_of_bytes
from tilewright.cost.narrow_products import rounding_gains
from tilewright.cost.narrow_weights import group_of_rounding, share_of_bytes
from tilewright.cost.roofline import form_cycles
from tilewright.graph.fusion.strategy import Match
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.edit import enclosing_loops, extent_of, kind_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.packing import Packing
from tilewright.loops.sums.round_terms import Rounded
from tilewright.schedule.estimates import Counted
from tilewright.schedule.gemm.contraction import Tiled, is_contraction, tile_reader
from tilewright.schedule.gemm.dequantize import (
    Dequantized,
    bits_of_fields,
    groups_of_factors,
    split_in_groups,
    split_weights,
)
from tilewright.schedule.gemm.dot_products import dot_for
from tilewright.schedule.gemm.gemm_axes import GemmAxes, assign_axes, is_costly
from tilewright.schedule.gemm.gemm_plan import GemmPlan, plan_gemm
from tilewright.schedule.gemm.gemm_shape import few_rows_of
from tilewright.schedule.gemm.panels import pack_constants, prefetch_next_panel, prefetch_panels
from tilewright.schedule.gemm.reduction_nest import one_reduction
from tilewright.schedule.gemm.register_tile import IN_REGISTERS, Summation, TileSums, mark, tile_sums
from tilewright.schedule.gemm.rounded_rows import (
    MOST_UNROLLED,
    ask_for_next_rows,
    multiplies_computed,
    unroll_all,
)
from tilewright.schedule.steps.access import known
from tilewright.schedule.steps.parallelize import parallelize_each
from tilewright.schedule.steps.tiling import tile_loop, vectors_of
from tilewright.schedule.steps.vectorize import vectorize_inner
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.dots import Dot
from tilewright.target.target import VECTOR_BYTES, Target


class RoundedBytes(Strategy):
    """A contraction whose columns are computed from constant integers of at most 8 bits."""

    name = "rounded_bytes"
    respecialize_remainder = True

    def match(self, region: FusedRegion) -> Match | NoMatch:
        if not is_contraction(region) or not isinstance(region.target, Target):
            return NoMatch("it is no contraction")
        dot = _dot(region.target)
        if dot is None or not rounding_gains(share_of_bytes(dot, region.target)):
            return NoMatch("the machine does not multiply groups of bytes faster than floats")
        if not multiplies_computed(region.op):
            return NoMatch("its columns are not computed from integers")
        return Match()

    def estimate(self, counted: Counted, target: Any) -> float | None:
        dot = _dot(target) if isinstance(target, Target) else None
        if dot is None or not counted.nests:
            return None
        floats = form_cycles("tiles", counted.nests, counted.arguments, target)
        return floats * share_of_bytes(dot, target)

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_bytes(s, lowered, target)


def share_of_region(region: Op, bits: int, target: Target) -> float | None:
    """The time of the products of a region whose rows are rounded to so many bits, in that of products of floats; None
    where they are not rounded to bytes."""
    dot = _dot(target)
    if not bits or dot is None or not multiplies_computed(region):
        return None
    share = share_of_bytes(dot, target, pieces=bits // 8)
    return share if rounding_gains(share_of_bytes(dot, target)) else None


def _dot(target: Target) -> Dot | None:
    return dot_for(dt.i8, dt.u8, dt.i32, target)


def schedule_bytes(s: Schedule, lowered: Lowered, target: Target) -> None:
    """ScheduleError when the kernel has not this form."""
    digits, dot = kernel_info(s.func).rounded_rows, _dot(target)
    if not digits or dot is None:
        raise ScheduleError("its rows are not to be rounded to bytes")
    stages, others = split_weights(lowered)
    if len(stages) != 1:
        raise ScheduleError("its columns are not computed by one stage from constants")
    (weights,) = stages
    sums = one_reduction(s, others)
    axes = assign_axes(sums)
    reduce = [o for o in sums.stage.reduce if extent_of(o) != 1]
    if axes.block is not None or axes.line is not None or len(reduce) != 1:
        raise ScheduleError("it is no product of rows and columns")
    if not extent_of(axes.vector).is_const:
        raise ScheduleError("the number of columns is not known")
    shared = groups_of_factors(weights)
    depth = known(extent_of(reduce[0]))
    fields = _Fields.of(bits_of_fields(s, weights))
    group = group_of_rounding(shared, depth, dot.group * fields.most)
    if group is None:
        raise ScheduleError("no groups of its terms share their factors")
    pieces = digits // 8
    plan = _plan(s, plan_gemm(s, sums, target, None, [weights], False), pieces, target)
    made = s.round_terms(sums.sums, reduce[0], group, digits, pieces)
    _round(s, made, target, shares_rows=_rows_of(axes) is None)
    sums.stage.reduce = split_in_groups(s, [made.groups], [n // group for n in shared if n > group])
    terms = Stage("terms", "reduce", "add", made.sums, made.axes, [made.terms])
    codes = Stage(weights.name, "map", "", made.codes, weights.axes)
    tiled = tile_reader(s, replace(plan, weights=[codes]), target, may_write_lines=False)
    _sum_groups(s, plan, tiled, terms, codes, dot, fields, pieces, target)
    parallelize_each(s, [o for o in tiled.parts[0].outer if o.parent is not None][:1], target)


@dataclass(frozen=True, slots=True)
class _Fields:
    """How many elements share a byte, of planes the `least` and the `most`."""

    least: int = 1
    most: int = 1

    @staticmethod
    def of(bits: Sequence[int]) -> _Fields:
        """Of elements of so many bits."""
        return _Fields(8 // max(bits), 8 // min(bits)) if bits else _Fields()

    @property
    def shared(self) -> bool:
        return self.most > 1

    def split(self, s: Schedule, steps: Op) -> tuple[list[Op], list[Op]]:
        """Split a loop over steps of groups into one over bytes, and those over their fields."""
        if not self.shared:
            return [steps], []
        parts = s.split(steps, self.most)
        if self.least == self.most:
            return [parts.outer], [parts.inner]
        within = s.split(parts.inner, self.least)
        return [parts.outer], [within.outer, within.inner]


def _rows_of(axes: GemmAxes) -> int | None:
    """How many rows there are at most, if they are few."""
    rows = 1 if axes.row is None else known(extent_of(axes.row)) or few_rows_of(axes)
    return rows if rows is not None and rows <= MOST_FEW else None


def _plan(s: Schedule, plan: GemmPlan, pieces: int, target: Target) -> GemmPlan:
    """The plan with a tile whose sums of groups are in registers; panels are those of any number of rows."""
    panel = columns_of_byte_panel(pieces, plan.shape, target)
    tile = tile_of_bytes(_rows_of(plan.axes), panel, pieces, plan.shape, target)
    if tile is None:
        raise ScheduleError("registers do not hold the sums of groups")
    return replace(plan, decision=replace(plan.decision, tile=tile), panel=panel)


def _round(s: Schedule, made: Rounded, target: Target, *, shares_rows: bool) -> None:
    """One nest that rounds rows, a group after the other; threads share many rows."""
    first, *others = made.rows
    depth = len(first) - 1
    for loops in others:
        for a, b in zip(first[:depth], loops[:depth], strict=True):
            s.fuse(a, b)
    for loops in made.rows:
        for terms in loops[depth:]:
            vectorize_inner(s, terms, target)
    for loop in loops_in(first[depth - 1]):
        if known(extent_of(loop)) in range(2, MOST_UNROLLED + 1) and kind_of(loop) == "serial":
            s.unroll(loop)
    if not shares_rows or depth < 2:
        return
    over, *rows = first[: depth - 1]
    for row in rows:
        over = s.collapse(over, row)
    with s.noting("rows are rounded by one thread"):
        s.parallel(over)


def _sum_groups(
    s: Schedule,
    plan: GemmPlan,
    tiled: Tiled,
    terms: Stage,
    codes: Stage,
    dot: Dot,
    fields: _Fields,
    pieces: int,
    target: Target,
) -> None:
    """Sums of groups in registers, which are added to those of the tile."""
    lanes = plan.decision.tile.lanes
    kept = Summation(costly=is_costly(tiled.parts[0].tile[-1]))
    inner = s.split(terms.reduce[0], dot.group)
    steps, within = fields.split(s, inner.outer)
    terms.reduce = [*steps, *within]
    tile = plan.axes.tile
    if pieces > 1:  # which are the first axis
        *row, vector = (axis + 1 for axis in tile)
        tile = (*row, 0, vector)
    added: list[TileSums] = []
    groups: list[TileSums] = []
    weights: list[Dequantized] = []
    for part in tiled.parts:
        added.append(tile_sums(s, plan.stage, part.outer[-1], plan.axes.tile, lanes, kept))
        over = added[-1].add.outer[-1]
        groups.append(tile_sums(s, terms, over, tile, lanes, IN_REGISTERS, inner.inner))
    if tiled.is_one or not fields.shared:
        for sums in groups:
            *_, step = sums.add.outer
            weights.append(_codes_in_registers(s, codes, step, lanes, within and sums.add.outer[-len(within) :]))
    else:  # each tile of rows would take bytes apart again
        weights.append(_codes_of_panel(s, codes, tiled, lanes, dot, fields))
    orders = [*([*o.add.outer, *o.add.tile] for o in added), *(w.loops for w in weights)]
    pack_constants(s, orders, weights, tiled.parts_of_panel, merged=True)
    for w in weights:
        _mark_codes(s, w)
    s.simplify()
    for sums in (*groups, *added):
        for nest in sums.nests:
            mark(s, nest)
    for part in tiled.parts:
        if not tiled.is_one:
            ask_for_next_rows(s, part)
        mark(s, part, unrolled=not kept.costly)
    for whole, sums in zip(added, groups, strict=True):
        over = whole.add.outer[-1]
        for taken in sums.add.outer[len(sums.add.outer) - len(within) :]:
            if taken.parent is not None:
                s.unroll(taken)
        if tiled.is_one and tiled.parts_of_panel:
            panels = [o for o in tiled.panel if o not in tiled.parts_of_panel]
            prefetch_next_panel(s, over, panels)
        elif fields.shared or not tiled.is_one:  # one row or two multiply whole bytes as they come
            step = sums.add.outer[-len(terms.reduce)]
            read = over if step.parent is None else step
            lines = lines_of_narrow_weights(pieces, target) if tiled.is_one else 0
            prefetch_panels(s, read, tiled.parts[0].outer, target, once=lines)
        if not tiled.is_one:  # a loop of few steps ends before the next group's products begin
            unroll_all(s, sums.add.outer[-len(terms.reduce) :])


def _codes_in_registers(
    s: Schedule, codes: Stage, step: Op, lanes: int, within: Sequence[Op]
) -> Dequantized:
    """Codes of one step of the sums, those of a column that an instruction adds up beside each other: the loops over
    vectors of columns, columns of one, elements, and the fields of bytes that these are, which are among those around
    the sums; fields that share no byte in another plane lie around all columns."""
    made = s.compute_at(codes.buffer, step, space="reg", guard="loads")
    depth, column = (made.copies[o] for o in codes.axes)
    s.swap_axes(made.buffer, 0, 1)
    vectors = vectors_of(s, [column], lanes)
    s.reorder(*vectors, depth)
    around, taken = list(within[:-1]), list(within[-1:])
    return Dequantized([*around, *vectors, depth, *taken], taken[0] if taken else None, 1)


def _codes_of_panel(
    s: Schedule, codes: Stage, tiled: Tiled, lanes: int, dot: Dot, fields: _Fields
) -> Dequantized:
    """Codes of what all rows read, in the order of the instruction: as `_codes_in_registers` of each step, copied."""
    panel = tiled.panel[-1] if tiled.panel else tiled.parts[0].outer[0]
    step, column, within = s.pack(codes.buffer, panel, Packing(((dot.group,), ()), (0, 2, 1))).fill
    _, taken = fields.split(s, step)
    made = _codes_in_registers(s, codes, taken[-1], lanes, taken)
    around, both = tile_loop(s, s.collapse(column, within), VECTOR_BYTES)
    s.vectorize(both)
    for loop in (*around, *taken):
        s.unroll(loop)
    return made


def _mark_codes(s: Schedule, weights: Dequantized) -> None:
    around = weights.together
    *vectors, column, depth = (o for o in weights.loops if around is None or around in enclosing_loops(o))
    both = s.collapse(column, depth)
    outer, both = tile_loop(s, both, VECTOR_BYTES)
    s.vectorize(both)
    for loop in (*outer, *vectors):
        if loop.parent is not None:
            s.unroll(loop)
