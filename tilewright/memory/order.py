"""The order of execution: kernels are moved to where fewer bytes are alive, if that makes the arena smaller."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.core import Block, Func, Module, Op, Value, replace_in_block
from tilewright.ir.passes import PassContext
from tilewright.memory.plan import typical
from tilewright.memory.storage import planned_bytes
from tilewright.memory.views import VIEWS, bytes_of, locate

NO_KERNEL = VIEWS | {"constant", "return"}


@dataclass(frozen=True)
class Order:
    """Try another order of the regions of the main function, and keep it if it needs less memory."""

    name: ClassVar[str] = "order"

    def run(self, module: Module, ctx: PassContext) -> None:
        func = module.main
        before = planned_bytes(func)
        ops = _Greedy(func).ordered()
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
        for op in func.body.ops:
            for root in self._reads(op):
                self.readers[root] = self.readers.get(root, 0) + 1
        for value in func.returns:
            self.readers[self.root_of[value]] = len(func.body.ops) + 1
        self.bytes = {root: typical(bytes_of(root)) for root in set(self.root_of.values())}
        self.alive: set[Value] = set()

    def ordered(self) -> list[Op]:
        waiting = {op: sum(v.op is not None for v in set(op.operands)) for op in self.func.body.ops}
        ready = [op for op, count in waiting.items() if not count]
        position = {op: n for n, op in enumerate(self.func.body.ops)}
        found: list[Op] = []
        while ready:
            op = min(ready, key=lambda o: (o.name == "return", self._growth(o), position[o]))
            ready.remove(op)
            found.append(op)
            self._run(op)
            for user in {u: None for v in op.results for u in v.users}:
                waiting[user] -= sum(v in op.results for v in set(user.operands))
                if not waiting[user]:
                    ready.append(user)
        return found

    def _reads(self, op: Op) -> set[Value]:
        return set() if op.name in NO_KERNEL else {self.root_of[v] for v in op.operands}

    def _growth(self, op: Op) -> int:
        """Bytes more alive after `op` than before; views and constants come at once."""
        if op.name in NO_KERNEL:
            return -(1 << 62)
        made = {self.root_of[v] for v in op.results} - self.alive
        freed = {r for r in self._reads(op) & self.alive if self.readers[r] == 1}
        return sum(self.bytes[r] for r in made) - sum(self.bytes[r] for r in freed)

    def _run(self, op: Op) -> None:
        if op.name not in NO_KERNEL:
            self.alive |= {self.root_of[v] for v in op.results}
        for root in self._reads(op):
            self.readers[root] -= 1
            if not self.readers[root]:
                self.alive.discard(root)
