"""Extents that are known at run time only: one artefact computes all of them, and loops within decide nothing."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Op
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.loops.nest import enclosing_loops, extent_of
from tilewright.ops import contract, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.norm import softmax
from tilewright.options import Options
from tilewright.runtime.module import Model
from tilewright.target.host import host_target

N, K = var("n", 0), var("k", 1)
RNG = np.random.default_rng(3)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


WEIGHTS = data(96, 80)


@lru_cache
def layer() -> Model:
    module = oracle.build(
        [tensor(dt.f32, (N, 96))],
        lambda x: ew.max_(ew.add(contract.matmul(x, constant(WEIGHTS)), 0.5), 0.0),
    )
    return Model(compile_module(module, Options(), host_target()), 1)


@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 28, 100])
def test_rows_of_a_layer(rows: int) -> None:
    x = data(rows, 96)
    (found,) = layer()(x)
    exact = np.maximum(x.astype(np.float64) @ WEIGHTS + 0.5, 0)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@lru_cache
def attention() -> Model:
    types = [tensor(dt.f32, (2, 3, N, 32)), tensor(dt.f32, (2, 3, K, 32)), tensor(dt.f32, (2, 3, K, 32))]
    module = oracle.build(
        [*types, tensor(dt.f32, (2, 1, 1, K))],
        lambda q, k, v, mask: contract.matmul(
            softmax(ew.add(contract.matmul(q, view.transpose(k, perm=(0, 1, 3, 2))), mask)), v
        ),
    )
    return Model(compile_module(module, Options(), host_target()), 1)


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 70])
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 8, 13, 71, 72, 73])
def test_rows_and_keys_of_attention(rows: int, keys: int) -> None:
    q, k, v, mask = data(2, 3, rows, 32), data(2, 3, keys, 32), data(2, 3, keys, 32), data(2, 1, 1, keys)
    (found,) = attention()(q, k, v, mask)
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True)) if keys else scores
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-5)


def guarded_in_reductions(kernel: Func) -> list[Op]:
    """Loads with conditions in the reduction, which has 96 rounds."""
    return [
        op
        for op in kernel.body.walk()
        if op.name == "load" and op.attrs.get("guard") and enclosing_loops(op)[-1].attrs["kind"] == "vector"
        and any(extent_of(o) == 96 for o in enclosing_loops(op))
    ]  # fmt: skip


def test_no_condition_is_left_in_the_reduction_of_a_layer() -> None:
    module = oracle.build(
        [tensor(dt.f32, (N, 96))], lambda x: ew.add(contract.matmul(x, constant(WEIGHTS)), 0.5)
    )
    oracle.scheduled(module)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    assert any(
        extent_of(o) == 96 for op in kernel.body.walk() if op.name == "load" for o in enclosing_loops(op)
    )
    assert not guarded_in_reductions(kernel)
