"""Reductions that are not of rows: over leading axes, or over windows (pooling)."""

from __future__ import annotations

from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.rules import epilogue, into_reduction
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.stages import Lowered
from tilewright.schedule.gemm.contraction import schedule_contraction
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.steps.flatten import flatten_short_lines
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class Reduction(Strategy):
    """One reduction with elementwise work before and after it, by tiles in registers with lanes along the result."""

    name = "reduction"
    form = "tiles"
    respecialize_remainder = True

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.REDUCTION

    def join(self, join: Join) -> Match | NoMatch | None:
        if join.info.is_tiled:
            return None
        if join.consumer.strategy is self and is_elementwise(join.producer):
            return into_reduction(join)
        if join.producer.strategy is self and is_elementwise(join.consumer):
            return epilogue(join)
        return None

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        flatten_short_lines(s, lowered.stages, target)
        schedule_contraction(s, lowered, target)
