"""The order of execution: kernels are moved to where fewer bytes are alive, if that makes the arena smaller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from tilewright.ir.core import Block, Func, Module, Op, Value, replace_in_block
from tilewright.passes import PassContext
from tilewright.program.memory.plan import typical
from tilewright.program.memory.storage import planned_bytes
from tilewright.program.memory.views import VIEWS, bytes_of, locate

NO_KERNEL = VIEWS | {"constant", "return"}


@dataclass(frozen=True)
class Order:
    """Try another order of the regions of the main function, and keep it if it needs less memory."""

    name: ClassVar[str] = "order"

    def run(self, module: Module, ctx: PassContext) -> None:
        func = module.main
        ops = _Greedy(func).ordered()
        if [op for op in ops if op.name != "constant"] == [op for op in func.body.ops if op.name != "constant"]:
            return
        before = planned_bytes(func)
        after = planned_bytes(_with(func, ops))
        if after < before:
            replace_in_block(func.body, ops)
            ctx.remark("order", "kernels", f"{before - after} bytes less are alive at a time", applied=True)


def _with(func: Func, ops: list[Op]) -> Func:
    """A function that looks like `func` with its ops in another order, to plan with; it shares them."""
    body = Block()
    body.args, body.ops = func.args, ops
    return replace(func, body=body)


class _Greedy:
    """Takes, of the regions whose operands are there, the one that adds the fewest bytes to those alive; in the order
    of the program among equals."""

    def __init__(self, func: Func) -> None:
        self.func = func
        self.root_of = {value: at.root for value, at in locate(func).items()}
        self.readers: dict[Value, int] = {}
        self.touching: dict[Value, list[Op]] = {}
        for op in func.body.ops:
            for root in self._reads(op):
                self.readers[root] = self.readers.get(root, 0) + 1
            for root in self._reads(op) | self._makes(op):
                self.touching.setdefault(root, []).append(op)
        for value in func.returns:
            self.readers[self.root_of[value]] = len(func.body.ops) + 1
        self.bytes = {root: typical(bytes_of(root)) for root in set(self.root_of.values())}
        self.alive: set[Value] = set()
        self.position = {op: n for n, op in enumerate(func.body.ops)}
        self.ready: list[tuple[bool, int, int]] = []
        self.waiting = {op: sum(v.op is not None for v in set(op.operands)) for op in func.body.ops}

    def ordered(self) -> list[Op]:
        found: list[Op] = []
        done: set[Op] = set()
        for op, count in self.waiting.items():
            if not count:
                self._offer(op)
        while self.ready:
            entry = heappop(self.ready)
            op = self.func.body.ops[entry[2]]
            if op in done:
                continue
            if entry != self._rank(op):  # more is alive after it than when it was offered
                self._offer(op)
                continue
            found.append(op)
            done.add(op)
            for root in self._run(op):
                for other in self.touching[root]:
                    if not self.waiting[other] and other not in done:
                        self._offer(other)
            for user in (u for v in op.results for u in dict.fromkeys(v.users)):
                self.waiting[user] -= 1
                if not self.waiting[user]:
                    self._offer(user)
        return found

    def _offer(self, op: Op) -> None:
        heappush(self.ready, self._rank(op))

    def _rank(self, op: Op) -> tuple[bool, int, int]:
        """What the ready ops are ordered by: the lowest is taken first."""
        return op.name == "return", self._growth(op), self.position[op]

    def _reads(self, op: Op) -> set[Value]:
        return set() if op.name in NO_KERNEL else {self.root_of[v] for v in op.operands}

    def _makes(self, op: Op) -> set[Value]:
        return set() if op.name in NO_KERNEL else {self.root_of[v] for v in op.results}

    def _growth(self, op: Op) -> int:
        """Bytes more alive after `op` than before; views and constants come at once."""
        if op.name in NO_KERNEL:
            return -(1 << 62)
        made = self._makes(op) - self.alive
        freed = {r for r in self._reads(op) & self.alive if self.readers[r] == 1}
        return sum(self.bytes[r] for r in made) - sum(self.bytes[r] for r in freed)

    def _run(self, op: Op) -> list[Value]:
        """Count what `op` makes and reads; the roots for which the growth of other ops may be less than before."""
        changed = list(self._makes(op) - self.alive)
        self.alive |= self._makes(op)
        for root in self._reads(op):
            self.readers[root] -= 1
            if not self.readers[root]:
                self.alive.discard(root)
            elif self.readers[root] == 1:
                changed.append(root)
        return changed
