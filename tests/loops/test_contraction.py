"""The way from a plain product to a tiled, packed, vectorised one: each step keeps the meaning."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops import programs
from tilewright.ir.core import Func, Op
from tilewright.ir.sym import var
from tilewright.loops.conditions.simplify import simplify
from tilewright.loops.edit import body_of, kind_of, loops_in
from tilewright.loops.kernel_info import kernel_info
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.loops.order.compute_at import compute_at
from tilewright.loops.order.fission import fission
from tilewright.loops.order.parallel import parallel
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import split
from tilewright.loops.storage.cache import cache_write
from tilewright.loops.storage.pack import pack, pack_argument
from tilewright.loops.storage.packing import Packing, apply_packing


def tile_product(
    func: Func, tail: str = "guard", guard: str = "loads", rows: int = 6, columns: int = 8
) -> None:
    """Tiles of rows x columns in registers, both operands packed, the epilogue in the tile."""
    nests = [op for op in func.body.ops if op.name == "for"]
    product = func.body.ops[0].result
    over_m, over_n = loops_in(nests[-1])
    n = split(func, over_n, columns, "guard")
    m = split(func, over_m, rows, tail)
    reorder(func, n.outer, m.outer, m.inner, n.inner)
    fused = compute_at(func, product, m.outer, "reg", guard)
    i, j, k = loops_in(fused.nests[0])
    clear = next(op for op in j.walk() if op.name == "store")
    parts = fission(func, clear, 2)
    reorder(func, k, i, j)
    pack_argument(func, func.args[1], Packing(((), (columns,)), (1, 0, 2)))
    pack(func, func.args[0], m.outer, Packing(((), ()), (1, 0)))
    for loop in (j, parts.before[1], n.inner):
        unroll(func, vectorize(func, loop, 4).outer)
    for loop in (i, parts.before[0], m.inner):
        unroll(func, loop)
    parallel(func, n.outer)
    simplify(func)


def run_packed(func: Func, arrays: list[np.ndarray], env: dict[str, int]) -> np.ndarray:
    packed = kernel_info(func).packed[1]
    (out,) = programs.run(func, [arrays[0], apply_packing(arrays[1], packed), *arrays[2:]], env)
    return out


@pytest.mark.parametrize("guard", ["if", "loads"])
@pytest.mark.parametrize("m, n", [(12, 16), (13, 19), (5, 3), (1, 1), (6, 9)])
def test_tiled_product(m: int, n: int, guard: str) -> None:
    func = programs.matmul(m, n, 7)
    a, b, bias, _ = arrays = programs.arguments(func)
    tile_product(func, guard=guard)
    assert (run_packed(func, arrays, {}) == np.maximum(a @ b + bias, 0)).all()


@pytest.mark.parametrize("rows", [1, 5, 6, 17])
def test_tiled_product_of_symbolic_rows(rows: int) -> None:
    m = var("m", 1)
    func = programs.matmul(m, 20, 7, [m])
    a, b, bias, _ = arrays = programs.arguments(func, {"m": rows})
    tile_product(func)
    assert (run_packed(func, arrays, {"m": rows}) == np.maximum(a @ b + bias, 0)).all()


@pytest.mark.parametrize("columns", [1, 8, 20])
def test_tiled_product_of_symbolic_columns(columns: int) -> None:
    n = var("n", 1)
    func = programs.matmul(7, n, 5, [n])
    a, b, bias, _ = arrays = programs.arguments(func, {"n": columns})
    tile_product(func)
    assert (run_packed(func, arrays, {"n": columns}) == np.maximum(a @ b + bias, 0)).all()


def test_product_without_epilogue_gets_one() -> None:
    func = programs.plain_matmul(13, 17, 6)
    a, b, _ = arrays = programs.arguments(func)
    cache_write(func, func.args[2])
    tile_product(func)
    assert (run_packed(func, arrays, {}) == a @ b).all()


def test_inner_loop_holds_nothing_but_the_products() -> None:
    """Over whole tiles the reduction loop is free of conditions, and all register indices are constants."""
    func = programs.matmul(12, 16, 10)
    tile_product(func)
    k = next(
        loop
        for loop in loops_in(func.body)
        if any(op.name == "mul" for op in loop.walk()) and is_reduction(loop)
    )
    assert not any(op.name == "if" or op.attrs.get("guard") for op in k.walk())
    assert [kind_of(loop) for loop in loops_in(k)] == ["serial", "unroll", "unroll", "vector"]


def is_reduction(loop: Op) -> bool:
    return kind_of(loop) == "serial" and all(kind_of(o) != "serial" for o in loops_in(body_of(loop)))
