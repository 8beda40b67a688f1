"""What no unit of an accelerator does: plain loops, which a thread runs on the scalar unit."""

from __future__ import annotations

from typing import Any

from tilewright.graph.fusion.classify import OpInfo
from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import buffer_type, is_loop, kind_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import Accelerator


class ScalarLoops(Strategy):
    """One operator in order, as it was lowered, by one thread. What it keeps lies in a memory that copies reach and
    that has room, and else in scratch memory beside the arguments."""

    name = "scalar"
    kind = Accelerator.kind

    def claims(self, op: Op, info: OpInfo) -> bool:
        return True

    def match(self, region: FusedRegion) -> Match:
        return Match()

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        for loop in [op for op in s.func.body.walk() if is_loop(op) and kind_of(op) == "parallel"]:
            s.serial(loop)
        left = {m.name: m.bytes for m in target.memories if m.name != "global" and m.bytes is not None}
        for buffer in [op.result for op in s.func.body.walk() if op.name == "alloc"]:
            kept = buffer
            room = max(left, key=lambda name: left[name], default="")
            if not room or not _fits(kept, left[room]):
                kept = _an_element_at_a_time(s, kept, lowered)
            if not room or not _fits(kept, left[room]):
                type = buffer_type(buffer)
                s.missed.append(f"no memory of machine '{target.name}' has room for '{buffer.name}', {type}")
                continue
            left[room] -= buffer_type(kept).size.value * buffer_type(kept).dtype.bytes + 64
            s.set_space(kept, room)


def _fits(buffer: Value, room: int) -> bool:
    type = buffer_type(buffer)
    return type.size.is_const and type.size.value * type.dtype.bytes + 64 <= room


def _an_element_at_a_time(s: Schedule, buffer: Value, lowered: Lowered) -> Value:
    """What a stage computes, within the innermost loop of the only stage that reads it, or where it was."""
    readers = [stage for stage in lowered.stages if stage.buffer is not buffer and _reads(stage, buffer)]
    if len(readers) != 1 or not readers[0].axes or readers[0].reduce:
        return buffer
    try:
        return s.compute_at(buffer, readers[0].axes[-1], space=buffer_type(buffer).space).buffer
    except ScheduleError:
        return buffer


def _reads(stage: Stage, buffer: Value) -> bool:
    return any(o.name == "load" and o.operands[0] is buffer for root in stage.axes[:1] for o in root.walk())
