"""Extents that are known at run time only: one artefact computes all of them, and loops within decide nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compiler import compile_module
from tilewright.graph.pipeline import default_passes
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Func, Module, Op, Value
from tilewright.ir.sym import Sym, sym, var
from tilewright.ir.types import product, tensor
from tilewright.loops.edit import enclosing_loops, extent_of, is_loop
from tilewright.loops.spec import versions_of
from tilewright.ops import contract, pool, view
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.norm import softmax
from tilewright.options import Options
from tilewright.passes import PassContext, run_passes
from tilewright.runtime.module import Model
from tilewright.target.host import host_target
from tilewright.target.named import parse_target

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


WIDE = data(96, 640)


@lru_cache
def wide_layer() -> Model:
    module = oracle.build(
        [tensor(dt.f32, (2, N, 96))],
        lambda x: ew.max_(ew.add(contract.matmul(x, constant(WIDE)), 0.5), 0.0),
    )
    return Model(compile_module(module, Options(), host_target()), 2)


@pytest.mark.parametrize("rows", range(31))
def test_rows_of_a_layer_with_tiles_of_two_sizes(rows: int) -> None:
    x = data(2, rows, 96)
    (found,) = wide_layer()(x)
    exact = np.maximum(x.astype(np.float64) @ WIDE + 0.5, 0)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("target", ["x86-64-v3,cores=2", "x86-64-v4,cores=2"])
def test_the_last_rows_have_smaller_tiles(target: str) -> None:
    """Of 20 rows no more than three are computed twice; the columns of an iteration are those of a tile."""
    module = oracle.build(
        [tensor(dt.f32, (2, N, 96))], lambda x: ew.add(contract.matmul(x, constant(WIDE)), 0.5)
    )
    oracle.scheduled(module, target)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    (dim,) = kernel.dims
    stores = [
        op for op in kernel.body.ops[0].walk() if op.name == "store" and op.operands[1] is kernel.args[-1]
    ]
    counts = [product(extent_of(o) for o in enclosing_loops(op)).subs({dim: sym(20)}).value for op in stores]
    assert 2 * 20 * 640 <= sum(counts) <= 2 * 23 * 640


def test_few_columns_leave_rows_for_threads_to_share() -> None:
    module = oracle.build(
        [tensor(dt.f32, (N, 96))], lambda x: ew.add(contract.matmul(x, constant(WEIGHTS)), 0.5)
    )
    ctx = oracle.scheduled(module, "x86-64-v3,cores=8")
    assert any("no smaller tiles for the last rows" in r.message for r in ctx.remarks)


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


@pytest.mark.sweep
@pytest.mark.parametrize("keys", [1, 15, 16, 17, 70])
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 8, 13, 71, 72, 73])
def test_rows_and_keys_of_attention(rows: int, keys: int) -> None:
    q, k, v, mask = data(2, 3, rows, 32), data(2, 3, keys, 32), data(2, 3, keys, 32), data(2, 1, 1, keys)
    (found,) = attention()(q, k, v, mask)
    scores = q.astype(np.float64) @ k.swapaxes(-1, -2).astype(np.float64) + mask
    powers = np.exp(scores - scores.max(-1, keepdims=True)) if keys else scores
    np.testing.assert_allclose(found, powers / powers.sum(-1, keepdims=True) @ v, rtol=1e-5, atol=1e-5)


def guarded_in_reductions(kernel: Func) -> list[Op]:
    """Loads with conditions in the reduction, which has 96 iterations."""
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


# Kernels for large dims: the same steps as for constant ones, and no condition in the innermost loops

H, W = var("h", 0), var("w", 0)
FILTERS, KERNELS = data(24, 16, 3, 3), data(32, 1, 3, 3)


def convolved(x: Value) -> Value:
    return contract.conv(x, constant(FILTERS), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1))


def depthwise(x: Value) -> Value:
    return contract.conv(x, constant(KERNELS), groups=32, pads_begin=(1, 1), pads_end=(1, 1))


def pooled(x: Value) -> Value:
    return pool.max_pool(x, kernel=(3, 3), strides=(2, 2), pads_begin=(1, 1), pads_end=(1, 1))


def averaged(x: Value) -> Value:
    return ew.mul(pool.sum_pool(x, kernel=(3, 2), strides=(1, 1), pads_begin=(1, 0), pads_end=(1, 1)), 1 / 6)


OPERATORS = {
    "layer": (lambda rows, _: (rows, 96), lambda x: contract.matmul(x, constant(WEIGHTS))),
    "strided convolution": (lambda h, w: (2, 16, h, w), convolved),
    "depthwise convolution": (lambda h, w: (2, 32, h, w), depthwise),
    "greatest of windows": (lambda h, w: (2, 3, h, w), pooled),
    "means of windows": (lambda h, w: (2, 3, h, w), averaged),
    "transpose": (lambda h, w: (h, w), lambda x: view.transpose(x, perm=(1, 0))),
}


def program(name: str, *extents: Any) -> Module:
    shape, body = OPERATORS[name]
    return oracle.build([tensor(dt.f32, shape(*extents))], body)


@lru_cache
def of_any_size(name: str) -> Model:
    return Model(compile_module(program(name, H, W), Options(), host_target()), 1)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "size", [(1, 2), (1, 1), (3, 2), (4, 9), (9, 17), (16, 5), (15, 33), (37, 40), (3, 67)]
)
@pytest.mark.parametrize("name", OPERATORS)
def test_every_size_is_computed_right(name: str, size: tuple[int, int]) -> None:
    x = data(*OPERATORS[name][0](*size))
    module = program(name, *size)
    (wanted,) = oracle.expected(module, [x])
    (found,) = of_any_size(name)(x)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def kernels(name: str, target: str, *extents: Any) -> list[Func]:
    module = program(name, *extents)
    ctx = PassContext(parse_target(target), Options())
    run_passes(module, default_passes(ctx.options), ctx)
    oracle.scheduled(module, target)
    return [f for f in module.funcs.values() if f.level == "loops"]


def conditions(body: Block) -> int:
    """How many conditions there are on vectors and on the rows of tiles."""
    inner = [op for op in body.walk() if op.attrs.get("guard") and enclosing_loops(op)]
    return sum(
        len(op.attrs["guard"])
        for op in inner
        if enclosing_loops(op)[-1].attrs["kind"] in ("vector", "unroll")
    )


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", OPERATORS)
def test_large_dims_need_no_more_conditions_than_constant_ones(name: str, target: str) -> None:
    of_constant, of_any = kernels(name, target, 101, 75), kernels(name, target, H, W)
    assert len(of_constant) == len(of_any)
    assert any(len(versions_of(f.body)) > 1 for f in of_any)
    for constant_kernel, kernel in zip(of_constant, of_any, strict=True):
        assert conditions(versions_of(kernel.body)[0]) <= conditions(constant_kernel.body)


def test_what_needs_no_large_dims_has_one_version() -> None:
    module = oracle.build([tensor(dt.f32, (N, 96))], lambda x: ew.add(x, 1.0))
    oracle.scheduled(module)
    assert [len(versions_of(f.body)) for f in module.funcs.values() if f.level == "loops"] == [1]


def test_windows_of_long_rows_decide_nothing_in_lanes() -> None:
    """Between the first and the last tile, a row of unknown length is read in whole vectors without conditions."""
    (kernel,) = kernels("greatest of windows", "x86-64-v4", H, W)
    body = versions_of(kernel.body)[0]
    tiles = [op for op in body.walk() if is_loop(op) and op.attrs.get("overlap")]
    (interior,) = tiles
    lanes = [op for op in interior.walk() if is_loop(op) and op.attrs["kind"] == "vector"]
    assert lanes and all(extent_of(op) == 16 for op in lanes)
    loads = [op for op in interior.walk() if op.name == "load"]
    assert loads and not [op for op in loads if op.attrs.get("guard")]
    moving = {op.attrs["var"] for op in lanes}
    for op in loads:
        assert not [i for i in op.attrs["idx"] if moving & i.vars and {"mod", "floordiv"} & kinds(i)]


def kinds(e: Sym) -> set[str]:
    """The kinds of all nodes of an expression."""
    return {e.kind}.union(*map(kinds, e.args)) if e.kind not in ("const", "var") else {e.kind}
