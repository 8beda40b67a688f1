"""The strategies for an accelerator, in the order in which they are asked."""

from __future__ import annotations

from tilewright.schedule.machine.scalar import ScalarLoops
from tilewright.schedule.strategy import Strategy
from tilewright.target.machine import Accelerator


def strategies_for(machine: Accelerator) -> tuple[Strategy, ...]:
    """Those that its facts allow; the last takes what is left."""
    return (ScalarLoops(),)
