"""Summing in parts: what it makes, that results stay, and where it is refused."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest

from tests.loops.kernel_texts import DOUBLE, SUM, SYMBOLIC, buffer, read
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.edit import find_loop
from tilewright.loops.lanes.unroll import unroll
from tilewright.loops.lanes.vectorize import vectorize
from tilewright.loops.order.parallel import parallel
from tilewright.loops.order.split import split
from tilewright.loops.storage.rfactor import rfactor
from tilewright.ops.define.loop_programs import run_kernel

GREATEST = SUM.replace("y[i] = 0", "y[i] = -1.0").replace("y[i] += x[i, k]", "y[i] = max(y[i], x[i, k])")


def test_parts_of_one_element() -> None:
    func = read(SUM)
    parts = split(func, find_loop(func, "k"), 5)
    rfactor(func, buffer(func, "y"), parts.inner)
    assert dedent("\n".join(print_func(func).strip().splitlines()[1:-2])) == dedent("""\
        for i in 0..3 {
          y[i] = 0
          for ko <= 1 in 0..2 {
            alloc y_1: reg f64[1]
            for t <= 0 in 0..1 {
              y_1[t] = 0.0
            }
            for ki <= 4 in 0..5 {
              y_1[0] += x[i, 5*ko + ki]
            }
            for t_1 <= 0 in 0..1 {
              y[i + t_1] += y_1[t_1]
            }
          }
        }""")


@pytest.mark.parametrize("text", [SUM, GREATEST])
@pytest.mark.parametrize("tail", ["guard", "peel", "branch"])
def test_results_stay(text: str, tail: str) -> None:
    x = np.arange(30.0).reshape(3, 10) % 7 - 5
    func = read(text)
    parts = split(func, find_loop(func, "k"), 4, tail)
    for loop in (parts.inner, parts.tail):
        if loop is not None:
            rfactor(func, buffer(func, "y"), loop)
    y = np.full(3, np.nan)
    run_kernel(func, [x, y], {})
    np.testing.assert_array_equal(y, x.sum(axis=1) if text == SUM else np.maximum(x.max(axis=1), -1))


REFUSED = {
    "no accumulation": (DOUBLE, "i", "y", "loop 'i' (0..10, serial) does more with it than to accumulate"),
    "a first value": (SUM, "i", "y", "loop 'i' (0..3, serial) does more with it than to accumulate"),
    "not used": (SUM, "k", "x", "loop 'k' (0..10, serial) does more with it than to accumulate"),
    "no known size": (
        SYMBOLIC.replace("= x[i] * 2", "+= x[i]"), "i", "y", "a register tile needs a constant size, not [n]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, loop, of, reason = REFUSED[name]
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError) as caught:
        rfactor(func, buffer(func, of), find_loop(func, loop))
    assert reason in str(caught.value)
    assert print_func(func) == before


def test_refused_beside_a_parallel_loop_and_in_a_vector() -> None:
    func = read(DOUBLE.replace("= x[i] * 2", "+= x[i]"))
    parallel(func, find_loop(func, "i"))
    with pytest.raises(ScheduleError, match="this step before parallel"):
        rfactor(func, buffer(func, "y"), find_loop(func, "i"))
    func = read(DOUBLE.replace("= x[i] * 2", "+= x[i]"))
    parts = split(func, find_loop(func, "i"), 5)
    unroll(func, parts.inner)
    vectorize(func, parts.outer)
    with pytest.raises(ScheduleError, match="vectorize after this step"):
        rfactor(func, buffer(func, "y"), parts.inner)
