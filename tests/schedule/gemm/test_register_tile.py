"""The steps of register tiles, one by one: any tile, with any tail, gives the same product."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.schedule.scheduling import build
from tilewright.graph.fusion.fuse import Fuse
from tilewright.ir import dtype as dt
from tilewright.ir.core import Func, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import buffer, tensor
from tilewright.loops.edit import extent_of, kind_of, loops_in
from tilewright.loops.lower import lower_region
from tilewright.loops.stages import Lowered
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.define.loop_programs import run_kernel
from tilewright.passes import PassContext
from tilewright.schedule.gemm.gemm_axes import assign_axes
from tilewright.schedule.gemm.reduction_nest import one_reduction
from tilewright.schedule.gemm.register_tile import (
    Nest,
    Summation,
    mark,
    sum_in_blocks,
    summation_of,
    tile_sums,
)
from tilewright.schedule.inlining import plan_of
from tilewright.schedule.steps.tiling import column_tiles, innermost_left, loop_around, tile_loop
from tilewright.schedule.strategies import STRATEGIES
from tilewright.schedule.trace import Schedule
from tilewright.target.named import parse_target


def product(x: Value, w: Value) -> Value:
    return ew.max_(contract.matmul(x, w), 0.0)


def costly(x: Value, w: Value) -> Value:
    return ew.tanh(contract.matmul(x, w))


def lowered(rows: int, depth: int, columns: int, body: Callable[..., Value] = product) -> Lowered:
    module = build([tensor(dt.f32, (rows, depth)), tensor(dt.f32, (depth, columns))], body)
    Fuse(STRATEGIES).run(module, PassContext(parse_target("x86-64-v3")))
    (region,) = (op for op in module.main.body.ops if op.name == "fused")
    return lower_region(region, "k", plan_of(region))


def tiled(kernel: Lowered, rows: int, columns: int, lanes: int, tail: str = "guard") -> Summation:
    """Tile a product by the steps alone, its loops in the order columns, rows; how its sums are kept."""
    s = Schedule(kernel.func)
    axes = assign_axes(one_reduction(s, kernel))
    assert axes.row is not None
    around, inner = column_tiles(s, axes.vector, axes.block, columns, lanes)
    over, row = tile_loop(s, axes.row, rows, tail)
    inner = [row, *inner]
    around = loop_around(s, [*around, *over], inner)
    s.reorder(*around, *inner)
    kept = summation_of(axes.sums.stage, inner[-1])
    sums = tile_sums(s, axes.sums.stage, around[-1], axes.tile, lanes, kept)
    s.simplify()
    for nest in sums.nests:
        mark(s, nest)
    mark(s, Nest(around, inner), unrolled=not kept.costly)
    if kept.deep:
        sum_in_blocks(s, sums)
        s.simplify()
    return kept


def check(func: Func, rows: int, depth: int, columns: int, exact: Callable[..., np.ndarray]) -> None:
    rng = np.random.default_rng(rows + depth + columns)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    w = rng.standard_normal((depth, columns)).astype(np.float32)
    y = np.zeros((rows, columns), np.float32)
    run_kernel(func, [x, w, y], {})
    np.testing.assert_allclose(y, exact(x.astype(np.float64) @ w), rtol=1e-4, atol=1e-4)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


@pytest.mark.parametrize("tail", ["guard", "overlap"])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((12, 5, 32), (4, 2, 16)), ((11, 5, 37), (4, 2, 16)), ((7, 3, 5), (7, 1, 8)), ((9, 4, 40), (3, 1, 8))],
)
def test_any_tile_gives_the_product(shape: tuple[int, ...], tile: tuple[int, ...], tail: str) -> None:
    kernel = lowered(*shape)
    kept = tiled(kernel, *tile, tail)
    assert not kept.costly and not kept.deep
    check(kernel.func, *shape, relu)
    vectors = [o for o in loops_in(kernel.func.body) if kind_of(o) == "vector"]
    assert len(vectors) == 3  # cleared, summed, read
    assert all(extent_of(o) == tile[2] for o in vectors)


def test_sums_of_a_tile_are_in_registers() -> None:
    kernel = lowered(12, 5, 32)
    tiled(kernel, 4, 2, 16)
    (sums,) = (op.result for op in kernel.func.body.walk() if op.name == "alloc")
    assert sums.type == buffer(dt.f32, (4, 32), space="reg")


def test_a_costly_epilogue_reads_sums_from_memory_in_a_loop() -> None:
    kernel = lowered(12, 5, 32, costly)
    assert tiled(kernel, 4, 2, 16) == Summation(costly=True)
    check(kernel.func, 12, 5, 32, np.tanh)
    spaces = [op.result.type.space for op in kernel.func.body.walk() if op.name == "alloc"]  # type: ignore[union-attr]
    assert sorted(spaces) == ["reg", "scratch"]
    assert sum(op.name == "tanh" for op in kernel.func.body.walk()) == 1
    around = [o for o in loops_in(kernel.func.body) if any(op.name == "tanh" for op in o.walk())]
    assert [kind_of(o) for o in around].count("unroll") == 0


def test_deep_sums_are_added_up_in_blocks() -> None:
    kernel = lowered(4, 1000, 16)
    assert tiled(kernel, 4, 1, 16).deep
    check(kernel.func, 4, 1000, 16, relu)
    depths = {extent_of(o).value for o in loops_in(kernel.func.body) if kind_of(o) == "serial"}
    assert all(n < 1000 for n in depths)


def test_what_sums_over_no_axis_is_refused() -> None:
    kernel = lowered(4, 3, 16)
    s = Schedule(kernel.func)
    axes = assign_axes(one_reduction(s, kernel))
    axes.sums.stage.reduce.clear()
    with pytest.raises(ScheduleError, match="it sums over no axis"):
        tile_sums(s, axes.sums.stage, axes.outer[0] if axes.outer else axes.sums.loops[0], axes.tile, 16)


def test_the_innermost_loop_that_is_left() -> None:
    kernel = lowered(4, 3, 1)
    loops = kernel.stages[0].axes
    assert extent_of(loops[1]) == 1
    Schedule(kernel.func).simplify()
    assert innermost_left(loops) is loops[0]
    assert innermost_left(loops[1:]) is None
