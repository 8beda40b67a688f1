"""Three stages of a loop at the same time, and what must not be."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.core import Func, Op
from tilewright.ir.diag import ScheduleError
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.machine.overlap import overlap
from tilewright.ops.define.loop_programs import run_kernel

X = np.arange(20, dtype=np.float64).reshape(5, 4)

KERNEL = """
kernel @k(x: &f64[5, 4], y: &f64[5, 4]) dims() with {outputs=1} {
  for k in 0..5 {
    alloc s: scratch f64[4]
    for i in 0..4 { s[i] = x[k, i] * 2 }
    alloc a: scratch f64[4]
    run copy on dma as t { for i1 in 0..4 { a[i1] = SOURCE } }
    wait t
    alloc p: scratch f64[4]
    for i2 in 0..4 { p[i2] = a[i2] + s[i2] }
    run copy on out as u { for i3 in 0..4 { y[k, i3] = p[i3] } }
    wait u
  }
  return
}
"""


def overlapped(source: str) -> Func:
    func = parse_kernel(KERNEL.replace("SOURCE", source))
    loop = next(op for op in func.body.ops if op.name == "for")
    overlap(func, loop, drain_of(loop))
    return func


def drain_of(loop: Op) -> Op:
    return [op for op in loop.blocks[0].ops if op.name == "run"][1]


def test_it_computes_the_same() -> None:
    func, y = overlapped("x[k, i1]"), np.zeros_like(X)
    run_kernel(func, [X, y], {})
    assert np.array_equal(y, 3 * X)


def test_a_copy_of_what_its_own_iteration_computes_stays_there() -> None:
    """The copy for the next iteration would run before this one's work, which has not filled `s` yet."""
    with pytest.raises(ScheduleError, match=r"'s'.* is used by two stages, and changed by one"):
        overlapped("s[i1]")
