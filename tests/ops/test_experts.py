"""Mixtures of experts: the sum over the experts that each token takes, however tokens are shared out."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.compiler import compile_module
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Func, Module, Value
from tilewright.ir.sym import var
from tilewright.ir.types import tensor
from tilewright.ops.composites.experts import mixed_experts
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.define.interp import evaluate_func
from tilewright.ops.index import gather
from tilewright.options import Options
from tilewright.runtime import Model
from tilewright.target.named import host_target

WIDTH, OUT = 12, 20


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def mixture(stack: np.ndarray, each: int) -> Module:
    module, n = Module(), var("n", 0)
    types = [tensor(dt.f32, (n, WIDTH)), tensor(dt.i64, (n, each)), tensor(dt.f32, (n, each))]
    block = Block(types, ["x", "chosen", "weights"])
    module.add(Func("main", block, attrs={"inputs": ("x", "chosen", "weights"), "outputs": ("y",), "nodes": 1}))
    with Builder(block, module) as builder:
        weights = constant(stack, "w")

        def layers(rows: Value, at: Value) -> Value:
            return matmul(rows, gather(weights, at, axis=0, in_range=True))

        builder.emit("return", [mixed_experts(*block.args, len(stack), layers)])
    return module


def chosen_by(how: str, rng: np.random.Generator, tokens: int, experts: int, each: int) -> np.ndarray:
    if how == "one":  # all tokens take the same
        return np.tile(rng.permutation(experts)[:each], (tokens, 1))
    if how == "last":
        return np.tile(np.arange(experts)[::-1][:each], (tokens, 1))
    return np.array([rng.permutation(experts)[:each] for _ in range(tokens)], np.int64).reshape(tokens, each)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(("experts", "each"), [(1, 1), (4, 1), (4, 2), (3, 3), (16, 4), (64, 8)])
def test_each_token_gets_its_experts(rng: np.random.Generator, experts: int, each: int) -> None:
    stack = rng.standard_normal((experts, WIDTH, OUT)).astype(np.float32)
    with Model(compile_module(mixture(stack, each), Options(threads=1, verify=True), host_target())) as model:
        for tokens in (1, 2, 5, 17, 64, 0, 1):
            for how in ("drawn", "one", "last"):
                x = rng.standard_normal((tokens, WIDTH)).astype(np.float32)
                chosen = chosen_by(how, rng, tokens, experts, each)
                weights = rng.random((tokens, each), np.float32)
                (found,) = model(x, chosen, weights)
                wanted = np.einsum("nw,nkwo,nk->no", x.astype(np.float64), stack[chosen], weights)
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4, err_msg=f"{tokens} tokens, {how}")


def test_what_is_infinite_for_others_does_not_matter(rng: np.random.Generator) -> None:
    """Rows of tiles that belong to nobody hold the first token, and are not read."""
    stack = rng.standard_normal((4, WIDTH, OUT)).astype(np.float32)
    module = mixture(stack, 2)
    x = rng.standard_normal((9, WIDTH)).astype(np.float32)
    x[0] = np.inf
    chosen, weights = chosen_by("drawn", rng, 9, 4, 2), np.ones((9, 2), np.float32)
    (slow,) = evaluate_func(module.main, module, [x, chosen, weights])
    with Model(compile_module(module, Options(threads=1), host_target())) as model:
        (found,) = model(x, chosen, weights)
    assert np.isfinite(found[1:]).all()
    np.testing.assert_allclose(found[1:], slow[1:], rtol=1e-4, atol=1e-4)
