"""Positions behind the last that a row selects: what is left out, that results stay, and where nothing is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.native import run_kernel
from tests.loops.kernel_texts import buffer, read
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.conditions.skip_masked import skip_masked
from tilewright.loops.edit import extent_of, find_loop
from tilewright.loops.kernel_info import parse_kernel
from tilewright.ops.define.loop_programs import run_kernel as interpret

SCORES = """
kernel @k(s: &f32[n, m], v: &f32[m], y: &f32[n]) dims(n, m) with {outputs=1} {
  for o in 0..(n + 3) // 4 {
    alloc t: scratch f32[4, m]
    alloc a: scratch f32[4]
    alloc e: scratch f32[4, m]
    alloc b: scratch f32[4]
    for i in 0..4 {
      for j in 0..m {
        t[i, j] = select(index(4*o + i) >= index(j), s[4*o + i, j if 4*o + i < n] * 0.5, -inf)
      }
    }
    for i1 in 0..4 {
      a[i1] = -inf
      for j1 in 0..m {
        a[i1] = max(a[i1], t[i1, j1])
      }
      b[i1] = 0.0
      for j2 in 0..m {
        e[i1, j2] = exp(t[i1, j2] - a[i1])
        b[i1] += e[i1, j2]
      }
    }
    for i3 in 0..4 {
      if 4*o + i3 < n {
        y[4*o + i3] = 0.0
        for j3 in 0..m {
          y[4*o + i3] += e[i3, j3] * v[j3]
        }
        y[4*o + i3] = y[4*o + i3] / b[i3]
      }
    }
  }
  return
}
"""
CONDITION = "index(4*o + i) >= index(j)"


def skipped(text: str = SCORES, multiple: int = 1) -> Func:
    func = read(text)
    skip_masked(func, find_loop(func, "o"), buffer(func, "t"), multiple)
    return func


def refused(old: str, new: str) -> str:
    text = SCORES.replace(old, new)
    assert text != SCORES
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError) as error:
        skip_masked(func, find_loop(func, "o"), buffer(func, "t"))
    assert print_func(func) == before
    return str(error.value)


def test_loops_over_positions_end_behind_the_last_that_a_row_selects() -> None:
    text = print_func(skipped())
    assert text.count("in 0..min(m, 4*o + 4)") == 4
    assert print_func(parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("condition", "end"),
    [
        ("index(4*o + i) > index(j)", "in 0..min(m, 4*o + 3)"),
        ("index(j) <= index(4*o + i)", "in 0..min(m, 4*o + 4)"),
        ("index(j) < index(4*o + i)", "in 0..min(m, 4*o + 3)"),
        ("index(4*o + i) + index(m) - index(n) >= index(j)", "max(1, 4*o + m - n + 4)"),
        ("and(index(4*o + i) >= index(j), index(j) > index(4*o + i) - index(5))", "in 0..min(m, 4*o + 4)"),
        ("and(index(4*o + i) >= index(j), index(i) >= index(j))", "in 0..min(m, 4)"),
    ],
)
def test_conditions_say_where_rows_end(condition: str, end: str) -> None:
    text = print_func(skipped(SCORES.replace(CONDITION, condition)))
    assert text.count(end) == 4, text


@pytest.mark.parametrize("multiple", [1, 3, 8])
@pytest.mark.parametrize(("n", "m"), [(0, 0), (1, 1), (5, 5), (9, 9), (9, 3), (4, 17)])
def test_results_stay_to_the_bit(n: int, m: int, multiple: int) -> None:
    rng = np.random.default_rng(n)
    s, v = rng.standard_normal((n, m), np.float32), rng.standard_normal(m, np.float32)
    found = []
    for func in (read(SCORES), skipped(multiple=multiple)):
        for run in (lambda f, a: interpret(f, a, {"n": n, "m": m}), lambda f, a: run_kernel(f, a, [n, m])):
            y = np.zeros(n, np.float32)
            run(func, [s, v, y])
            found.append(y)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_array_equal(found[1], found[3])


def test_what_is_left_out_is_not_read() -> None:
    s, y = np.zeros((4, 9), np.float32), np.zeros(4, np.float32)
    v = np.array([1, 2, 3, 4, *[np.nan] * 5], np.float32)
    run_kernel(skipped(), [s, v, y], [4, 9])
    np.testing.assert_allclose(y, [1, 1.5, 2, 2.5])


def test_rows_that_select_nothing_are_missing_numbers_as_before() -> None:
    text = SCORES.replace(CONDITION, "index(4*o + i) - index(2) >= index(j)")
    s, v = np.ones((3, 3), np.float32), np.ones(3, np.float32)
    for func in (read(text), skipped(text)):
        y = np.zeros(3, np.float32)
        run_kernel(func, [s, v, y], [3, 3])
        np.testing.assert_array_equal(y, [np.nan, np.nan, 1])


def test_blocks_that_select_nothing_are_missing_numbers_as_before() -> None:
    """Weights are not numbers then, and a sum of none would be 0."""
    text = SCORES.replace(CONDITION, "index(4*o + i) - index(4) >= index(j)")
    text = text.replace("e[i3, j3] * v[j3]", "e[i3, j3] * (1.0 / b[i3]) * v[j3]")
    text = text.replace("        y[4*o + i3] = y[4*o + i3] / b[i3]\n", "")
    s, v = np.ones((6, 6), np.float32), np.ones(6, np.float32)
    for func in (read(text), skipped(text)):
        y = np.zeros(6, np.float32)
        run_kernel(func, [s, v, y], [6, 6])
        np.testing.assert_array_equal(y, [np.nan] * 4 + [1, 1])


def test_tiles_of_positions_write_what_is_read() -> None:
    """Producers may go on in steps that are no divisors of what is left; readers may not."""
    tiled = SCORES.replace("for j in 0..m {", "for jo in 0..(m + 2) // 3 {\n for j in 0..3 {\n if 3*jo + j < m {")
    tiled = tiled.replace("t[i, j] = select(index(4*o + i) >= index(j), s[4*o + i, j if 4*o + i < n] * 0.5, -inf)",
                          "t[i, 3*jo + j] = select(index(4*o + i) >= index(3*jo + j), "
                          "s[4*o + i, 3*jo + j if 4*o + i < n] * 0.5, -inf)\n}\n}")  # fmt: skip
    func = skipped(tiled, 4)
    assert extent_of(find_loop(func, "jo")).evaluate({"o": 0, "m": 11}) == 2
    rng = np.random.default_rng(0)
    s, v = rng.standard_normal((9, 11), np.float32), rng.standard_normal(11, np.float32)
    y, expected = np.zeros(9, np.float32), np.zeros(9, np.float32)
    run_kernel(func, [s, v, y], [9, 11])
    run_kernel(read(tiled), [s, v, expected], [9, 11])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (CONDITION, "s[4*o + i, j if 4*o + i < n] > 0.0", "no condition on positions"),
        (CONDITION, "index(j) >= index(4*o + i)", "no condition on positions"),
        (CONDITION, "index(j) == index(4*o + i)", "no condition on positions"),
        (CONDITION, "index(4*o + i + m) >= index(j)", "no position is masked in all of its rows"),
        (CONDITION, "index(j) - index(i) < index(9223372036854775807)", "may need more than 64 bits"),
        (CONDITION, "index(4*o + i) + index(9223372036854775807) >= index(j)", "no condition on positions"),
        (CONDITION, "u64(index(4*o + i)) - u64(index(j)) >= u64(0)", "no condition on positions"),
        (CONDITION, "u8(index(4*o + i)) >= u8(index(j))", "no condition on positions"),
        ("-inf)", "-1e9)", "masked elements are not neutral to what is accumulated"),
        ("exp(t[i1, j2] - a[i1])", "t[i1, j2] + 1.0", "masked elements are not neutral to what is accumulated"),
        ("exp(t[i1, j2] - a[i1])", "exp(t[i1, 0] - a[i1])", "it is read elsewhere, too"),
        ("e[i1, j2] = exp", "e[i1, m - 1 - j2] = exp", "what it becomes of masked elements is not known"),
        ("e[i3, j3] * v[j3]", "e[i3, j3] + v[j3]", "masked elements are not neutral to what is accumulated"),
        ("e[i3, j3] * v[j3]", "e[i3, m - 1 - j3] * v[j3]", "it is read elsewhere, too"),
    ],
)
def test_anything_else_is_refused(old: str, new: str, reason: str) -> None:
    assert reason in refused(old, new)


def test_what_other_iterations_read_is_refused() -> None:
    outside = SCORES.replace("    alloc t: scratch f32[4, m]\n", "").replace(
        "  for o in 0..(n + 3) // 4 {", "  alloc t: scratch f32[4, m]\n  for o in 0..(n + 3) // 4 {"
    )
    with pytest.raises(ScheduleError, match="it is not of one iteration of loop 'o'"):
        skipped(outside)


def test_readers_in_other_steps_are_refused() -> None:
    text = SCORES.replace("for j3 in 0..m {", "for j3o in 0..m // 2 {\n for j3 in 0..2 {").replace(
        "y[4*o + i3] += e[i3, j3] * v[j3]", "y[4*o + i3] += e[i3, 2*j3o + j3] * v[2*j3o + j3]\n}"
    )
    with pytest.raises(ScheduleError, match="it reads 2 positions at once"):
        skipped(text, 3)


def test_single_elements_have_no_positions() -> None:
    text = SCORES.replace("    alloc t: scratch", "    alloc one: scratch f32[]\n    alloc t: scratch")
    chosen = "one[] = select(index(o) >= index(2), f32(1.0), f32(-inf))"
    text = text.replace("    for i1 in 0..4 {", f"    {chosen}\n    for i1 in 0..4 {{")
    func = read(text)
    with pytest.raises(ScheduleError, match="no condition on positions"):
        skip_masked(func, find_loop(func, "o"), buffer(func, "one"))
