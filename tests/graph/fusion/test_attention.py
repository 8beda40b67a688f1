"""Attention as one kernel: where the two products and the work on the rows between them are merged."""

from __future__ import annotations

import pytest

from tests.graph.programs import encoder_layer, kinds, layer_norm, program, run, softmax, weights
from tilewright.graph.fusion.fuse import Fuse
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops import contract as ct
from tilewright.ops import elementwise as ew
from tilewright.ops import norm
from tilewright.ops import view as vw
from tilewright.ops.source import full
from tilewright.options import Options
from tilewright.schedule.strategies import STRATEGIES

N = var("n", 1)


def fused(body, *shapes):
    module = program(body, *shapes)
    ctx = run(module, *default_passes(Options()), Fuse(STRATEGIES), tolerance=2e-5)
    return module, " ".join(map(str, ctx.remarks))


def attention(q, k, v, mask=None, scale=0.25):
    scores = ew.mul(ct.matmul(q, vw.transpose(k, perm=(0, 1, 3, 2))), scale)
    return ct.matmul(softmax(scores if mask is None else ew.add(scores, mask)), v)


HEADS = ((2, 3, 9, 16), (2, 3, 11, 16), (2, 3, 11, 16))


@pytest.mark.parametrize("mask", [(2, 1, 1, 11), (9, 11), (2, 3, 9, 11), ()])
def test_attention_with_an_added_mask_is_one_kernel(mask):
    module, _ = fused(attention, *HEADS, mask)
    assert kinds(module) == {"attention": 1}


def test_scaled_operands_and_chosen_scores_are_one_kernel():
    def body(q, k, v, allowed):
        left, right = ew.mul(q, 0.5), vw.transpose(ew.mul(k, 0.5), perm=(0, 1, 3, 2))
        nothing = full(value=-1e9, dtype=dt.f32, shape=())
        return ct.matmul(softmax(ew.select(allowed, ct.matmul(left, right), nothing)), v)

    module, _ = fused(body, *HEADS, tensor(dt.bool_, (1, 1, 9, 11)))
    assert kinds(module) == {"attention": 1}


def test_heads_are_read_and_written_in_place():
    def body(x, mask):
        return encoder_layer(x, mask, heads=4)

    module, _ = fused(body, (2, 10, 32), (2, 1, 1, 10))
    assert kinds(module)["attention"] == 1
    assert sum(kinds(module).values()) == 7


def test_a_query_of_heads_that_share_keys_is_one_kernel():
    def body(q, k, v):
        def repeated(x):
            wide = vw.expand(vw.reshape(x, shape=(1, 2, 1, 11, 16)), shape=(1, 2, 4, 11, 16))
            return vw.reshape(wide, shape=(1, 8, 11, 16))

        scores = ew.mul(ct.matmul(q, vw.transpose(repeated(k), perm=(0, 1, 3, 2))), 0.25)
        return ct.matmul(norm.softmax(scores), repeated(v))

    module, _ = fused(body, (1, 8, 1, 16), (1, 2, 11, 16), (1, 2, 11, 16))
    assert kinds(module) == {"attention": 1}


def test_unknown_lengths():
    module, _ = fused(attention, (2, 3, N, 16), (2, 3, N, 16), (2, 3, N, 16), (2, 1, 1, N))
    assert kinds(module) == {"attention": 1}


def scores_are_a_result(q, k, v):
    scores = ct.matmul(q, k)
    return ct.matmul(softmax(scores), v), scores


def weights_are_a_result(q, k, v):
    found = softmax(ct.matmul(q, k))
    return ct.matmul(found, v), found


def weights_of_the_keys(q, k, v):
    return ct.matmul(softmax(ct.matmul(q, k)), v, transpose_a=True)


def another_shape(q, k, v):
    rows = vw.reshape(ct.matmul(q, k), shape=(6, 9, 12))
    return ct.matmul(softmax(vw.reshape(rows, shape=(6, 3, 36))), v)


REFUSED = {
    scores_are_a_result: ("the scores are needed elsewhere too", (9, 16), (16, 12), (12, 16)),
    weights_are_a_result: ("the weights are needed elsewhere too", (9, 16), (16, 12), (12, 16)),
    weights_of_the_keys: ("the second product reads the rows as columns", (9, 16), (16, 12), (9, 16)),
    another_shape: ("the rows are not those of the first product", (6, 9, 16), (6, 16, 12), (6, 36, 8)),
}


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: body.__name__)
def test_a_refusal_tells_its_reason(body):
    reason, *shapes = REFUSED[body]
    module, remarks = fused(body, *shapes)
    assert "attention" not in kinds(module)
    assert reason in remarks


def test_layers_with_weights_are_not_attention():
    module, remarks = fused(
        lambda x: ct.matmul(layer_norm(ct.matmul(x, weights(16, 24))), weights(24, 8)), (9, 16)
    )
    assert "attention" not in kinds(module)
    assert "one of the products is with a constant" in remarks


def test_half_precision_is_computed_in_float32():
    shapes = [tensor(dt.f16, s) for s in ((9, 16), (16, 12), (12, 16))]

    def body(q, k, v):
        return ct.matmul(ew.cast(softmax(ew.cast(ct.matmul(q, k), dtype=dt.f32)), dtype=dt.f16), v)

    module = program(body, *shapes)
    run(module, *default_passes(Options()), Fuse(STRATEGIES), tolerance=2e-2)
    assert kinds(module)["attention"] == 1


def test_double_precision_is_refused():
    shapes = [tensor(dt.f64, s) for s in ((9, 16), (16, 12), (12, 16))]
    module = program(lambda q, k, v: ct.matmul(softmax(ct.matmul(q, k)), v), *shapes)
    ctx = run(module, *default_passes(Options()), Fuse(STRATEGIES), tolerance=1e-9)
    assert "attention" not in kinds(module)
    assert "the register tiles are for f32" in " ".join(map(str, ctx.remarks))
