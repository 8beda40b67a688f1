"""What is decided of a contraction before its loops are built."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from tilewright.cost.gemm.cost_model import Decision, choose, why_not_cut, why_not_transposed
from tilewright.cost.gemm.depth_lanes import rows_that_pay_copies
from tilewright.cost.gemm.register_tile import (
    GemmShape,
    Tile,
    columns_of_panel,
    rows_of_few,
    tile_of_few,
)
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import extent_of, loop_var
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Stage
from tilewright.loops.storage.axes import split_index
from tilewright.schedule.gemm.dequantize import steps_widened
from tilewright.schedule.gemm.dot_products import group_of_products
from tilewright.schedule.gemm.gemm_axes import GemmAxes, assign_axes, transposed_axes
from tilewright.schedule.gemm.gemm_shape import few_rows_of, gemm_shape, transposed_shape
from tilewright.schedule.gemm.reduction_nest import ReductionNest
from tilewright.schedule.steps.access import known, stride_of
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class GemmPlan:
    """The parts of the loops, the shape that the cost model sees, and the tile and blocks that it has chosen. `weights`
    are stages that dequantise constant operands, so many vectors of whose columns are a `panel`: a multiple of the
    tile's. `group` is the loop over products that one instruction adds up."""

    axes: GemmAxes
    shape: GemmShape
    decision: Decision
    weights: Sequence[Stage] = ()
    group: Op | None = None
    panel: int = 0

    @property
    def stage(self) -> Stage:
        return self.axes.sums.stage


def plan_gemm(
    s: Schedule,
    sums: ReductionNest,
    target: Target,
    decision: Decision | None,
    weights: Sequence[Stage],
    transposed: bool,
) -> GemmPlan:
    """Decide as the cost model chooses, or as `decision` says. ScheduleError when it is no contraction, and when
    vectors along the rows are wanted (`transposed`) and not possible. Reasons against what is not done are noted."""
    axes = assign_axes(sums)
    see_steps_as_axes(s, axes)
    constants = [*constants_of(s.func), *(w.buffer for w in weights)]
    group = group_of_products(s, axes, constants, target)
    shape = gemm_shape(axes, constants, 1 if group is None else extent_of(group).value)
    if shape.along_depth and shape.rows is None and axes.row is not None:
        many = rows_that_pay_copies(shape, target)
        if many:
            s.at_least(extent_of(axes.row), many)
    if group is not None and not shape.packed:
        shape = replace(shape, part=True, uncut="groups of the call are copied by panels of the whole depth")
    if weights:
        uncut = "weights are dequantised by panels of the whole depth"
        shape = replace(shape, widened=steps_widened(s, weights), uncut=uncut)
    if group is None and (transposed or decision is None):
        axes, shape = _better_axes(s, axes, shape, constants, target, transposed)
    decision = decision or _chosen(s, shape, target)
    if weights and group is None and axes.row is not None and not extent_of(axes.row).is_const:
        return _plan_of_any_rows(s, axes, shape, decision, weights, target)
    return GemmPlan(axes, shape, replace(decision, tile=_for_its_rows(decision.tile, axes)), weights, group)


def _plan_of_any_rows(
    s: Schedule, axes: GemmAxes, shape: GemmShape, decision: Decision, weights: Sequence[Stage], target: Target
) -> GemmPlan:
    """A plan for an unknown number of rows whose weights are dequantised: few of them are one tile, which reads them in
    registers, in all of a panel's columns or a part of these."""
    assert axes.row is not None
    tile, panel = decision.tile, decision.tile.columns
    if axes.block is None and extent_of(axes.vector).is_const:
        panel = columns_of_panel(tile, shape, target)
    few, most = few_rows_of(axes), rows_of_few(shape, target)
    if few is None:
        s.at_least(extent_of(axes.row), most + 1, of_few=True)
    elif few <= most:
        tile = tile_of_few(few, panel, shape, target)
    return GemmPlan(axes, shape, replace(decision, tile=_for_its_rows(tile, axes)), weights, None, panel)


def see_steps_as_axes(s: Schedule, axes: GemmAxes) -> None:
    """See what columns step over as an axis of its own where the loops around the tiles choose the place on it.

        x[8*column + i, depth]    ->    x[column, i, depth]        for x: f32[2048, 64] seen as f32[256, 8, 64]

    So are rows of which a batch has every eighth: a panel of the axis as it is would hold the others, too.
    """
    loop_of = axes.sums.stage.axes
    around = {loop_var(loop_of[axes.axis(o)]) for o in axes.outer if o in axes.sums.axis_of}
    v = loop_var(loop_of[axes.axis(axes.vector)])
    for load in axes.columns:
        if load.operands[0] in constants_of(s.func):  # laid out when compiling
            continue
        for axis, index in enumerate(load.attrs["idx"]):
            stride = stride_of(index, v)
            step = 0 if stride is None else known(stride) or 0
            split = split_index(load, axis, step) if step > 1 else None
            if split is not None and split[1].vars and split[1].vars <= around:
                with suppress(ScheduleError):  # another load of it may be of another form
                    s.split_axis(load.operands[0], axis, step)
                break


def _better_axes(
    s: Schedule,
    axes: GemmAxes,
    shape: GemmShape,
    constants: Sequence[Value],
    target: Target,
    transposed: bool,
) -> tuple[GemmAxes, GemmShape]:
    """The axes with vectors along the columns, or along constant rows: what is faster, or the latter if they must be
    `transposed`."""
    found = transposed_axes(axes, constants)
    if found is None:
        if transposed:
            raise ScheduleError("its constant rows are not whole vectors")
        return axes, shape
    found_shape = transposed_shape(found, constants)
    reason = "" if transposed else why_not_transposed(shape, found_shape, target)
    if reason:
        s.missed.append(f"vectors along the constants, the result transposed: {reason}")
        return axes, shape
    return found, found_shape


def _chosen(s: Schedule, shape: GemmShape, target: Target) -> Decision:
    """The cost model's decision."""
    choice = choose(shape, target)
    s.missed += choice.missed
    if choice.decision.blocks is None:
        s.missed.append(f"not cut into blocks: {why_not_cut(shape, choice)}")
    return choice.decision


def _for_its_rows(tile: Tile, axes: GemmAxes) -> Tile:
    """The tile with fewer rows where there may be so few that one tile is all."""
    few = few_rows_of(axes)
    return tile if few is None else replace(tile, rows=min(tile.rows, few))
