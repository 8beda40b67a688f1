"""What is decided of a contraction before its loops are built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.cost.gemm.cost_model import Decision, choose, why_not_cut, why_not_transposed
from tilewright.cost.gemm.depth_lanes import rows_that_pay_copies
from tilewright.cost.gemm.register_tile import GemmShape, Tile
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import extent_of
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Stage
from tilewright.schedule.gemm.dot_products import group_of_products
from tilewright.schedule.gemm.gemm_axes import GemmAxes, assign_axes, transposed_axes
from tilewright.schedule.gemm.gemm_shape import few_rows_of, gemm_shape, transposed_shape
from tilewright.schedule.gemm.reduction_nest import ReductionNest
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class GemmPlan:
    """The parts of the loops, the shape that the cost model sees, and the tile and blocks that it has chosen. `weights`
    are stages that dequantise constant operands; `group` is the loop over products that one instruction adds up."""

    axes: GemmAxes
    shape: GemmShape
    decision: Decision
    weights: Sequence[Stage] = ()
    group: Op | None = None

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
        shape = replace(shape, uncut="weights are dequantised by panels of the whole depth")
    if group is None and (transposed or decision is None):
        axes, shape = _better_axes(s, axes, shape, constants, target, transposed)
    decision = decision or _chosen(s, shape, target)
    return GemmPlan(axes, shape, replace(decision, tile=_for_its_rows(decision.tile, axes)), weights, group)


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
    """The tile with fewer rows where there may be so few that they would be a tile or two."""
    few = few_rows_of(axes)
    return tile if few is None else replace(tile, rows=min(tile.rows, few))
