"""Factors of the operands of matrix products become factors of their results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import inputs, ops, program, run, weights
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.fold import Fold
from tilewright.graph.rewrites.hoist_scales import HoistScales
from tilewright.ir import dtype as dt
from tilewright.ir.types import tensor
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops import view as vw
from tilewright.ops.define.interp import evaluate_func
from tilewright.options import Options
from tilewright.passes import PassContext


def lifted(body, *shapes):
    module = program(body, *shapes)
    return module, run(module, HoistScales(), Canonicalize(), Fold())


def test_numbers_of_both_operands_become_one_number_of_the_result():
    module, _ = lifted(lambda q, k: ct.matmul(ew.mul(q, 0.5), ew.mul(k, 0.25)), (3, 4, 8), (3, 8, 5))
    assert ops(module) == ["matmul", "mul"]
    q, k = inputs(module)
    (found,) = evaluate_func(module.main, module, [q, k])
    np.testing.assert_allclose(found, q.astype(np.float64) @ k * 0.125, rtol=1e-5, atol=1e-6)


def test_numbers_are_found_behind_views():
    def keys(x):
        return vw.reshape(vw.transpose(ew.mul(x, 0.5), perm=(1, 2, 0)), shape=(2, 4, 6))

    module, _ = lifted(lambda q, k: ct.matmul(q, keys(k)), (2, 3, 4), (6, 2, 4))
    assert ops(module)[-1] == "mul"
    assert ops(module).count("mul") == 1


def test_factors_of_rows_become_factors_of_rows_of_the_result():
    def body(x, v):
        powers = ew.exp(x)
        return ct.matmul(ew.div(powers, rd.reduce_sum(powers, axes=(-1,), keepdims=True)), v)

    module, _ = lifted(body, (2, 3, 8), (2, 8, 4))
    assert ops(module)[-2:] == ["matmul", "div"]
    x, v = inputs(module)
    (found,) = evaluate_func(module.main, module, [x, v])
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("flip", [False, True])
def test_products_with_a_factor_of_rows(flip):
    def body(x, r, v):
        return ct.matmul(ew.mul(r, x) if flip else ew.mul(x, r), v)

    module, _ = lifted(body, (2, 3, 8), (2, 3, 1), (2, 8, 4))
    assert ops(module) == ["matmul", "mul"]


LOOK_ALIKES = {
    "a factor of columns": (lambda x, r, v: ct.matmul(ew.mul(x, r), v), (3, 8), (1, 8), (8, 4)),
    "a factor of each element": (lambda x, r, v: ct.matmul(ew.mul(x, r), v), (3, 8), (3, 8), (8, 4)),
    "rows that are columns": (
        lambda x, r, v: ct.matmul(ew.mul(x, r), v, transpose_a=True), (8, 3), (8, 1), (8, 4)
    ),
    "a divided factor": (lambda x, r, v: ct.matmul(ew.div(r, x), v), (3, 8), (3, 1), (8, 4)),
    "longer rows of the result": (lambda x, r, v: ct.matmul(ew.mul(x, r), v), (3, 8), (3, 1), (8, 40)),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOK_ALIKES, ids=str)
def test_what_looks_alike_stays(case):
    module, _ = lifted(*LOOK_ALIKES[case])
    assert ops(module)[-1] == "matmul"


def test_numbers_before_weights_stay_where_they_can_be_folded():
    module, _ = lifted(lambda x: ct.matmul(ew.mul(x, 0.5), weights(8, 4)), (3, 8))
    assert ops(module) == ["mul", "matmul"]


def test_scaled_rows_that_are_needed_elsewhere_stay_and_the_reason_is_told():
    def body(x, r, v):
        scaled = ew.mul(x, r)
        return ct.matmul(scaled, v), scaled

    module, ctx = lifted(body, (3, 8), (3, 1), (8, 4))
    assert ops(module)[-1] == "matmul"
    assert "the scaled rows are needed elsewhere too" in " ".join(map(str, ctx.remarks))


def test_strict_numerics_multiply_first():
    module = program(lambda q, k: ct.matmul(ew.mul(q, 0.5), ew.div(k, rd.reduce_sum(k, axes=(-1,), keepdims=True))),
                     (3, 4, 8), (3, 8, 5))  # fmt: skip
    before = ops(module)
    HoistScales().run(module, PassContext(options=Options(numerics="strict")))
    assert ops(module) == before


def test_nothing_of_rows_stays_before_a_product_where_all_of_it_goes():
    def body(x, r, v):
        hidden = ew.eq(r, 0.0)
        return ct.matmul(ew.select(hidden, 0.0, ew.mul(x, r)), v)

    module = program(body, (3, 4), (3, 1), (4, 8))
    run(module, HoistScales(all_rows=True), Canonicalize(), Fold())
    assert ops(module) == ["eq", "matmul", "mul", "select"]
    assert ops(lifted(body, (3, 4), (3, 1), (4, 8))[0])[-1] == "matmul"


def test_numbers_and_sums_of_narrow_operands_come_behind_the_product():
    """Also behind zeros of whole rows, which what is computed of nothing is replaced by."""

    def body(hidden, q, k, v):
        scaled = (ew.cast(ew.mul(ew.cast(x, dtype=dt.f32), 0.5), dtype=dt.f16) for x in (q, k))
        left, right = scaled
        scores = ct.matmul_widening(left, vw.transpose(right, perm=(1, 0)), sums=dt.f32)
        powers = ew.exp(ew.sub(scores, rd.reduce_max(scores, axes=(-1,), keepdims=True)))
        weights = ew.mul(powers, ew.div(1.0, rd.reduce_sum(powers, axes=(-1,), keepdims=True)))
        weights = ew.cast(ew.cast(weights, dtype=dt.f16), dtype=dt.f32)
        weights = ew.cast(ew.select(hidden, 0.0, weights), dtype=dt.f16)
        return ct.matmul_widening(weights, v, sums=dt.f32)

    types = [tensor(dt.bool_, (3, 1)), *(tensor(dt.f16, shape) for shape in ((3, 4), (5, 4), (5, 8)))]
    module = program(body, *types)
    run(module, HoistScales(all_rows=True), Canonicalize(), Fold())
    found = ops(module)
    assert found[found.index("exp") :].count("mul") == 1 and found[-2:] == ["mul", "select"]
    assert found.index("matmul_widening") < found.index("mul") and found.count("mul") == 2
