"""Products of one tensor with several matrices."""

from __future__ import annotations

import pytest

from tests.graph.programs import dense, find, ops, program, relu, run, weights
from tilewright.graph.rewrites.horizontal_fusion import HorizontalFusion
from tilewright.ir.sym import var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import view as vw

N = var("n", 1)


def heads(y):
    return vw.reshape(y, shape=(N, 5, 2, y.type.shape[-1] // 2))


@pytest.mark.parametrize("widths", [(8, 8, 8), (8, 4), (6, 2, 10)])
def test_products_that_views_follow_become_one(widths):
    module = program(lambda x: [heads(dense(x, width, seed)) for seed, width in enumerate(widths)], (N, 5, 8))
    run(module, HorizontalFusion())
    assert ops(module).count("matmul") == 1
    assert ops(module).count("add") == 1
    assert find(module, "matmul").result.type.shape[-1] == sum(widths)


def test_a_missing_bias_is_zero_and_matrices_may_be_transposed():
    def body(x):
        plain = ct.matmul(x, weights(4, 8), transpose_b=True)
        return heads(plain), heads(dense(x, 6, 3))

    module = program(body, (N, 5, 8))
    run(module, HorizontalFusion())
    assert ops(module).count("matmul") == 1


def test_products_with_an_activation_stay_apart():
    module = program(lambda x: ew.mul(relu(dense(x, 8, 1)), dense(x, 8, 2)), (N, 5, 8))
    run(module, HorizontalFusion())
    assert ops(module).count("matmul") == 2


def test_products_of_different_tensors_stay_apart():
    module = program(lambda x, y: (heads(dense(x, 8, 1)), heads(dense(y, 8, 2))), (N, 5, 8), (N, 5, 8))
    run(module, HorizontalFusion())
    assert ops(module).count("matmul") == 2
