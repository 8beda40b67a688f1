"""Indices that stay within their limits: what is read instead, that results stay, and what is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tilewright.ir.core import Func, Op
from tilewright.ir.text import print_func
from tilewright.loops.conditions.clamp import clamp
from tilewright.loops.edit import find_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.order.compute_at import compute_at
from tilewright.loops.order.split import split
from tilewright.ops.define.loop_programs import run_kernel as interpret

ROW = "i_1"  # what compute_at calls the rows of the tile

ROWS = """
kernel @k(x: &f32[n, 8], y: &f32[n, 8]) dims(n) with {outputs=1} {
  alloc t: scratch f32[n, 8]
  for i in 0..n {
    for j in 0..8 {
      t[i, j] = x[i, j] * 2
    }
  }
  for io in 0..n {
    for jo in 0..8 {
      y[io, jo] = t[io, jo] + 1
    }
  }
  return
}
"""


def tiled() -> Func:
    """Rows in tiles of 4, each with the part of `t` that it reads."""
    func = parse_kernel(ROWS)
    parts = split(func, find_loop(func, "io"), 4)
    compute_at(func, next(o.result for o in func.body.walk() if o.name == "alloc"), parts.outer, "reg", "loads")
    return func


def load_of_x(func: Func) -> Op:
    return next(o for o in func.body.walk() if o.name == "load" and o.operands[0].name == "x")


def test_a_condition_becomes_a_limit_of_the_index() -> None:
    func = tiled()
    assert "if" in print_func(func).split("x[")[1].split("]")[0]
    assert "other" not in load_of_x(func).attrs
    clamp(func, find_loop(func, ROW))
    assert "x[4*ioo + min(i_1, n - 4*ioo - 1), j_1]" in print_func(func)
    assert print_func(parse_kernel(print_func(func))) == print_func(func)


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 8, 11])
def test_results_stay(n: int) -> None:
    func = tiled()
    clamp(func, find_loop(func, ROW))
    x = np.arange(8 * n, dtype=np.float32).reshape(n, 8)
    y = np.zeros((n, 8), np.float32)
    interpret(func, [x, y], {"n": n})
    np.testing.assert_array_equal(y, 2 * x + 1)
    y = np.zeros((n, 8), np.float32)
    run_kernel(func, [x, y], [n])
    np.testing.assert_array_equal(y, 2 * x + 1)


@pytest.mark.parametrize(
    "load",
    [
        "x[i, j if i < n else 0]",  # zeros are asked for
        "x[i, j if i < m]",  # of no rows, none may be read
        "x[i, j if i > 1]",  # no upper limit
    ],
)
def test_other_conditions_stay(load: str) -> None:
    text = f"""
kernel @k(x: &f32[n, 8], y: &f32[4, 8]) dims(n, m) with {{outputs=1}} {{
  for i in 0..4 {{
    for j in 0..8 {{
      y[i, j] = {load}
    }}
  }}
  return
}}
"""
    func = parse_kernel(text)
    before = print_func(func)
    clamp(func, find_loop(func, "i"))
    assert print_func(func) == before


def test_loads_from_a_tile_that_has_surplus_rows_too_need_no_condition() -> None:
    text = ROWS.replace("y[io, jo] = t[io, jo] + 1", "y[io, jo] = u[io, jo] + 1").replace(
        "  for io in",
        "  alloc u: scratch f32[n, 8]\n"
        "  for a in 0..n {\n    for b in 0..8 {\n      u[a, b] = t[a, b]\n    }\n  }\n  for io in",
    )
    func = parse_kernel(text)
    parts = split(func, find_loop(func, "io"), 4)
    t, u = (o.result for o in func.body.walk() if o.name == "alloc")
    compute_at(func, u, parts.outer, "scratch", "loads")
    compute_at(func, t, parts.outer, "scratch", "loads")
    guarded = [o.operands[0].name for o in func.body.walk() if o.name == "load" and "guard" in o.attrs]
    assert guarded == ["x"]


def test_loads_that_want_zeros_from_a_tile_keep_their_condition() -> None:
    text = ROWS.replace("t[io, jo] + 1", "t[io, jo if jo > 2 else 0] + 1")
    func = parse_kernel(text)
    parts = split(func, find_loop(func, "io"), 4)
    compute_at(
        func, next(o.result for o in func.body.walk() if o.name == "alloc"), parts.outer, "scratch", "loads"
    )
    x, y = np.ones((5, 8), np.float32), np.zeros((5, 8), np.float32)
    interpret(func, [x, y], {"n": 5})
    np.testing.assert_array_equal(y[0], [1, 1, 1, 3, 3, 3, 3, 3])
