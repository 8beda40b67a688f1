"""Operators with loops of their own get vectors where their innermost loops allow them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.ir import dtype as dt
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.edit import kind_of, loops_in
from tilewright.ops import recurrent, sort
from tilewright.ops.define import constant

N = var("n", 1)
RNG = np.random.default_rng(3)


def kinds(module):
    (kernel,) = [f for f in module.funcs.values() if f.level == "loops"]
    return [kind_of(loop) for loop in loops_in(kernel.body)]


@pytest.mark.parametrize("hidden", [16, 21])
def test_products_of_a_recurrent_network_are_summed_in_lanes(hidden):
    steps, batch = 4, 2
    weights = (RNG.standard_normal((4, hidden, hidden)) * 0.2).astype(np.float32)
    peepholes = RNG.standard_normal(3 * hidden).astype(np.float32)
    types = [tensor(dt.f32, (N, batch, 4 * hidden)), *[tensor(dt.f32, (batch, hidden))] * 2]
    arrays = [
        RNG.standard_normal((steps, batch, 4 * hidden)).astype(np.float32),
        *(RNG.standard_normal((batch, hidden)).astype(np.float32) for _ in range(2)),
    ]
    lengths = np.array([4, 3])

    def body(gates, h, c):
        return recurrent.lstm(gates, constant(weights), constant(peepholes), h, c, constant(lengths))

    module, _ = oracle.agree(types, body, arrays)
    assert "vector" in kinds(module)


def test_a_search_keeps_its_order():
    arrays = [RNG.standard_normal((3, 33)).astype(np.float32)]
    module, _ = oracle.agree(
        [tensor(dt.f32, (3, 33))], lambda x: sort.topk(x, k=4, axis=1), arrays, tolerance=0
    )
    assert kinds(module).count("serial") == 2  # those that are kept first, and those that pass by: results are vectors


@pytest.mark.parametrize("k", (8, 100))
def test_what_a_search_looks_at_in_any_order_is_vectors(k: int) -> None:
    """The keys of blocks and their greatest; keys, and how many of them are not below a number."""
    arrays = [RNG.standard_normal((2, 640)).astype(np.float32)]
    module, _ = oracle.agree(
        [tensor(dt.f32, (2, 640))], lambda x: sort.topk(x, k=k, axis=1), arrays, tolerance=0
    )
    assert kinds(module).count("vector") >= 4


def test_elements_of_short_rows_count_those_before_them_in_vectors():
    arrays = [RNG.standard_normal((3, 100)).astype(np.float32)]
    module, _ = oracle.agree(
        [tensor(dt.f32, (3, 100))], lambda x: sort.topk(x, k=20, axis=1), arrays, tolerance=0
    )
    assert kinds(module).count("vector") >= 4
    assert kinds(module).count("serial") <= 5  # blocks of keys, of the others and of counts; and where each goes


def test_a_few_of_each_column_are_kept_in_lanes():
    arrays = [RNG.standard_normal((60, 40)).astype(np.float32)]
    module, _ = oracle.agree(
        [tensor(dt.f32, (60, 40))], lambda x: sort.topk(x, k=2, axis=0), arrays, tolerance=0
    )
    found = kinds(module)
    assert found.count("vector") >= 4 and "unroll" not in found


@pytest.mark.sweep
@pytest.mark.parametrize("axis", (0, 1))
@pytest.mark.parametrize("k", (3, 12))
def test_orders_along_an_axis_of_unknown_size(k: int, axis: int) -> None:
    """Each size takes a way of its own: ranks, registers, a heap, columns, what is picked and sorted."""
    n, m = var("n"), var("m")
    for size in (k, k + 1, 32, 33, 128, 129, 64 * k, 64 * k + 40):
        x = RNG.integers(-9, 9, (size, 5) if axis == 0 else (5, size)).astype(np.float32)  # with ties
        oracle.agree([tensor(dt.f32, (n, m))], lambda x: sort.topk(x, k=k, axis=axis), [x], tolerance=0)
