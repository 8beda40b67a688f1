"""Constant folding, and factors that move into weights."""

from __future__ import annotations

import numpy as np
import pytest

from tests.graph.programs import batch_norm, conv, ops, program, run, weights
from tilewright.graph.rewrites.affine import FoldAffine
from tilewright.graph.rewrites.canonicalize import Canonicalize
from tilewright.graph.rewrites.expand import Expand
from tilewright.graph.rewrites.fold import Fold
from tilewright.ir import dtype as dt
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import norm
from tilewright.ops import view as vw
from tilewright.ops.blocked import block_channels
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.source import iota, sym_tensor
from tilewright.options import Options
from tilewright.passes import PassContext


def test_ops_on_constants_are_evaluated():
    module = program(lambda x: ew.add(x, ew.exp(ew.mul(weights(3, seed=1), weights(3, seed=2)))), (2, 3))
    (a, b) = list(module.constants.values())
    run(module, Fold())
    assert ops(module) == ["add"]
    (folded,) = module.constants.values()
    np.testing.assert_allclose(folded, np.exp(a.astype(np.float64) * b), rtol=1e-6)


def test_large_weights_are_transposed_when_compiling():
    module = program(lambda x: ct.matmul(x, vw.transpose(weights(300, 200), perm=(1, 0))), (2, 200))
    run(module, Fold())
    assert ops(module) == ["matmul"]


@pytest.mark.parametrize("channels", [1, 16, 20])
def test_constant_channels_are_blocked_when_compiling(channels):
    def body(x):
        return ew.add(x, block_channels(weights(2, channels, 3, 4), block=16))

    module = program(body, (2, -(-channels // 16), 3, 4, 16))
    x = np.zeros((2, -(-channels // 16), 3, 4, 16), np.float32)
    (wanted,) = evaluate_func(module.main, module, [x])
    run(module, Fold())
    assert ops(module) == ["add"]
    (folded,) = module.constants.values()
    np.testing.assert_array_equal(folded, wanted)


def test_a_small_constant_does_not_become_a_large_one():
    module = program(lambda x: ew.add(x, vw.expand(weights(1), shape=(1 << 30,))), (1,))
    ctx = PassContext()
    Fold().run(module, ctx)
    assert "expand" in ops(module)
    assert any("more memory" in r.message for r in ctx.remarks)


def test_division_by_zero_is_left_to_run_time():
    def body(x):
        return ew.add(x, ew.div(constant(np.array([1, 2])), constant(np.array([1, 0]))))

    module = program(body, tensor(dt.i64, (2,)))
    ctx = PassContext()
    Fold().run(module, ctx)
    assert "div" in ops(module)
    assert any("division by zero" in r.message for r in ctx.remarks)


def test_dims_that_are_not_known_are_not_folded():
    n = var("n", 1)
    module = program(
        lambda x: ew.cast(ew.add(sym_tensor(values=(n,)), iota(shape=(1,), axis=0)), dtype=dt.f32), (n,)
    )
    run(module, Fold())
    assert "sym_tensor" in ops(module)


@pytest.mark.parametrize("bias", [False, True])
def test_batch_norm_moves_into_a_convolution(bias):
    def body(x):
        y = conv(x, 8, 3)
        return batch_norm(ew.add(y, weights(8, 1, 1, seed=9)) if bias else y)

    module = program(body, (2, 4, 6, 6))
    run(module, FoldAffine(), Canonicalize(), Fold())
    assert ops(module) == ["conv", "add"]


def test_a_difference_and_a_quotient_move_too():
    def body(x):
        centred = ew.sub(conv(x, 8, 1), weights(8, 1, 1, seed=2))
        return ew.div(centred, ew.add(ew.abs_(weights(8, 1, 1, seed=3)), 1.0))

    module = program(body, (2, 4, 5, 5))
    run(module, Fold(), FoldAffine())
    assert ops(module) == ["conv", "add"]


@pytest.mark.parametrize("flag", [False, True])
def test_a_scale_moves_into_the_weights_of_a_product(flag):
    def body(x):
        product = ct.matmul(x, weights(5, 6) if flag else weights(6, 5), transpose_b=flag)
        return ew.mul(ew.add(product, weights(5, seed=2)), 0.37)

    module = program(body, (3, 6))
    run(module, FoldAffine())
    assert ops(module) == ["matmul", "add"]


def test_a_factor_per_position_stays():
    module = program(lambda x: ew.mul(conv(x, 8, 3), weights(6, 6)), (2, 4, 6, 6))
    run(module, FoldAffine())
    assert ops(module) == ["conv", "mul"]


def test_a_factor_of_sums_of_narrower_weights_stays():
    w = np.random.default_rng(4).standard_normal((6, 5)).astype(np.float16)
    given = tensor(dt.f16, (3, 6))
    module = program(lambda x: ew.mul(ct.matmul_widening(x, constant(w), sums=dt.f32), weights(5)), given)
    run(module, FoldAffine(), tolerance=2e-3)
    assert ops(module) == ["matmul_widening", "mul"]


def test_weights_that_are_shared_stay():
    def body(x):
        y = conv(x, 8, 3)
        return ew.add(ew.mul(y, weights(8, 1, 1, seed=3)), y)

    module = program(body, (2, 4, 6, 6))
    run(module, FoldAffine())
    assert ops(module) == ["conv", "mul", "add"]


def test_strict_numerics_round_as_written():
    module = program(lambda x: ew.div(batch_norm(conv(x, 8, 3)), 3.0), (2, 4, 6, 6))
    FoldAffine().run(module, PassContext(options=Options(numerics="strict")))
    assert ops(module) == ["conv", "mul", "add", "div"]


def test_kept_composites_are_written_out():
    module = program(lambda x: norm.softmax(x, axis=-1), (2, 5))
    assert ops(module) == ["softmax"]
    run(module, Expand(keep=("softmax",)))
    assert ops(module) == ["softmax"]
    run(module, Expand())
    assert ops(module) == ["reduce_max", "sub", "exp", "reduce_sum", "div"]
