"""Scratch whose size is computed below 0 where the loops that use it run no time at all: it takes no memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tilewright.codegen.cpu.kernel.emit import kernel_ir
from tilewright.ir.core import Func
from tilewright.loops.kernel_info import parse_kernel
from tilewright.ops.define.loop_programs import run_kernel as interpret
from tilewright.target.host import host_target

BETWEEN = """
kernel @k(x: &f64[8], y: &f64[8]) dims(n) with {outputs=1} {
  alloc a: scratch f64[8]
  alloc t: scratch f64[16*n - 16]
  alloc s: scratch f64[8]
  for i in 0..8 {
    a[i] = x[i]
    s[i] = 1
  }
  for j in 0..16*n - 16 {
    t[j] = 2
    s[0] += t[j]
  }
  for k in 0..8 {
    y[k] = a[k] + s[k]
  }
  return
}
"""


def kernel() -> Func:
    return parse_kernel(BETWEEN)


@pytest.mark.parametrize(("n", "expected"), [(0, 128), (1, 128), (2, 256)])
def test_its_size_takes_nothing_from_that_of_others(n: int, expected: int) -> None:
    assert kernel_ir(kernel(), host_target()).scratch.evaluate({"n": n}) == expected


@pytest.mark.parametrize("n", [0, 1, 2])
def test_results(n: int) -> None:
    x = np.arange(8.0)
    expected = x + 1
    expected[0] += 32 * max(0, n - 1)
    y, z = np.zeros(8), np.zeros(8)
    interpret(kernel(), [x, z], {"n": n})
    np.testing.assert_array_equal(z, expected)
    run_kernel(kernel(), [x, y], [n])
    np.testing.assert_array_equal(y, expected)
