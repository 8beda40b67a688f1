"""Kernels from outside of the compiler, whose loops say what they compute and are not scheduled."""

from __future__ import annotations

from tilewright.graph.fusion.classify import OpInfo
from tilewright.ir.core import Op
from tilewright.loops.stages import Lowered
from tilewright.ops.external import external_of
from tilewright.schedule.maps.opaque import Opaque
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class External(Opaque):
    """An operator that a plugin has a kernel for."""

    name = "external"

    def claims(self, op: Op, info: OpInfo) -> bool:
        return external_of(op) is not None

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        """The loops stay as they are."""


EXTERNAL = External()
