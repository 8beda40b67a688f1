"""Rows of several passes ask for the next ones: what is asked for, where, and when nothing is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import address_of, enclosing_loops, extent_of, kind_of, loop_var
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce

RNG = np.random.default_rng(11)
LINE = 16


def softmax(x: Value, *more: Value) -> Value:
    for other in more:
        x = ew.add(x, other)
    e = ew.exp(ew.sub(x, reduce.reduce_max(x, axes=(1,), keepdims=True)))
    return ew.div(e, reduce.reduce_sum(e, axes=(1,), keepdims=True))


def kernel_of(
    body: Callable[..., Value], *shapes: tuple[int, ...], target: str = "x86-64-v3"
) -> tuple[Func, list[str]]:
    """The one kernel that `body` becomes, whose results were compared, and its remarks."""
    arrays = [RNG.standard_normal(s).astype(np.float32) for s in shapes]
    module, ctx = oracle.agree([tensor(dt.f32, s) for s in shapes], body, arrays, target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel, [str(r) for r in ctx.remarks]


def asked(kernel: Func) -> list[Op]:
    return [op for op in kernel.body.walk() if op.name == "prefetch"]


def addresses(op: Op, row: int) -> list[int]:
    """The elements that a request of iteration `row` of the threads' loop asks for."""
    (parallel, *steps) = enclosing_loops(op)
    assert kind_of(parallel) == "parallel"
    (step,) = steps
    address = address_of(op).subs({loop_var(parallel): row})
    return [address.subs({loop_var(step): k}).value for k in range(extent_of(step).value)]


@pytest.mark.parametrize("target", ["x86-64-v3", "cascadelake"])
def test_the_pass_that_computes_most_asks_for_each_line_of_the_next_row_once(target: str) -> None:
    kernel, _ = kernel_of(softmax, (71, 1024), target=target)
    ops = asked(kernel)
    assert {op.operands[0].name for op in ops} == {"x0"}  # the result is not read from memory
    assert all(any(o.name == "exp" for o in enclosing_loops(op)[-1].walk()) for op in ops)
    expected = list(range(1024 * 4, 1024 * 5, LINE))
    assert sorted(a for op in ops for a in addresses(op, 3)) == expected


def test_interleaved_rows_prefetch_the_next_ones() -> None:
    kernel, _ = kernel_of(softmax, (128, 256))  # four by four
    found = sorted(a for op in asked(kernel) for a in addresses(op, 3))
    assert found == list(range(256 * 16, 256 * 20, LINE))


def test_rows_of_several_operands_are_asked_for_and_what_all_rows_share_is_not() -> None:
    kernel, _ = kernel_of(softmax, (70, 384), (70, 384), (1, 384))
    assert {op.operands[0].name for op in asked(kernel)} == {"x0", "x1"}


def test_large_rows_and_single_passes_ask_for_nothing() -> None:
    kernel, remarks = kernel_of(softmax, (3, 4096))
    assert not asked(kernel)
    assert any("the next 16384 bytes of rows are not prefetched: they are too many" in r for r in remarks)
    total, _ = kernel_of(lambda x: reduce.reduce_sum(x, axes=(1,)), (70, 384))
    assert not asked(total)


def test_an_unknown_number_of_rows_is_asked_for_as_well() -> None:
    rows = var("rows", 1)
    x = RNG.standard_normal((9, 1024)).astype(np.float32)  # pages apart: one by one
    module, _ = oracle.agree([tensor(dt.f32, (rows, 1024))], softmax, [x])
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    found = sorted(a for op in asked(kernel) for a in addresses(op, 3))
    assert set(range(4 * 1024, 5 * 1024, LINE)) <= {a // LINE * LINE for a in found}
    assert len(found) < 1024 // 8
