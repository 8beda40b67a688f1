"""A schedule that random steps are taken on, and how they choose what to take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.loops.edit import loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.trace import Schedule

T = TypeVar("T")


@dataclass(frozen=True)
class Chance:
    """The schedule, its random numbers, and the values of its dims."""

    s: Schedule
    r: random.Random
    env: dict[str, int]

    @property
    def func(self) -> Func:
        return self.s.func

    def one_of(self, items: Sequence[T], what: str) -> T:
        """One of the items; ScheduleError when there are none."""
        if not items:
            raise ScheduleError(f"there is no {what}")
        return self.r.choice(items)

    def loop(self, *suitable: Op) -> Op:
        """A loop: mostly one of those that suit, if any do."""
        if suitable and self.r.random() < 0.8:
            return self.r.choice(suitable)
        return self.one_of(loops_in(self.func.body), "loop")

    def ops(self, *names: str) -> list[Op]:
        return [op for op in self.func.body.walk() if op.name in names]

    def buffers(self) -> list[Value]:
        return [op.result for op in self.ops("alloc")]

    def buffer(self, *suitable: Value) -> Value:
        if suitable and self.r.random() < 0.8:
            return self.r.choice(suitable)
        return self.r.choice([*self.buffers(), *self.func.args])

    def outputs(self) -> list[Value]:
        return list(self.func.args[len(self.func.args) - kernel_info(self.func).outputs :])

    def lanes(self) -> int:
        return self.r.choice([1, 2, 3, 4, 5, 8, 8])

    def packing(self, rank: int) -> Packing:
        r = self.r
        factors = tuple(tuple(r.randint(1, 4) for _ in range(r.choice([0, 0, 1, 2]))) for _ in range(rank))
        pieces = list(range(sum(1 + len(f) for f in factors)))
        r.shuffle(pieces)
        return Packing(factors, tuple(pieces))
