"""The default schedule of operators that bring their own loops: vectors where an innermost loop allows them.

The order of the loops is the operator's. An accumulation (the products of a recurrent network) goes into separate
lanes; independent elements become lanes; loops that allow neither stay as they are. Threads share what moves many
elements (rows that are put into a cache): pages that nobody has written to are faulted in meanwhile.
"""

from __future__ import annotations

from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.refusals import not_worth
from tilewright.graph.fusion.strategy import Join
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.stages import Lowered
from tilewright.loops.storage.inplace import moves
from tilewright.schedule.steps.parallelize import parallelize_pieces
from tilewright.schedule.steps.vectorize import innermost_loops, vectorize_inner
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class Opaque(Strategy):
    """An operator with loops of its own."""

    name = "opaque"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind is OpClass.OPAQUE

    def join(self, join: Join) -> NoMatch | None:
        if OpClass.OPAQUE in (join.producer.kind, join.consumer.kind):
            return not_worth("an operator with loops of its own is a kernel alone")
        return None

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        """Vectorise innermost loops where that is right, and let threads share what only moves elements."""
        s.simplify()
        for loop in innermost_loops(s):
            vectorize_inner(s, loop, target)
        s.simplify()
        parallelize_pieces(s, target, moves)
