"""Splitting a loop into iterations far apart: its form, that results stay, and where it is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import find_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.loops.lanes.unroll_and_jam import unroll_and_jam
from tilewright.loops.order.strided_split import strided_split
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.ops.define.loop_programs import run_kernel as interpret

SUMS = """
kernel @k(x: &f32[6, n], y: &f32[6]) dims(n) with {outputs=1} {
  for i in 0..6 parallel {
    y[i] = 0
    for j in 0..n {
      y[i] += x[i, j]
    }
  }
  return
}
"""


def read(text: str = SUMS) -> Func:
    return parse_kernel(text)


def test_inner_iterations_lie_a_share_of_the_extent_apart() -> None:
    func = read()
    parts = strided_split(func, find_loop(func, "i"), 2)
    text = print_func(func)
    assert parts.tail is None
    assert "for io <= 2 in 0..3 parallel {" in text and "for ii <= 1 in 0..2 {" in text
    assert "y[3*ii + io] += x[3*ii + io, j]" in text
    verify_func(func, LOOPS_SPEC)


def test_parts_that_do_not_divide_the_extent_overlap() -> None:
    func = read()
    strided_split(func, find_loop(func, "i"), 4, overlap=True)
    text = print_func(func)
    assert "for io <= 2 in 0..3 parallel with {overlap=true} {" in text and "for ii <= 3 in 0..4 {" in text
    assert "y[ii + io] += x[ii + io, j]" in text
    verify_func(func, LOOPS_SPEC)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5, 6])
def test_results_stay(parts: int) -> None:
    x = np.random.default_rng(parts).standard_normal((6, 5)).astype(np.float32)
    y, z = np.zeros(6, np.float32), np.zeros(6, np.float32)
    func = read()
    unroll_and_jam(func, strided_split(func, find_loop(func, "i"), parts, overlap=True).inner)
    run_kernel(func, [x, y], [5])
    interpret(func, [x, z], {"n": 5})
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(y, z)


@pytest.mark.parametrize(
    ("loop", "parts", "reason"),
    [
        ("i", 4, "loop 'i' (0..6, parallel): 4 parts do not divide its extent"),
        ("i", 0, "loop 'i' (0..6, parallel): 0 parts do not divide its extent"),
        ("j", 2, "loop 'j' (0..n, serial): 2 parts do not divide its extent"),
        ("j", 1, "loop 'j' (0..n, serial): an iteration may touch what another writes, in buffer 'y'"),
        ("v", 2, "loop 'v' (0..8, vector): it is a vector loop"),
    ],
)
def test_where_it_is_refused(loop: str, parts: int, reason: str) -> None:
    text = SUMS.replace("y[i] = 0\n", "for v in 0..8 vector {\n x[i, v] = 0\n }\n y[i] = 0\n")
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError) as caught:
        strided_split(func, find_loop(func, loop), parts)
    assert reason in str(caught.value)
    assert print_func(func) == before


def test_what_runs_twice_must_not_change_what_it_reads() -> None:
    func = read(SUMS.replace("    y[i] = 0\n", ""))
    with pytest.raises(ScheduleError, match="runs some iterations twice, and they change"):
        strided_split(func, find_loop(func, "i"), 4, overlap=True)
    strided_split(func, find_loop(func, "i"), 3, overlap=True)


def test_fewer_iterations_than_parts() -> None:
    func = read()
    with pytest.raises(ScheduleError, match="it may have fewer iterations than 7"):
        strided_split(func, find_loop(func, "i"), 7, overlap=True)
