"""Graphs that are deep, or have many paths: no pass recurses along them or follows every path."""

from __future__ import annotations

from tests.schedule import scheduling as oracle
from tilewright.graph.match import is_known
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.types import tensor
from tilewright.ops import elementwise as ew


def chain(x: Value) -> Value:
    for _ in range(3000):
        x = ew.add(x, 1.0)
    return x


def diamonds(x: Value) -> Value:
    for _ in range(40):
        x = ew.add(ew.mul(x, 0.5), ew.mul(x, 0.25))
    return x


def test_a_long_chain_is_no_deep_recursion() -> None:
    module = oracle.build([tensor(dt.f32, (4,))], chain)
    assert not is_known(module.main.returns[0])


def test_shared_values_are_lowered_once() -> None:
    module = oracle.build([tensor(dt.f32, (4,))], diamonds)
    oracle.scheduled(module)
    assert any(f.level == "loops" for f in module.funcs.values())
