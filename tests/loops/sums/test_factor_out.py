"""Factors that multiply a sum in place of its terms: what it makes, that results stay, and where it is refused."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest

from tests.loops.kernel_texts import buffer, read
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.edit import find_loop
from tilewright.loops.sums.factor_out import factor_out
from tilewright.ops.define.loop_programs import run_kernel

WEIGHTS = """
kernel @k(x: &f64[2, 6], q: &f64[6, 3], s: &f64[2, 3], m: &f64[2, 3], y: &f64[2, 3]) dims() with {outputs=1} {
  for r in 0..2 {
    for c in 0..3 {
      y[r, c] = 0.0
    }
  }
  for g in 0..2 {
    for k in 0..3 {
      alloc v: reg f64[1, 3]
      for i in 0..3 {
        v[0, i] = q[3*g + k, i] * s[g, i] - m[g, i]
      }
      for a in 0..2 {
        for b in 0..3 {
          y[a, b] += x[a, 3*g + k] * v[0, b]
        }
      }
    }
  }
  return
}
"""

ROWS = """
kernel @k(x: &f64[4, 5], s: &f64[4], y: &f64[4]) dims() with {outputs=1} {
  for i in 0..4 {
    y[i] = 0.0
  }
  for k in 0..5 {
    for j in 0..4 {
      y[j] += x[j, k] * s[j]
    }
  }
  return
}
"""


def loops_of(text: str) -> str:
    return dedent("\n".join(text.strip().splitlines()[1:-2]))


def test_terms_are_scaled_and_shifted_once_for_all() -> None:
    func = read(WEIGHTS)
    made = factor_out(func, buffer(func, "y"), find_loop(func, "k"))
    assert made.alone is not None
    assert loops_of(print_func(func)).split("for g ")[1] == dedent("""\
        in 0..2 {
          alloc y_1: reg f64[2, 3]
          for t <= 1 in 0..2 {
            for t_1 <= 2 in 0..3 {
              y_1[t, t_1] = 0.0
            }
          }
          alloc y_2: reg f64[2, 1]
          for t_4 <= 1 in 0..2 {
            for t_5 <= 0 in 0..1 {
              y_2[t_4, t_5] = 0.0
            }
          }
          for a_1 <= 1 in 0..2 {
            for k_1 <= 2 in 0..3 {
              y_2[a_1, 0] += x[a_1, 3*g + k_1]
            }
          }
          for k in 0..3 {
            alloc v: reg f64[1, 3]
            for i in 0..3 {
              v[0, i] = q[3*g + k, i]
            }
            for a in 0..2 {
              for b in 0..3 {
                y_1[a, b] += x[a, 3*g + k] * v[0, b]
              }
            }
          }
          for t_2 <= 1 in 0..2 {
            for t_3 <= 2 in 0..3 {
              y[t_2, t_3] = y[t_2, t_3] + y_1[t_2, t_3] * s[g, t_3] - y_2[t_2, 0] * m[g, t_3]
            }
          }
        }""")


FORMS = {
    "a scale and a minimum": WEIGHTS,
    "a scale": WEIGHTS.replace(" - m[g, i]", ""),
    "zero points": WEIGHTS.replace("q[3*g + k, i] * s[g, i] - m[g, i]", "s[g, i] * (q[3*g + k, i] - m[g, i])"),
    "taken from what stays": WEIGHTS.replace("q[3*g + k, i] * s[g, i] - m[g, i]", "m[g, i] - q[3*g + k, i] * s[g, i]"),
    "a number": WEIGHTS.replace("q[3*g + k, i] * s[g, i] - m[g, i]", "(q[3*g + k, i] - 8.0) * s[g, i]"),
}


@pytest.mark.parametrize("form", FORMS)
def test_results_stay(form: str) -> None:
    rng = np.random.default_rng(3)
    x, q, s, m = (rng.integers(-9, 9, shape) * 0.5 for shape in ((2, 6), (6, 3), (2, 3), (2, 3)))
    found = []
    for step in (False, True):
        func = read(FORMS[form])
        if step:
            factor_out(func, buffer(func, "y"), find_loop(func, "k"))
            assert "v[0, i] = q[3*g + k, i]\n" in print_func(func), "it is stored as it is read"
        y = np.full((2, 3), np.nan)
        run_kernel(func, [x, q, s, m, y], {})
        found.append(y)
    np.testing.assert_array_equal(*found)


def test_a_factor_of_the_terms_themselves() -> None:
    func = read(ROWS)
    factor_out(func, buffer(func, "y"), find_loop(func, "k"))
    assert "y_1[j] += x[j, k]\n" in print_func(func)
    assert "y[t_1] += y_1[t_1] * s[t_1]\n" in print_func(func)
    x, s, y = np.arange(20.0).reshape(4, 5), np.arange(4.0) - 1, np.full(4, np.nan)
    run_kernel(func, [x, s, y], {})
    np.testing.assert_array_equal(y, x.sum(axis=1) * s)


def test_what_does_not_stay_is_left_in_the_terms() -> None:
    func = read(WEIGHTS.replace("s[g, i] - m", "q[3*g + k, 0] - m"))
    factor_out(func, buffer(func, "y"), find_loop(func, "k"))
    assert "v[0, i] = q[3*g + k, i] * q[3*g + k, 0]\n" in print_func(func)


REFUSED = {
    "no accumulation": (WEIGHTS, "r", "y", "does more with it than to add up one term"),
    "each time another element": (ROWS, "j", "y", "adds to another element each time"),
    "scales of rows": (WEIGHTS.replace("s[g, i] - m[g, i]", "s[k % 2, i]"), "k", "y", "no factor of its terms stays"),
    "written in the loop": (
        ROWS.replace("y[j] += x[j, k] * s[j]", "y[j] += x[j, k] * s[j]\n      s[j] = x[j, 0]"), "k", "y",
        "no factor of its terms stays",
    ),
    "no product": (ROWS.replace(" * s[j]", " + s[j]"), "k", "y", "no factor of its terms stays"),
    "conditions": (
        ROWS.replace("y[j] += x[j, k] * s[j]", "if j + k >= 2 {\n        y[j] += x[j, k] * s[j]\n      }"), "k", "y",
        "have conditions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, loop, of, reason = REFUSED[name]
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError) as caught:
        factor_out(func, buffer(func, of), find_loop(func, loop))
    assert reason in str(caught.value)
    assert print_func(func) == before
