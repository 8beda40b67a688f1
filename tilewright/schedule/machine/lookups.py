"""Rows at positions that data say, as of a table of embeddings: a thread reads the position and starts a copy.

    for block { for row { at = x[row]; copy of table[at] into the memory of a vector unit }; the block goes out }
"""

from __future__ import annotations

from typing import Any

from tilewright.cost.machine.ways import room, way
from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import block_of, body_of, buffer_type, extent_of, is_loop
from tilewright.loops.machine.copies import Copy, copy_in
from tilewright.loops.stages import Lowered
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import GLOBAL, Accelerator, Route


class MachineLookups(Strategy):
    """One kernel that moves rows of a table. Single elements are left to others."""

    name = "row_lookup"
    kind = Accelerator.kind

    def match(self, region: FusedRegion) -> Match:
        return Match()

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        if len(lowered.stages) != 1 or lowered.stages[0].reduce or not lowered.stages[0].axes:
            raise ScheduleError("it is not one nest of loops")
        if not all(extent_of(o).is_const for o in lowered.stages[0].axes):
            raise ScheduleError("its sizes are not known")
        s.choose_before()
        rows, row = _rows(s)
        memory, into, out = _memory(target)
        copy = copy_in([row])
        assert isinstance(copy, Copy)
        size = copy.bytes.value
        count, most = extent_of(rows).value, (room(target, memory) - 1024) // size
        length = max((n for n in range(1, min(most, count) + 1) if count % n == 0), default=0)
        if length == 0:
            raise ScheduleError(f"a row of {size} bytes does not fit into memory '{memory}'")
        block = s.split(rows, length).inner
        made = s.cache(s.func.args[-1], block, space=memory)
        moved = s.async_copy(row, into)
        s.wait(moved, moved, "after")
        drained = s.async_copy(made.drain[0], out)
        s.wait(drained, drained, "after")


def _rows(s: Schedule) -> tuple[Op, Op]:
    """The loop whose iterations look up a row each, and the loops that move it."""
    binds = [op for op in s.func.body.walk() if op.name == "bind"]
    if not binds:
        raise ScheduleError("no data say what is read")
    around = block_of(binds[-1])
    rows = around.parent
    if not isinstance(rows, Op) or not is_loop(rows) or not is_loop(around.ops[-1]):
        raise ScheduleError("it looks up single elements")
    found = copy_in([around.ops[-1]])
    if isinstance(found, str):
        raise ScheduleError(found)
    if buffer_type(found.source).space != GLOBAL.name or any(is_loop(o) for o in body_of(rows).ops[:-1]):
        raise ScheduleError("something else stands beside the rows that are moved")
    return rows, around.ops[-1]


def _memory(machine: Accelerator) -> tuple[str, Route, Route]:
    """A memory of a vector unit, and the routes into it and out of it."""
    for unit in machine.units:
        for memory in unit.memories:
            ways = way(machine, GLOBAL.name, memory), way(machine, memory, GLOBAL.name)
            if all(path is not None and len(path) == 1 for path in ways):
                (into,), (out,) = (path for path in ways if path is not None)
                return memory, into, out
    raise ScheduleError(f"machine '{machine.name}' has no memory with routes from and to the large one")
