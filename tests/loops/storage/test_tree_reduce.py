"""Sums in parts that are added in pairs: what it makes, that results stay in any order, and where it is refused."""

from __future__ import annotations

import random
from textwrap import dedent

import numpy as np
import pytest

from tests.loops.interleave import run_interleaved
from tests.loops.kernel_texts import DOUBLE, SUM, SYMBOLIC, buffer, read
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.edit import find_loop
from tilewright.loops.machine.barrier import barrier
from tilewright.loops.order.parallel import parallel
from tilewright.loops.order.reorder import reorder
from tilewright.loops.order.split import split
from tilewright.loops.storage.tree_reduce import tree_reduce
from tilewright.ops.define.loop_programs import run_kernel

GREATEST = SUM.replace("y[i] = 0", "y[i] = -1.0").replace("y[i] += x[i, k]", "y[i] = max(y[i], x[i, k])")
X = np.arange(30.0).reshape(3, 10) % 7 - 5


def test_parts_are_added_in_pairs() -> None:
    func = read(SUM)
    parts = split(func, find_loop(func, "k"), 5)
    reorder(func, parts.inner, parts.outer)
    tree_reduce(func, buffer(func, "y"), parts.inner)
    assert dedent("\n".join(print_func(func).strip().splitlines()[1:-2])) == dedent("""\
        for i in 0..3 {
          y[i] = 0
          alloc y_1: reg f64[5]
          alloc y_2: reg f64[3]
          for ki <= 4 in 0..5 {
            y_1[ki] = 0.0
            for ko <= 1 in 0..2 {
              y_1[ki] += x[i, 5*ko + ki]
            }
          }
          for t <= 2 in 0..3 {
            y_2[t] = y_1[t] + y_1[t + 3 if t < 2 else 0.0]
          }
          for t_1 <= 1 in 0..2 {
            y_1[t_1] = y_2[t_1] + y_2[t_1 + 2 if -t_1 + 1 else 0.0]
          }
          for t_2 <= 0 in 0..1 {
            y_2[t_2] = y_1[t_2] + y_1[t_2 + 1]
          }
          y[i] += y_2[0]
        }""")


@pytest.mark.parametrize("text", [SUM, GREATEST])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 10, 16])
def test_results_stay(text: str, count: int) -> None:
    func = read(text)
    parts = split(func, find_loop(func, "k"), count)
    reorder(func, parts.inner, parts.outer)
    tree_reduce(func, buffer(func, "y"), parts.inner)
    y = np.full(3, np.nan)
    run_kernel(func, [X, y], {})
    np.testing.assert_array_equal(y, X.sum(axis=1) if text == SUM else np.maximum(X.max(axis=1), -1))


def test_threads_may_take_turns_in_any_order_between_barriers() -> None:
    for seed in range(4):
        func = read(SUM)
        parts = split(func, find_loop(func, "k"), 4)
        reorder(func, parts.inner, parts.outer)
        made = tree_reduce(func, buffer(func, "y"), parts.inner, "shared")
        for loop in (parts.inner, *made.steps):
            parallel(func, loop, "thread")
            barrier(func, loop, "thread")
        parallel(func, find_loop(func, "i"), "group")
        y = np.full(3, np.nan)
        run_interleaved(func, [X, y], {}, random.Random(seed))
        np.testing.assert_array_equal(y, X.sum(axis=1))


REFUSED = {
    "no accumulation": (DOUBLE, "i", "y", "loop 'i' (0..10, serial) does more with it than to accumulate"),
    "a first value": (SUM, "i", "y", "loop 'i' (0..3, serial) does more with it than to accumulate"),
    "not used": (SUM, "k", "x", "loop 'k' (0..10, serial) does more with it than to accumulate"),
    "no known number": (
        SYMBOLIC.replace("= x[i] * 2", "+= x[i]"), "i", "y", "has n iterations, and parts need a constant number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, loop, of, reason = REFUSED[name]
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError) as caught:
        tree_reduce(func, buffer(func, of), find_loop(func, loop))
    assert reason in str(caught.value)
    assert print_func(func) == before


def test_refused_for_a_parallel_loop() -> None:
    func = read(DOUBLE.replace("= x[i] * 2", "+= x[i]"))
    parallel(func, find_loop(func, "i"))
    with pytest.raises(ScheduleError, match="is not serial; this step before parallel"):
        tree_reduce(func, buffer(func, "y"), find_loop(func, "i"))
