"""Indices that data choose leave the loops that do not change them, and no others."""

from __future__ import annotations

import numpy as np

from tests.loops.kernel_texts import read
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import find_loop
from tilewright.loops.order.choose_before import choose_before
from tilewright.ops.define.loop_programs import run_kernel

PICKED = """
kernel @k(at: &i64[3], w: &f64[4, 5, 2], y: &f64[3, 2]) dims() with {outputs=1} {
  for a in 0..3 {
    for b in 0..2 {
      for k in 0..5 {
        v0: i64 = at[a]
        v1: bool = and(v0 >= 0, v0 < 4)
        check v1 else ExecutionError("an index is out of range")
        bind place <= 3 = select(v1, v0, 0)
        y[a, b] += w[place, k, b]
      }
    }
  }
  return
}
"""

WRITTEN = """
kernel @k(w: &f64[4], at: &i64[1], y: &f64[3]) dims() with {outputs=2} {
  for a in 0..3 {
    bind place <= 3 = at[0]
    y[a] = w[place]
    at[0] = 2
  }
  return
}
"""


def places(text: str) -> list[str]:
    """What stands in which loop: the first words of the lines."""
    return [" " * (len(line) - len(line.lstrip())) + line.split()[0] for line in text.splitlines()]


def test_it_leaves_what_does_not_change_it() -> None:
    func = read(PICKED)
    rng = np.random.default_rng(0)
    at, w = np.array([3, 0, 2]), rng.standard_normal((4, 5, 2))
    choose_before(func)
    lines = places(print_func(func))
    assert lines.index("    bind") < lines.index("    for")
    y = np.zeros((3, 2))
    run_kernel(func, [at, w, y])
    np.testing.assert_allclose(y, w[at].sum(axis=1))


def test_some_loops_stay_perfect_nests() -> None:
    func = read(PICKED)
    choose_before(func, stay=[find_loop(func, "b")])
    lines = places(print_func(func))
    assert "      bind" in lines and lines.index("    for") < lines.index("      bind") < lines.index("      for")


def test_what_a_loop_writes_is_read_within_it() -> None:
    func = read(WRITTEN)
    before = print_func(func)
    choose_before(func)
    assert print_func(func) == before


def test_each_thread_chooses_for_itself() -> None:
    func = read(PICKED.replace("for b in 0..2 {", 'for b in 0..2 parallel with {level="core"} {'))
    choose_before(func)
    verify_func(func)
    lines = print_func(func).splitlines()
    (bind,) = [line for line in lines if "bind place" in line]
    assert lines.index(bind) > next(k for k, line in enumerate(lines) if "for b in" in line)
