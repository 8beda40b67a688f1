"""The order of execution: another one is taken only where it needs less memory, and it keeps all dependences."""

from __future__ import annotations

import random

import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.ir.types import tensor
from tilewright.program.memory.order import reorder
from tilewright.program.memory.storage import planned_bytes


class Graph:
    """A main function of regions without bodies."""

    def __init__(self) -> None:
        self.block = Block([tensor(dt.f32, (16,))], ["x"])

    def region(self, size: int, *operands: Value) -> Value:
        return self.block.append(Op("fused", list(operands), [tensor(dt.f32, (size,))])).result

    def ordered(self, *results: Value) -> tuple[int, int, Module]:
        """Bytes of the arena before and after, and the module."""
        self.block.append(Op("return", list(results)))
        module = Module()
        module.add(Func("main", self.block, "graph"))
        before = planned_bytes(module.main)
        reorder(module.main)
        return before, planned_bytes(module.main), module


def assert_runs(module: Module) -> None:
    known = set(module.main.args)
    for op in module.main.body.ops:
        assert known.issuperset(op.operands)
        known.update(op.results)
    assert module.main.body.ops[-1].name == "return"


def test_branches_are_finished_one_after_the_other() -> None:
    """Four wide tensors, each of which shrinks at once: by breadth all four are alive, by depth one."""
    g = Graph()
    wide = [g.region(1024, g.block.args[0]) for _ in range(4)]
    small = [g.region(16, w) for w in wide]
    before, after, module = g.ordered(g.region(16, *small))
    assert before == 4 * 4096 + 64
    assert after == 4096 + 4 * 64
    assert_runs(module)


def test_an_order_that_is_good_stays() -> None:
    g = Graph()
    a = g.region(64, g.block.args[0])
    b = g.region(64, a)
    ops = list(g.block.ops)
    before, after, module = g.ordered(g.region(64, b))
    assert before == after
    assert module.main.body.ops[:2] == ops


@pytest.mark.parametrize("seed", range(20))
def test_random_graphs_never_need_more(seed: int) -> None:
    rng = random.Random(seed)
    g = Graph()
    values = [g.block.args[0]]
    for _ in range(30):
        values.append(g.region(rng.choice((16, 256, 4096)), *rng.sample(values[-8:], min(2, len(values)))))
    before, after, module = g.ordered(*values[-2:])
    assert after <= before
    assert len(module.main.body.ops) == 31
    assert_runs(module)
