"""Conditions on positions are copied into the kernels that select by them, with all that they are computed from."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.graph.programs import program, run
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir.core import Value
from tilewright.ir.sym import var
from tilewright.ops import elementwise as ew
from tilewright.ops import sort
from tilewright.ops.source import iota
from tilewright.schedule.strategies import STRATEGIES

N = var("n", 1)


def itself(positions: Value) -> Value:
    return positions


def largest(positions: Value) -> Value:
    return sort.topk(positions, k=1, axis=0)[0]


@pytest.mark.parametrize("use", [itself, largest], ids=lambda use: use.__name__)
def test_positions_that_are_needed_whole_are_copied_for_conditions(use: Callable[[Value], Value]) -> None:
    """A tensor of them exists, which kernels that compute the condition do not read."""

    def body(x: Value) -> tuple[Value, Value]:
        positions = iota(shape=(N,), axis=0)
        return ew.select(ew.ge(positions, 1), x, 0.0), use(positions)

    module = program(body, (N,))
    run(module, Fuse(STRATEGIES))
    regions = [op for op in module.main.body.ops if op.name == "fused"]
    (selection,) = [op for op in regions if any(o.name == "select" for o in op.walk())]
    assert len(selection.operands) == 1 and "ge" in [o.name for o in selection.walk()]
