"""Strategies: each is one form of kernel, in one file: what belongs into it, what it costs, how it is scheduled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.cost.roofline import Form, form_cycles
from tilewright.graph.fusion.classify import OpInfo
from tilewright.graph.fusion.strategy import Facts, FusionStrategy, Group, Join, Match
from tilewright.ir.core import Op
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.stages import Lowered
from tilewright.schedule.estimates import Counted
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class FusedRegion:
    """A `fused` op that becomes a kernel, and the strategy that fusion made it for."""

    op: Op
    strategy: FusionStrategy
    target: Any


class Strategy(ABC):
    """One form of kernel. Fusion asks `claims`, `join` and `gather`, scheduling `match` and `schedule`.

    A strategy for ops that others leave alone, or that it takes from them, has `claims`; one that makes larger kernels
    has `join` or `gather`; one that is another way to schedule the kernels of others only has `match`.
    """

    name: str
    """In the text of programs, in remarks, and in the key of the cache: letters, digits and underscores."""
    kind: str = "cpu"
    """The kind of machine that it is for (`Machine.kind`); `schedule` and `match` are given one of it."""
    label: str = ""
    """The name of its kernels; "" lets them be named by their operators."""
    keeps_layout: bool = False
    """Whether sums have their own layout in its kernels, and not that of the views that read them."""
    respecialize_remainder: bool = False
    """Whether the kernel for dims smaller than those that one is specialised for may be specialised, too."""
    is_needed: bool = False
    """Whether the kernels that it gathers are taken apart where it does not schedule them."""
    form: Form | None = None
    """How its kernels compute sums, from which `estimate` has their cycles; None where that is not known."""

    def claims(self, op: Op, info: OpInfo) -> bool:
        """Whether a kernel of this op alone has this form."""
        return False

    def join(self, join: Join) -> Match | NoMatch | None:
        """Whether two regions become one kernel of this form, or why not; None for what is not of this form."""
        return None

    def gather(self, op: Op, facts: Facts) -> Group | NoMatch | None:
        """More than two regions, the last that of `op`, which become one kernel of this form."""
        return None

    def match(self, region: FusedRegion) -> Match | NoMatch:
        """Whether `schedule` may be tried on a region, which others may have made, too."""
        if region.strategy is self:
            return Match()
        return NoMatch(f"fusion made the kernel for {region.strategy.name}")

    def estimate(self, counted: Counted, target: Any) -> float | None:
        """Cycles of a kernel if it has this form, in short time: asked where several strategies match, before any of
        them schedules it. The cheapest is tried first, and a strategy without an estimate keeps its place."""
        if self.form is None or not counted.nests or not isinstance(target, Target):
            return None
        return form_cycles(self.form, counted.nests, counted.arguments, target)

    def for_other_dims(self, later: Sequence[Strategy]) -> Sequence[Strategy]:
        """Strategies of the kernel for dims smaller than those that this one is specialised for, of those that would
        have been tried `later`; () where these are the same as for large dims."""
        return ()

    @abstractmethod
    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        """Decide how the kernel runs, by steps of `s`; `lowered` has its stages. A ScheduleError says why the kernel
        has not this form: the next strategy is then tried, on a fresh copy."""
