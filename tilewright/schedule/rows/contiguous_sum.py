"""Sums over what is contiguous in memory, and other axes besides, as rows: lanes run along the sum."""

from __future__ import annotations

from tilewright.graph.fusion.strategy import Match
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.edit import loop_var
from tilewright.loops.stages import Lowered
from tilewright.schedule.rows.reduction import Reduction
from tilewright.schedule.rows.row_reduction import schedule_rows
from tilewright.schedule.steps.access import loads_in, stride_in
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class ContiguousSum(Strategy):
    """Another way to schedule reductions that are not of rows."""

    name = "contiguous_sum"
    form = "rows"
    respecialize_remainder = True

    def match(self, region: FusedRegion) -> Match | NoMatch:
        is_reduction = isinstance(region.strategy, Reduction)
        return Match() if is_reduction else NoMatch("it is not one reduction with elementwise work")

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        """ScheduleError where the elements of the result are contiguous instead, or operands are multiplied."""
        for stage in lowered.stages:
            if stage.kind != "reduce":
                continue
            if not stage.reduce:
                raise ScheduleError("it sums over no axis")
            v = loop_var(stage.reduce[-1])
            moving = [op for op in loads_in(stage.reduce[-1]) if stride_in(op, v) != 0]
            if not moving or any(stride_in(op, v) != 1 for op in moving):
                raise ScheduleError("the sum does not run along contiguous memory")
            if len({op.operands[0] for op in moving}) > 1:
                raise ScheduleError("more than one operand moves along the sum")
        schedule_rows(s, lowered, target)
