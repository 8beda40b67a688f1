"""Iterations that the instances of a level share, where each has memories and units of its own."""

from __future__ import annotations

from tilewright.cost.machine.ways import instances, shares
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import extent_of
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import Accelerator


def shared(s: Schedule, loop: Op, machine: Accelerator, memory: str) -> tuple[Op | None, Op]:
    """A loop cut into equal parts, one for each instance of the level that the memory belongs to, and the loop of a
    part; (None, loop) where one instance does all. Iterations must write nothing twice. Precondition: the extent is
    known."""
    parts = shares(extent_of(loop).value, instances(machine, memory))
    if parts == 1:
        return None, loop
    made = s.split(loop, extent_of(loop).value // parts)
    return made.outer, made.inner


def run_on_instances(s: Schedule, loop: Op | None, machine: Accelerator, memory: str, among: int = 1) -> None:
    """Let instances of the memory's level do the parts of a shared loop at the same time, where no two of them are
    known to meet. Of several nests each waits for the others."""
    found = machine.memory(memory)
    if loop is None or found is None:
        return
    try:
        s.parallel(loop, found.level)
        if among > 1:
            s.barrier(loop, found.level, "before")
            s.barrier(loop, found.level, "after")
    except ScheduleError as error:
        s.missed.append(f"one {found.level} does all: {error.what}")
