"""Fusion: which ops become one kernel, how many kernels networks need, and why others were not fused."""

from __future__ import annotations

import pytest

from tests.graph.programs import (
    batch_norm,
    conv,
    encoder_layer,
    kernels,
    kinds,
    layer_norm,
    ops,
    program,
    relu,
    run,
    softmax,
    weights,
)  # fmt: skip
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes, passes_by_name
from tilewright.ir import dtype as dt
from tilewright.ir.sym import var
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import reduce as rd
from tilewright.ops import sort
from tilewright.ops import view as vw
from tilewright.ops.source import iota
from tilewright.options import Options
from tilewright.passes import parse_passes
from tilewright.schedule.strategies import STRATEGIES

N = var("n", 1)


def fused(body, *shapes, whole=False, tolerance=1e-5):
    module = program(body, *shapes)
    passes = default_passes(Options()) if whole else []
    ctx = run(module, *passes, Fuse(STRATEGIES), tolerance=tolerance)
    return module, ctx


def test_elementwise_chains_are_one_kernel():
    module, _ = fused(lambda x, y: ew.mul(ew.exp(ew.add(x, y)), ew.sub(x, 1.0)), (3, 4), (4,))
    assert [sorted(k) for k in kernels(module)] == [["add", "exp", "mul", "sub"]]


def test_conditions_are_computed_where_they_select_also_from_positions_that_are_results():
    def masked(x):
        positions = iota(shape=(N,), axis=0)
        return ew.select(ew.lt(positions, 3), x, ew.neg(x)), positions

    module, _ = fused(masked, (N,))
    assert sorted(map(sorted, kernels(module))) == [["iota"], ["iota", "lt", "neg", "select"]]


def test_a_sum_of_products_is_one_kernel():
    module, _ = fused(
        lambda x, y, z: rd.reduce_sum(ew.add(x, ew.mul(y, z)), axes=(1,)), (3, 8), (3, 8), (3, 8)
    )
    assert kernels(module) == [["mul", "add", "reduce_sum"]]
    assert kinds(module) == {"row_reduction": 1}


@pytest.mark.parametrize("norm", [softmax, layer_norm])
def test_norms_are_one_kernel(norm):
    module, _ = fused(norm, (3, 5, 8), whole=True)
    assert kinds(module) == {"row_reduction": 1}


def test_a_product_with_its_epilogue_is_one_kernel():
    def body(x, residual):
        y = ew.add(ct.matmul(x, weights(8, 6)), weights(6))
        return ew.add(relu(y), residual)

    module, _ = fused(body, (N, 8), (N, 6))
    assert kernels(module) == [["matmul", "add", "max", "add"]]


def test_heads_are_split_by_the_product_that_makes_them():
    def body(x):
        y = vw.reshape(ct.matmul(x, weights(8, 8)), shape=(N, 5, 2, 4))
        return vw.transpose(y, perm=(0, 2, 1, 3))

    module, _ = fused(body, (N, 5, 8))
    assert kernels(module) == [["matmul", "reshape", "transpose"]]


def test_two_products_are_two_kernels_with_a_reason():
    module, ctx = fused(lambda x: ct.matmul(relu(ct.matmul(x, weights(8, 6))), weights(6, 4)), (N, 8))
    assert kernels(module) == [["matmul", "max"], ["matmul"]]
    assert any("every tile" in r.message for r in ctx.remarks if r.kind == "missed")


def test_a_kernel_never_waits_for_itself():
    def body(x):
        y = ew.exp(x)
        total = ct.matmul(y, weights(8, 8))
        return ew.add(y, rd.reduce_max(total, axes=(0, 1)))

    module, _ = fused(body, (5, 8))
    assert len(kernels(module)) >= 2  # the sum needs all of the product, which needs all of y


def test_results_that_others_read_leave_the_kernel():
    module, _ = fused(lambda x: (ew.exp(x), ew.neg(ew.exp(x))), (3, 4), whole=True)
    assert [len(op.results) for op in module.main.body.ops if op.name == "fused"] == [2]


def test_reshapes_need_no_kernel():
    module, _ = fused(lambda x: vw.reshape(ew.exp(vw.reshape(x, shape=(12,))), shape=(2, 6)), (3, 4))
    assert kernels(module) == [["exp"]]
    assert ops(module) == ["reshape", "fused", "reshape"]


def test_counters_reshaped_stay_with_their_reader():
    def body(x):
        column = vw.reshape(ew.cast(iota(shape=(N,), axis=0), dtype=dt.f32), shape=(N, 1))
        direct = vw.reshape(iota(shape=(N,), axis=0), shape=(1, N))
        return ew.add(ew.add(x, column), ew.cast(direct, dtype=dt.f32))

    module, _ = fused(body, (N, N))
    assert len(kernels(module)) == 1


def test_a_counter_reshaped_for_an_irregular_reader_has_a_kernel():
    def body(x):
        greatest, _ = sort.topk(vw.reshape(iota(shape=(N * 3,), axis=0), shape=(N, 3)), k=1, axis=1)
        return ew.add(x, ew.cast(greatest, dtype=dt.f32))

    module, _ = fused(body, (N, 1))
    assert kernels(module)[:2] == [["iota", "reshape"], ["topk"]]
    assert kinds(module) == {"elementwise": 2, "opaque": 1}


def test_a_layer_of_bert_needs_seven_kernels():
    module, _ = fused(
        lambda x, mask: encoder_layer(x, mask, heads=2), (N, 6, 16), (N, 1, 1, 6), whole=True, tolerance=1e-4
    )
    assert kinds(module) == {"contraction": 4, "attention": 1, "row_reduction": 2}


def test_a_residual_block_needs_a_kernel_for_each_convolution_and_its_padding():
    def body(x):
        x = relu(batch_norm(conv(x, 32, 1)))
        y = relu(batch_norm(conv(x, 16, 1)))
        y = relu(batch_norm(conv(y, 16, 3)))
        y = relu(ew.add(batch_norm(conv(y, 32, 1)), x))
        return rd.reduce_mean(y, axes=(2, 3), keepdims=False)

    module, _ = fused(body, (N, 3, 8, 8), whole=True, tolerance=1e-4)
    assert kinds(module) == {"contraction": 4, "elementwise": 1, "reduction": 1}
    assert kernels(module)[-2] == ["conv_blocked", "add", "add", "max"]


def test_an_inverted_residual_block_is_fused():
    def body(x):
        y = ew.min_(relu(batch_norm(conv(x, 48, 1))), 6.0)
        y = ew.min_(relu(batch_norm(conv(y, 48, 3, groups=48))), 6.0)
        return rd.reduce_max(ew.add(batch_norm(conv(y, 16, 1)), conv(x, 16, 1)), axes=(2, 3), keepdims=False)

    module, _ = fused(body, (N, 3, 8, 8), whole=True, tolerance=1e-4)
    assert kinds(module) == {"contraction": 3, "sliding_window": 1, "reduction": 1}


def test_passes_have_a_text_form():
    names = ",".join(step.name for step in default_passes(Options()))
    passes = [*default_passes(Options()), Fuse(STRATEGIES, max_ops=20)]
    assert parse_passes(f"{names},fuse{{max_ops=20}}", passes_by_name(STRATEGIES)) == passes


def test_parts_that_a_call_alone_knows_are_read_where_they_lie():
    """So kernels for parts at other places, of other sizes, are the same kernel."""
    a, b = var("a", 0), var("b", 0)

    def body(x, y):
        both = ew.exp(vw.concat(x, y, axis=0))
        parts = [vw.section(both, 0, start, size) for start, size in ((0, a), (a, b))]
        return vw.concat(*(vw.transpose(ew.mul(part, part), perm=(1, 0)) for part in parts), axis=1)

    module = program(body, (a, 8), (b, 8))
    run(module, Fuse(STRATEGIES))
    assert ops(module).count("slice") == 2
    assert all("slice" not in kernel for kernel in kernels(module))


@pytest.mark.parametrize("apart", [False, True])
def test_other_parts_are_cut_in_kernels(apart):
    """At a known place, or of elements that lie apart."""
    part = (lambda x: vw.section(x, 1, 0, N - 1)) if apart else (lambda x: vw.section(x, 0, 1, 2))
    module = program(lambda x: ew.exp(part(ew.mul(x, x))), (4, N))
    run(module, Fuse(STRATEGIES))
    assert "slice" not in ops(module)
