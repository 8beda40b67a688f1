"""Sums of exponentials with a greatest exponent so far: what it makes, that results stay, and where it is refused."""

from __future__ import annotations

from textwrap import dedent

import numpy as np
import pytest

from tests.loops.kernel_texts import buffer, read
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.ir.verify import verify_func
from tilewright.loops.edit import body_of, find_loop, is_loop
from tilewright.loops.spec import LOOPS_SPEC
from tilewright.loops.sums.running_max import Running, running_max
from tilewright.ops.define.loop_programs import run_kernel

SOFTMAX = """
kernel @k(x: &f32[4, n], v: &f32[n, 2], y: &f32[4, 2]) dims(n) with {outputs=1} {
  alloc m: scratch f32[4]
  alloc p: scratch f32[4, n]
  alloc l: scratch f32[4]
  alloc o: scratch f32[4, 2]
  for a in 0..4 { m[a] = -inf }
  for k in 0..n { for i in 0..4 { m[i] = max(m[i], x[i, k]) } }
  for k1 in 0..n { for i1 in 0..4 { p[i1, k1] = exp(x[i1, k1] - m[i1]) } }
  for b in 0..4 { l[b] = 0.0 }
  for k2 in 0..n { for i2 in 0..4 { l[i2] += p[i2, k2] } }
  for c in 0..4 { for c1 in 0..2 { o[c, c1] = 0.0 } }
  for k3 in 0..n { for i3 in 0..4 { for j3 in 0..2 { o[i3, j3] += p[i3, k3] * v[k3, j3] } } }
  for i4 in 0..4 { for j4 in 0..2 { y[i4, j4] = o[i4, j4] / l[i4] } }
  return
}
"""


def applied(text: str, block: int = 4) -> tuple[Func, Running]:
    func = read(text)
    loops = {name: find_loop(func, name) for name in ("k", "k1", "k2", "k3")}
    made = running_max(func, buffer(func, "m"), loops["k"], loops["k1"], [loops["k2"], loops["k3"]], block)
    verify_func(func, LOOPS_SPEC)
    return func, made


def test_sums_are_corrected_where_the_greatest_exponent_grows() -> None:
    known = SOFTMAX.replace("n]", "8]").replace("[n", "[8").replace("..n", "..8").replace("dims(n)", "dims()")
    func, made = applied(known)
    pieces = [made.keep, made.factors, *made.corrections]
    text = [print_func(func)[print_func(func).index("for ko") :].splitlines()[k] for k in range(15)]
    assert dedent("\n".join(text[4:])) == dedent("""\
        for t <= 3 in 0..4 {
          m_1[t] = m[t]
        }
        for ki <= 3 in 0..4 {
          for i in 0..4 {
            m[i] = max(m[i], x[i, 4*ko + ki])
          }
        }
        for t_1 <= 3 in 0..4 {
          v0: f32 = m[t_1]
          v1: f32 = select(v0 == -inf, 0.0, v0)""")
    assert [op for op in body_of(made.loop).ops if is_loop(op) and op not in made.inner] == pieces
    assert "o[t_3, t_4] = o[t_3, t_4] * m_1[t_3]" in print_func(func)


@pytest.mark.parametrize(("n", "block"), [(0, 4), (1, 1), (10, 1), (10, 4), (10, 5), (10, 12)])
def test_results_stay(n: int, block: int) -> None:
    """Also of rows with infinite and missing numbers, and of such as begin with nothing but -inf."""
    rng = np.random.default_rng(n)
    x, v = (rng.standard_normal(shape).astype(np.float32) * 5 for shape in ((4, n), (n, 2)))
    x[1, :7], x[2, n // 2 : n // 2 + 1] = -np.inf, np.nan
    expected, found = (np.zeros((4, 2), np.float32) for _ in range(2))
    with np.errstate(all="ignore"):
        run_kernel(read(SOFTMAX), [x, v, expected], {"n": n})
        run_kernel(applied(SOFTMAX, block)[0], [x, v, found], {"n": n})
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        x[3] = -np.inf
        run_kernel(applied(SOFTMAX, block)[0], [x, v, found], {"n": n})
    assert np.isnan(found[3]).all(), "sums are 0, and so is what is divided by them"


@pytest.mark.parametrize(
    ("old", "new"),
    [("exp(x[i1, k1] - m[i1])", "exp(x[i1, k1] - m[0])"), ("p[i3, k3] * v[k3, j3]", "p[3 - i3, k3] * v[k3, j3]")],
)
def test_rows_may_be_relative_to_others(old: str, new: str) -> None:
    text = SOFTMAX.replace(old, new)
    rng = np.random.default_rng(1)
    x, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 9), (9, 2)))
    expected, found = (np.zeros((4, 2), np.float32) for _ in range(2))
    run_kernel(read(text), [x, v, expected], {"n": 9})
    run_kernel(applied(text)[0], [x, v, found], {"n": 9})
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("max(m[i], x[i, k])", "min(m[i], x[i, k])", "more than to accumulate by max"),
        ("exp(x[i1, k1] - m[i1])", "exp(x[i1, k1] * m[i1])", "no exponential of a difference"),
        ("exp(x[i1, k1] - m[i1])", "exp(m[i1] - x[i1, k1])", "does not subtract"),
        ("l[i2] += p[i2, k2]", "l[0] += p[i2, k2]", "does not accumulate in all of it"),
        ("exp(x[i1, k1] - m[i1])", "exp(x[i1, k1] - m[i1]) * 2.0", "no exponential of a difference"),
        ("p[i3, k3] * v[k3, j3]", "p[i3, k3] * m[i3]", "one exponential alone"),
        ("p[i3, k3] * v[k3, j3]", "p[i3, k3] * p[i3, k3]", "one exponential alone"),
        ("p[i3, k3] * v[k3, j3]", "p[i3, k3] + v[k3, j3]", "no products"),
        ("p[i3, k3] * v[k3, j3]", "p[i3, k3] * o[i3, j3]", "reads buffer 'o'"),
        ("o[c, c1] = 0.0", "o[c, c1] = 1.0", "does not begin at 0"),
        ("m[a] = -inf }", "m[a] = -inf\n l[a] = 2.0 }", "does not begin at 0"),
        ("o[i4, j4] / l[i4]", "o[i4, j4] / l[i4] + p[i4, 0]", "needed elsewhere"),
        ("for c in 0..4 { for c1 in 0..2 { o[c, c1] = 0.0 } }",
         "for c in 0..4 { for c1 in 0..2 { o[c, c1] = 0.0\n y[c, c1] = l[c] } }", "as a loop before does"),
        ("for k3 in 0..n {", "for k3 in 0..4 {", "differs from loop"),
    ],
)  # fmt: skip
def test_what_is_refused_stays_as_it_was(old: str, new: str, reason: str) -> None:
    text = SOFTMAX.replace(old, new)
    assert text != SOFTMAX
    before = print_func(read(text))
    func = read(text)
    loops = {name: find_loop(func, name) for name in ("k", "k1", "k2", "k3")}
    with pytest.raises(ScheduleError, match=reason):
        running_max(func, buffer(func, "m"), loops["k"], loops["k1"], [loops["k2"], loops["k3"]], 4)
    assert print_func(func) == before
