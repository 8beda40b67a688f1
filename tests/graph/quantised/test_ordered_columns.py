"""Weights whose columns are stored in another order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.graph.programs import inputs, ops, program
from tilewright.graph.quantised.weight_only import WeightOnly
from tilewright.ir import dtype as dt
from tilewright.ir.core import Module, Value
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.index import gather
from tilewright.passes import PassContext
from tilewright.target.named import parse_target

ORDER = np.random.default_rng(5).permutation(12)


def stored(rows: int, columns: int) -> Value:
    q = np.random.default_rng(1).integers(-8, 8, (rows, columns)).astype(np.int8)
    return ew.cast(constant(q, "q"), dtype=dt.f32)


def passed(body: Callable[..., Value], *shapes: tuple[int, ...]) -> Module:
    """After the pass; the program computes the same but for the order of sums."""
    module = program(body, *shapes)
    arrays = inputs(module)
    (wanted,) = evaluate_func(module.main, module, arrays)
    WeightOnly().run(module, PassContext(parse_target("x86-64-v3")))
    (found,) = evaluate_func(module.main, module, arrays)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    return module


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_the_data_take_the_order(transpose_a: bool, transpose_b: bool) -> None:
    def body(x: Value) -> Value:
        w = gather(stored(*((8, 12) if transpose_b else (12, 8))), constant(ORDER), axis=1 if transpose_b else 0)
        return matmul(x, w, transpose_a=transpose_a, transpose_b=transpose_b)

    module = passed(body, (12, 3) if transpose_a else (3, 12))
    (moved,) = [op for op in module.main.body.ops if op.name == "gather"]
    assert moved.operands[0] is module.main.args[0]


def test_several_matrices_at_once() -> None:
    def body(x: Value) -> Value:
        return matmul(x, gather(stored(8, 12), constant(ORDER), axis=1), transpose_b=True)

    module = passed(body, (2, 3, 12))
    assert [op.operands[0] for op in module.main.body.ops if op.name == "gather"] == list(module.main.args)


@pytest.mark.parametrize(
    "index",
    [np.array([0, 0, *range(2, 12)]), np.arange(11), np.arange(12).reshape(12, 1)[:, 0] - 12],
    ids=["a column twice", "a column less", "from the end"],
)
def test_other_indices_stay(index: np.ndarray) -> None:
    def body(x: Value) -> Value:
        return matmul(x, gather(stored(8, 12), constant(index), axis=1), transpose_b=True)

    module = passed(body, (3, len(index)))
    assert all(op.operands[0] is not module.main.args[0] for op in module.main.body.ops if op.name == "gather")


def test_rows_of_the_result_and_data_that_are_known_stay() -> None:
    def rows(x: Value) -> Value:
        return matmul(x, gather(stored(12, 5), constant(ORDER), axis=0), transpose_b=True)

    assert ops(passed(rows, (3, 5))).count("gather") == 1

    def both(x: Value) -> Value:
        return ew.add(matmul(stored(3, 12), gather(stored(8, 12), constant(ORDER), axis=1), transpose_b=True), x)

    module = passed(both, (3, 8))
    assert ops(module).count("gather") == 1
