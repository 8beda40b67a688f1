"""What no unit of an accelerator does: plain loops, which a thread runs on the scalar unit."""

from __future__ import annotations

from typing import Any

from tilewright.graph.fusion.classify import OpInfo
from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op
from tilewright.loops.edit import buffer_type, is_loop, kind_of
from tilewright.loops.stages import Lowered
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
            type = buffer_type(buffer)
            size = type.size.value * type.dtype.bytes + 64 if type.size.is_const else None
            room = max(left, key=lambda name: left[name], default="")
            if size is None or not room or size > left[room]:
                s.missed.append(f"no memory of machine '{target.name}' has room for '{buffer.name}', {type}")
                continue
            left[room] -= size
            s.set_space(buffer, room)
