"""Loops that run from their last iteration to their first in turns: what other steps make of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.kernel_texts import read
from tilewright.ir.core import Func, Op
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import find_loop
from tilewright.loops.lanes.dot import dot
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.loops.order.boustrophedon import boustrophedon
from tilewright.loops.order.fuse import collapse, fuse
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.ops.define.loop_programs import run_kernel

NEIGHBOURS = """
kernel @k(x: &f64[3, 8], y: &f64[3, 8], z: &f64[3, 8]) dims() with {outputs=2} {
  for t in 0..3 {
    for i in 0..8 {
      y[t, i] = x[t, i] + 1
    }
    for j in 0..8 {
      z[t, j] = y[t, max(0, j - 1)]
    }
  }
  return
}
"""

RUNNING = """
kernel @k(x: &f64[2, 3, 8], y: &f64[2, 3, 8]) dims() with {outputs=1} {
  for t in 0..2 {
    for i in 0..3 {
      for j in 0..8 {
        y[t, i, j] = x[t, i, j] + y[t, i, max(0, j - 1)]
      }
    }
  }
  return
}
"""

BYTES = """
kernel @k(a: &u8[3, 4], b: &i8[3, 4], y: &i32[3]) dims() with {outputs=1} {
  for t in 0..3 {
    y[t] = 0
    for g in 0..4 {
      y[t] += i32(a[t, g]) * i32(b[t, g])
    }
  }
  return
}
"""


def results(func: Func) -> list[np.ndarray]:
    arrays = [
        np.random.default_rng(k)
        .integers(0, 9, [int(n) for n in value.type.shape])
        .astype(value.type.dtype.storage)
        for k, value in enumerate(func.args)
    ]
    run_kernel(func, arrays, {})
    return arrays


def turning(func: Func, name: str) -> Op:
    return boustrophedon(func, find_loop(func, name), find_loop(func, "t"))


STEPS = {
    "a body is added that reads what an earlier iteration wrote": (
        NEIGHBOURS,
        lambda f: fuse(f, turning(f, "i"), find_loop(f, "j")),
    ),
    "the body of a loop that turns is added": (
        NEIGHBOURS,
        lambda f: fuse(f, find_loop(f, "i"), turning(f, "j")),
    ),
    "a loop of a running sum becomes one with it": (
        RUNNING,
        lambda f: collapse(f, turning(f, "i"), find_loop(f, "j")),
    ),
    "lanes": (NEIGHBOURS, lambda f: vectorize(f, turning(f, "i"))),
}


@pytest.mark.parametrize("name", STEPS)
def test_the_order_stays_right(name: str) -> None:
    text, step = STEPS[name]
    func = read(text)
    step(func)
    verify_func(func, LOOPS_SPEC)
    for want, got in zip(results(read(text)), results(func), strict=True):
        np.testing.assert_array_equal(got, want)


def test_products_of_a_loop_that_turns_are_added_at_once() -> None:
    func = read(BYTES)
    loop = find_loop(func, "g")
    loop.attrs["boustrophedon"] = find_loop(func, "t").attrs["var"]
    dot(func, loop)
    verify_func(func, LOOPS_SPEC)
