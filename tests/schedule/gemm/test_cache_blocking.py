"""Blocks of large contractions: what is chosen, and that kernels cut into blocks compute the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.schedule import scheduling as oracle
from tilewright.compilation import Compilation, Setting
from tilewright.compiler import compile_module
from tilewright.cost.gemm.cache_blocking import Blocks, candidate_blocks, count, footprint
from tilewright.cost.gemm.cost_model import Choice, Decision, candidates, choose, cycles
from tilewright.cost.gemm.register_tile import GemmShape, Tile
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Module, Op, Value, substitute
from tilewright.ir.sym import ZERO
from tilewright.ir.types import tensor
from tilewright.loops.edit import (
    address_of,
    body_of,
    enclosing_loops,
    extent_of,
    is_loop,
    kind_of,
    loops_in,
)
from tilewright.loops.kernel_info import kernel_info
from tilewright.ops import blocked, contract, quant
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.options import Options
from tilewright.passes import PassContext
from tilewright.runtime.module import Model
from tilewright.schedule.gemm import gemm_plan
from tilewright.schedule.sharing.kernels import schedule_regions
from tilewright.schedule.strategies import STRATEGIES
from tilewright.target.hardware import Caches
from tilewright.target.host import host_target
from tilewright.target.named import parse_target
from tilewright.target.target import Target

SMALL = Caches(l1d=32 << 10, l2=96 << 10, l3=1 << 20)
"""So small an L2 that small matrices are cut into blocks."""

LARGE = GemmShape(
    rows=1024, columns=64, depth=1024, lanes=16, stride=4096, run=16, outer_depth=1024, packed=True
)
TILE = Tile(13, 2, 16)


def data(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


@pytest.fixture
def blocks_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the cheapest decision with blocks where there is one: small cases are not worth it otherwise."""

    def choose_blocks(shape: GemmShape, target: Target) -> Choice:
        cut = [d for d in candidates(shape, target) if d.blocks is not None]
        if not cut:
            return choose(shape, target)
        return Choice(min(cut, key=lambda d: cycles(shape, d, target)), 0.0, len(cut), ())

    monkeypatch.setattr(gemm_plan, "choose", choose_blocks)


def machine(l2: int, cores: int = 2) -> Target:
    return replace(parse_target("x86-64-v4"), caches=Caches(32 << 10, l2, 32 << 20), cores=cores)


@pytest.mark.parametrize("cores", [1, 2, 6, 16])
def test_candidates_fit_the_cache_and_the_first_give_every_core_the_same_work(cores: int) -> None:
    for l2 in (256 << 10, 512 << 10, 1 << 20, 2 << 20):
        found = candidate_blocks(LARGE, TILE, machine(l2, cores), 2)
        assert found and all(
            footprint(LARGE, TILE, b.rows, b.columns, b.depth) <= l2 and LARGE.depth % b.depth == 0
            for b in found
        )
        iterations = -(-LARGE.rows // found[0].rows) * -(-32 // found[0].columns)
        assert -(-iterations // cores) * cores <= 1.2 * iterations


@pytest.mark.parametrize("l2", [512 << 10, 1 << 20])
def test_the_longest_products_have_blocks_that_fit_too(l2: int) -> None:
    shape = replace(LARGE, rows=8192, columns=512, depth=8192, outer_depth=8192)
    found = candidate_blocks(shape, TILE, machine(l2, 1), 2)
    assert found and all(footprint(shape, TILE, b.rows, b.columns, b.depth) <= l2 for b in found)


def test_footprint_counts_rows_sums_and_two_panels() -> None:
    # 26 rows of 64 and of 2*32 sums, panels of 64*32
    blocks = Blocks(rows=26, columns=2, depth=64)
    assert footprint(LARGE, TILE, blocks.rows, blocks.columns, blocks.depth) == 4 * (
        26 * 64 + 26 * 64 + 2 * 64 * 32
    )


def test_rows_are_copied_in_runs_that_divide_a_piece() -> None:
    shape = replace(LARGE, depth=1376, outer_depth=1376)  # 344 is the longest piece, and no multiple of 16
    pieces = {b.depth for b in candidate_blocks(shape, TILE, machine(1 << 20), 2)}
    assert pieces and all(1376 % piece == 0 and piece % 16 == 0 for piece in pieces)


def test_no_blocks_where_none_fits() -> None:
    assert candidate_blocks(LARGE, TILE, machine(4 << 10), 2) == []


BATCH = GemmShape(
    rows=3136, columns=16, depth=448, lanes=16, lines=8, stride=64, outer_depth=28, exact_columns=True, packed=True
)  # fmt: skip
"""A convolution with windows of one point over images of 56x56, a batch of eight."""


def test_blocks_are_parts_of_lines_where_no_whole_line_fits() -> None:
    tile, target = Tile(6, 4, 16), machine(1 << 20)
    found = candidate_blocks(BATCH, tile, target, 2)
    assert found and all(b.rows < BATCH.rows for b in found)
    assert count(BATCH, tile, found[0]) == 8 * count(replace(BATCH, lines=1), tile, found[0])
    short = candidate_blocks(replace(BATCH, rows=49), tile, target, 2)
    assert short and all(b.rows % 49 == 0 for b in short)


def test_a_batch_is_computed_as_its_images_are() -> None:
    target = replace(parse_target("zen5"), caches=Caches(48 << 10, 1 << 20, 32 << 20), cores=1)
    batch, image = (choose(s, target) for s in (BATCH, replace(BATCH, lines=1)))
    assert batch.decision.blocks is not None and batch.decision == image.decision


def test_rows_that_do_not_stay_in_l3_are_read_once() -> None:
    tile = Tile(6, 4, 16)
    both = [Decision(tile, columns_outside=outside) for outside in (True, False)]
    outside, inside = (cycles(BATCH, d, machine(1 << 20)) for d in both)  # 45 MB of rows, 32 MB of L3
    assert inside < outside
    few = replace(BATCH, lines=2)
    outside, inside = (cycles(few, d, machine(1 << 20)) for d in both)
    assert inside >= outside


Body = Callable[..., Value]
WEIGHTS = {shape: data(*shape) for shape in ((256, 96), (256, 100), (250, 64), (131, 64), (1031, 96))}
POINTWISE = data(64, 128, 1, 1)


WINDOWS = data(64, 64, 3, 3)


def strided_windows(x: np.ndarray) -> np.ndarray:
    """The sums over windows of 3x3 with stride 2."""
    seen = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,ocij->nohw", seen, WINDOWS.astype(np.float64))


def layer(*shape: int) -> Body:
    return lambda x: ew.max_(ew.add(contract.matmul(x, constant(WEIGHTS[shape])), 0.5), 0.0)


def exact_layer(*shape: int) -> Callable[..., np.ndarray]:
    return lambda x: np.maximum(x @ WEIGHTS[shape] + 0.5, 0)


def costly(x: Value) -> Value:
    y = contract.matmul(x, constant(WEIGHTS[256, 96]))
    return ew.mul(y, ew.tanh(y))


CASES: dict[str, tuple[Body, Callable[..., np.ndarray], tuple[np.ndarray, ...]]] = {
    "whole tiles": (layer(256, 96), exact_layer(256, 96), (data(112, 256),)),
    "rows that are left": (layer(256, 96), exact_layer(256, 96), (data(97, 256),)),
    "columns that are left": (layer(256, 100), exact_layer(256, 100), (data(64, 256),)),
    "depth with short runs": (layer(250, 64), exact_layer(250, 64), (data(64, 250),)),
    "a depth that is prime": (layer(131, 64), exact_layer(131, 64), (data(90, 131),)),
    "a batch": (layer(256, 96), exact_layer(256, 96), (data(3, 60, 256),)),
    "a costly epilogue": (
        costly, lambda x: (y := x @ WEIGHTS[256, 96]) * np.tanh(y), (data(80, 256),),
    ),
    "a residual": (
        lambda x, r: ew.add(contract.matmul(x, constant(WEIGHTS[256, 96])), r),
        lambda x, r: x @ WEIGHTS[256, 96] + r,
        (data(80, 256), data(80, 96)),
    ),
    "both operands computed": (
        lambda x, y: contract.matmul(x, y), lambda x, y: x @ y, (data(80, 256), data(256, 96)),
    ),
    "windows of images": (
        lambda x: contract.conv(x, constant(WINDOWS), pads_begin=(1, 1), pads_end=(1, 1), strides=(2, 2)),
        lambda x: strided_windows(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))),
        (data(1, 64, 14, 14),),
    ),
    "points of images": (
        lambda x: contract.conv(x, constant(POINTWISE)),
        lambda x: np.einsum("oc,nchw->nohw", POINTWISE[:, :, 0, 0].astype(np.float64), x),
        (data(1, 128, 12, 12),),
    ),
}  # fmt: skip


def module_of(name: str) -> tuple[Module, list[np.ndarray], np.ndarray]:
    """The module of a case, its inputs, and the result in float64."""
    body, exact, arrays = CASES[name]
    module = oracle.build([tensor(dt.f32, a.shape) for a in arrays], body)
    return module, list(arrays), exact(*(a.astype(np.float64) for a in arrays))


def with_small_cache(target: Target) -> Target:
    return replace(target, caches=SMALL, cores=2)


def is_blocked(kernel: Func) -> bool:
    """Whether sums of a block are kept in scratch memory beside those of a tile in registers."""
    spaces = [op.result.type.space for op in kernel.body.walk() if op.name == "alloc"]  # type: ignore[union-attr]
    return "scratch" in spaces and "reg" in spaces


@pytest.mark.sweep
@pytest.mark.parametrize("narrow", [False, True], ids=["all registers", "half of them"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("blocks_wanted")
def test_blocks_compute_the_same(name: str, threads: int, narrow: bool) -> None:
    module, arrays, exact = module_of(name)
    target = with_small_cache(host_target())
    if narrow:
        bits = max(128, target.vector_bits // 2)
        target = replace(target, vector_bits=bits, vector_registers=16, embedded_broadcast=False)
    (found,) = Model(compile_module(module, Options(), target), threads)(*arrays)
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def kernel_of(name: str, target: Target) -> Func:
    module, _, _ = module_of(name)
    ctx = PassContext(target)
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, target, STRATEGIES, ctx.remarks)
    (kernel,) = (f for f in module.funcs.values() if f.level == "loops")
    return kernel


@pytest.mark.usefixtures("blocks_wanted")
def test_a_deep_layer_is_blocked_packed_prefetched_and_parallel() -> None:
    kernel = kernel_of("rows that are left", with_small_cache(parse_target("x86-64-v4")))
    assert is_blocked(kernel)
    assert kind_of(loops_in(kernel.body)[0]) == "parallel"
    assert list(kernel_info(kernel).packed) == [1]
    assert any(op.name == "prefetch" for op in kernel.body.walk())


@pytest.mark.usefixtures("blocks_wanted")
@pytest.mark.parametrize("positions", [667, 672])
def test_each_image_of_a_batch_is_cut_into_blocks(positions: int) -> None:
    weights, x = data(16 * 16, 8 * 16, 1), data(3, 8, positions, 16)
    middle = replace(SMALL, l2=256 << 10)  # an image is larger, a part of one is not
    target = replace(host_target(), caches=middle, cores=2)

    def module() -> Module:
        return oracle.build(
            [tensor(dt.f32, x.shape)], lambda v: blocked.conv_blocked(v, constant(weights), block=16)
        )

    scheduled = module()
    Compilation(scheduled, Setting.of(Options(), target)).run("scheduled")
    (kernel,) = (f for f in scheduled.funcs.values() if f.level == "loops")
    assert is_blocked(kernel)
    (found,) = Model(compile_module(module(), Options(), target), 2)(x)
    lines = x.astype(np.float64).transpose(0, 1, 3, 2).reshape(3, 128, positions)
    exact = np.einsum("oc,ncp->nop", weights[:, :, 0], lines).reshape(3, 16, 16, positions)
    np.testing.assert_allclose(found, exact.transpose(0, 1, 3, 2), rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_a_layer_whose_rows_fit_is_not_blocked() -> None:
    roomy = replace(parse_target("x86-64-v4"), caches=Caches(), cores=2)
    assert not is_blocked(kernel_of("whole tiles", roomy))


def integer_product(rows: int) -> tuple[Module, np.ndarray, np.ndarray]:
    """(x - 9) @ w of bytes: the module, x, and the product in int64."""
    rng = np.random.default_rng(rows)
    x, w = rng.integers(0, 256, (rows, 1024), np.uint8), rng.integers(-128, 128, (1024, 112), np.int8)
    zeros = np.array(9, np.uint8), np.array(0, np.int8)
    module = oracle.build(
        [tensor(dt.u8, x.shape)], lambda v: quant.matmul_integer(v, *map(constant, (w, *zeros)))
    )
    return module, x, (x.astype(np.int64) - 9) @ w.astype(np.int64)


@pytest.mark.usefixtures("blocks_wanted")
@pytest.mark.parametrize("machine", ["cascadelake", "x86-64-v3", "neoverse-n1"])
def test_integers_that_are_multiplied_in_groups_are_cut_into_blocks(machine: str) -> None:
    module, _, _ = integer_product(96)
    Compilation(module, Setting.of(Options(), with_small_cache(parse_target(machine)))).run("scheduled")
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    (kernel,) = (f for f in kernels if any(is_loop(o) and kind_of(o) == "dot" for o in f.body.walk()))
    assert is_blocked(kernel)


@pytest.mark.usefixtures("blocks_wanted")
@pytest.mark.parametrize("rows", [96, 70])
def test_blocks_of_integers_compute_the_same(rows: int) -> None:
    module, x, exact = integer_product(rows)
    (found,) = Model(compile_module(module, Options(), with_small_cache(host_target())), 2)(x)
    np.testing.assert_array_equal(found, exact)


def prefetches(rows: int, depth: int = 256) -> list[Op]:
    """What asks for the weights of a layer over so many rows ahead of time; they exceed the cache."""
    module = oracle.build([tensor(dt.f32, (rows, depth))], layer(depth, 96))
    ctx = PassContext(with_small_cache(parse_target("x86-64-v4")))
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, ctx.target, STRATEGIES, ctx.remarks)
    kernels = [f for f in module.funcs.values() if f.level == "loops"]
    return [op for f in kernels for op in f.body.walk() if op.name == "prefetch"]


def test_weights_are_asked_for_ahead_where_they_are_read_again() -> None:
    assert prefetches(rows=64) and not prefetches(rows=1)


def test_of_weights_that_are_read_once_those_of_later_steps_are_asked_for() -> None:
    first, *others = prefetches(rows=5)
    (step,) = [o for o in enclosing_loops(first) if kind_of(o) == "serial"]
    width = 16 * (1 + len(others))  # one request for each vector of the tile
    distance = substitute(address_of(first), dict.fromkeys(address_of(first).vars, ZERO)).value
    assert extent_of(step) == 256
    assert 4096 <= 4 * distance < 4096 + 4 * width


def test_a_deep_sum_in_parts_asks_for_its_weights_step_by_step() -> None:
    asked = prefetches(rows=64, depth=1031)  # a prime: no blocks, parts of 256 terms and a tail
    step = enclosing_loops(asked[0])[-1]
    (terms,) = (o for o in body_of(step).ops if is_loop(o))
    assert extent_of(step) == extent_of(terms) == 16  # of a part
    panel_lines = 1031 * 32 // 16
    assert len(asked) == math.ceil(panel_lines / (5 * 64))  # five row tiles of 64 steps each share a panel


def test_a_layer_that_is_not_blocked_says_why() -> None:
    module, _, _ = module_of("points of images")
    ctx = PassContext(replace(parse_target("x86-64-v4"), caches=Caches(), cores=2))
    Fuse(STRATEGIES).run(module, ctx)
    schedule_regions(module, ctx.target, STRATEGIES, ctx.remarks)
    assert any("not cut into blocks: " in str(remark) for remark in ctx.remarks)
