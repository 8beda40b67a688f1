"""What is expanded before it is computed with is computed once: expands move below the operators that read them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import find, ops, program, run, weights
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import view as vw
from tilewright.ops.define.interp import evaluate_func

N = var("n", 1)


def wide(x: Value, *shape: int | Sym) -> Value:
    return vw.expand(x, shape=shape)


def rows_of_a_batch(x: Value) -> Value:
    return ct.matmul(wide(x, 5, 8, 6), weights(6, 4))


def rows_of_an_axis(x: Value) -> Value:
    """As einsums are written."""
    merged = vw.reshape(wide(x, 5, 8, 6), shape=(40, 6))
    return vw.reshape(ct.matmul(merged, weights(4, 6), transpose_b=True), shape=(5, 8, 2, 2))


def a_row(x: Value) -> Value:
    return ct.matmul(wide(vw.reshape(x, shape=(30,)), 3, 30), weights(30, 4))


def columns(x: Value) -> Value:
    return ct.matmul(weights(7, 8), wide(x, 5, 8, 6))


def elementwise(x: Value) -> Value:
    return ew.exp(ew.add(wide(x, 5, 8, 6), weights(6)))


def turned(x: Value) -> Value:
    return ew.tanh(vw.transpose(wide(x, 5, 8, 6), perm=(1, 0, 2)))


def split(x: Value) -> Value:
    return ew.tanh(vw.reshape(wide(x, 5, 8, 6), shape=(5, 2, 4, 3, 2)))


@pytest.mark.parametrize(
    "body", [rows_of_a_batch, rows_of_an_axis, a_row, elementwise, turned, split], ids=lambda b: b.__name__
)
def test_work_is_done_on_what_is_not_expanded_yet(body: Callable[[Value], Value]) -> None:
    module = program(body, (5, 1, 6))
    run(module, Canonicalize())
    worker = next(op for op in module.main.body.ops if op.name in ("matmul", "exp", "tanh"))
    assert find(module, "expand").result.tensor.size == find(module, "return").operands[0].tensor.size
    assert worker.result.tensor.size.value <= 30
    assert ops(module).index(worker.name) < ops(module).index("expand")


def test_an_axis_that_is_summed_stays_expanded() -> None:
    module = program(columns, (5, 1, 6))
    run(module, Canonicalize())
    assert find(module, "matmul").operands[1].tensor.shape == (5, 8, 6)


def test_a_batch_that_the_other_operand_has_anyway_stays_expanded() -> None:
    module = program(lambda q, r: ct.matmul(q, wide(r, 5, 6, 7)), (5, 3, 6), (1, 6, 7))
    run(module, Canonicalize())
    assert ops(module) == ["expand", "matmul"]


def test_part_of_a_merged_axis_is_expanded_before_it_is_merged() -> None:
    module = program(lambda x: ew.exp(vw.reshape(wide(x, 5, 8, 6), shape=(40, 6))), (5, 1, 6))
    run(module, Canonicalize())
    assert ops(module) == ["exp", "expand", "reshape"]


def test_an_unknown_number_of_copies() -> None:
    module = program(lambda x, y: ew.mul(y, ct.matmul(wide(x, N, 8, 6), weights(6, 4))), (8, 6), (N, 8, 4))
    run(module, Canonicalize())
    assert ops(module) == ["reshape", "matmul", "mul"]
    assert find(module, "matmul").result.tensor.size == 32


def test_positions_of_a_batch_are_known_when_compiling() -> None:
    def body(x: Value) -> Value:
        rows = vw.reshape(wide(weights(6, 1, 4), 6, 3, 4), shape=(18, 4))
        return ew.add(x, ct.matmul(rows, weights(4, 5)))

    module = program(body, (18, 5))
    run(module, Canonicalize(), Fold(), Canonicalize(), Fold())
    assert "matmul" not in ops(module)


def test_a_number_of_copies_that_is_0() -> None:
    module = program(lambda x: ct.matmul(wide(x, 0, 6), weights(6, 4)), (1, 6))
    run(module, Canonicalize())
    assert find(module, "return").operands[0].tensor.shape == (0, 4)


def test_expanded_numbers_that_are_not_finite_stay_as_they_are() -> None:
    module = program(rows_of_an_axis, (5, 1, 6))
    run(module, Canonicalize())
    x = np.full((5, 1, 6), np.nan, np.float32)
    (found,) = evaluate_func(module.main, module, [x])
    assert np.isnan(found).all()
