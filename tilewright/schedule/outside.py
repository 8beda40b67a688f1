"""Schedules of strategies that plugins bring: what they raise, and kernels that break rules, never fail a model."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.fusion.strategy import Strategies
from tilewright.ir.diag import ScheduleError
from tilewright.ir.verify import verify_func
from tilewright.loops.machine.rules import spec_of
from tilewright.loops.queues.waits import finish_queues
from tilewright.loops.stages import Lowered
from tilewright.schedule.estimates import Counted
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class Outside(Strategy):
    """Schedules as `inner` does. Where that fails, or the kernel is illegal, it declines, and is not asked again."""

    def __init__(self, inner: Strategy, strategies: Strategies[Strategy]) -> None:
        self.name, self.label = inner.name, inner.label
        self.keeps_layout, self.respecialize_remainder = inner.keeps_layout, inner.respecialize_remainder
        self.inner = inner
        self.strategies = strategies

    def estimate(self, counted: Counted, target: Target) -> float | None:
        return self.strategies.ask(self.inner, lambda s: s.estimate(counted, target), None)

    def for_other_dims(self, later: Sequence[Strategy]) -> Sequence[Strategy]:
        return self.strategies.ask(self.inner, lambda s: s.for_other_dims(later), ())

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        def checked(strategy: Strategy) -> bool:
            strategy.schedule(s, lowered, target)
            finish_queues(lowered.func, target)
            verify_func(lowered.func, spec_of(target))
            return True

        if self.name in self.strategies.failed or not self.strategies.ask(self.inner, checked, False):
            raise ScheduleError("the plugin's strategy failed")
