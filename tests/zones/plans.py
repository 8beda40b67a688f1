"""What only tests have between guard zones: arenas that share memory, and code that reads elements to know sizes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.ir.core import Func
from tilewright.program.memory.storage import Pairs, Storage, assign_storage
from tilewright.runtime.context import Context
from tilewright.runtime.guarded.calls import _Buffers, _called
from tilewright.runtime.module import Model
from tilewright.runtime.values.inputs import Shape

if TYPE_CHECKING:
    from tests.zones.turned_on import TestZones


def sometimes_shared(func: Func, inplace: Mapping[str, Pairs] = {}, *, apart: bool = False, **named: Any) -> Storage:
    """`assign_storage`; where an arena shares memory among tensors, every second plan stays as it is, so that sharing
    is tested, too."""
    if not apart:
        return assign_storage(func, inplace, **named)
    shared = assign_storage(func, inplace, **named)
    is_shared = shared.arena.total != shared.arena.unshared
    if is_shared and zlib.crc32(repr([*shared.arena.offsets.items()]).encode()) % 2:
        return replace(shared, zones=())
    return assign_storage(func, inplace, apart=True)


def zoned_plan(zones: TestZones) -> Callable[[Model, Context, tuple[Shape, ...]], None]:
    """`Model._plan` with inputs between zones for code that reads their elements to know sizes."""
    plan = Model._plan

    def plan_between_zones(self: Model, context: Context, shapes: tuple[Shape, ...]) -> None:
        if not zones.is_on or not any(linked.artifact.plan_reads_data for linked in context._programs):
            plan(self, context, shapes)
            return
        buffers, where = _Buffers(zones.memory), list(context.in_data)
        for k, buffer in enumerate(buffers.tensors("input", self.inputs, shapes)):
            buffer.copy_from(where[k] or 0)
            context.in_data[k] = buffer.address
        try:
            plan(self, context, shapes)
        finally:
            context.in_data[:] = where
            zones.of.report(zones.memory.findings(), "plan of a model " + _called(self.artifact, shapes))

    return plan_between_zones
