"""Neighbouring loops become one, also where buffers are allocated between them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.edit import find_loop, loops_in
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.order.fuse import fuse
from tilewright.ops.define.loop_programs import run_kernel

KERNEL = """
kernel @k(x: &f64[8], y: &f64[8]) dims() with {outputs=1} {
  alloc t: scratch f64[8]
  for i in 0..8 {
    t[i] = x[i] + 1
  }
  alloc s: scratch f64[8]
  for j in 0..8 {
    s[j] = t[j] * 2
  }
  for k in 0..8 {
    y[k] = s[k]
  }
  return
}
"""


def test_allocations_between_loops_move_before_them() -> None:
    func = parse_kernel(KERNEL)
    fuse(func, find_loop(func, "i"), find_loop(func, "j"))
    assert [op.name for op in func.body.ops] == ["alloc", "alloc", "for", "for", "return"]
    assert len(loops_in(func.body)) == 2
    x, y = np.arange(8.0), np.zeros(8)
    run_kernel(func, [x, y], {})
    np.testing.assert_array_equal(y, (x + 1) * 2)


@pytest.mark.parametrize(("first", "second"), [("i", "k"), ("j", "i")])
def test_other_ops_between_loops_keep_them_apart(first: str, second: str) -> None:
    func = parse_kernel(KERNEL)
    with pytest.raises(ScheduleError, match="does not follow it directly"):
        fuse(func, find_loop(func, first), find_loop(func, second))


READ_AHEAD = """
kernel @k(x: &f64[2], y: &f64[2]) dims() with {outputs=1} {
  alloc t: scratch f64[2]
  for i <= 1 in 0..2 {
    t[i] = x[i]
  }
  for j in 0..2 {
    y[j % 2] = t[1 - j]
  }
  return
}
"""


def test_a_refusal_leaves_the_second_loop_as_it_is_written() -> None:
    # the variable of the first loop is known to be below 2, with which j % 2 would be j
    func = parse_kernel(READ_AHEAD)
    before = print_func(func)
    with pytest.raises(ScheduleError, match="may come before a later store"):
        fuse(func, find_loop(func, "i"), find_loop(func, "j"))
    assert print_func(func) == before
