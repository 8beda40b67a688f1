"""Rows of products rounded to integers in groups: what it makes, how far results are off, and where it is refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.kernel_texts import buffer, read
from tilewright.ir.core import Func
from tilewright.ir.diag import ScheduleError
from tilewright.ir.text import print_func
from tilewright.loops.edit import find_loop
from tilewright.loops.sums.round_terms import SMALLEST, round_terms
from tilewright.ops.define.loop_programs import run_kernel

WEIGHTS = """
kernel @k(x: &f32[3, 8], q: &i8[8, 5], s: &f32[2, 5], m: &f32[2, 5], y: &f32[3, 5]) dims() with {outputs=1} {
  alloc w: scratch f32[8, 5]
  for a in 0..8 {
    for b in 0..5 {
      w[a, b] = f32(q[a, b]) * s[a // 4, b] - m[a // 4, b]
    }
  }
  for i in 0..3 {
    for j in 0..5 {
      y[i, j] = 0.0
      for k in 0..8 {
        y[i, j] += x[i, k] * w[k, j]
      }
    }
  }
  return
}
"""
VALUE = "f32(q[a, b]) * s[a // 4, b] - m[a // 4, b]"
FORMS = {
    "a scale and a minimum": VALUE,
    "a scale": "f32(q[a, b]) * s[a // 4, b]",
    "integers alone": "f32(q[a, b])",
    "zero points": "s[a // 4, b] * (f32(q[a, b]) - m[a // 4, b])",
    "the other way round": "m[a // 4, b] - f32(q[a, b]) * s[a // 4, b]",
    "two levels": "f32(q[a, b]) * (s[a // 4, b] * m[0, b])",
}
RNG = np.random.default_rng(7)


def rounded(form: str, digits: int = 16, text: str = WEIGHTS, pieces: int = 1) -> Func:
    func = read(text.replace(VALUE, FORMS[form]))
    round_terms(func, buffer(func, "y"), find_loop(func, "k"), 4, digits, pieces)
    return func


def weights(form: str, q: np.ndarray, s: np.ndarray, m: np.ndarray) -> np.ndarray:
    s, least, first = np.repeat(s, 4, 0), np.repeat(m, 4, 0), m[:1]
    return {
        "a scale and a minimum": q * s - least,
        "a scale": q * s,
        "integers alone": q.astype(np.float64),
        "zero points": s * (q - least),
        "the other way round": least - q * s,
        "two levels": q * (s * first),
    }[form]


def results(func: Func, x: np.ndarray, q: np.ndarray, s: np.ndarray, m: np.ndarray) -> np.ndarray:
    y = np.zeros((3, 5), np.float32)
    run_kernel(func, [x.astype(np.float32), q, s.astype(np.float32), m.astype(np.float32), y], {})
    return y


def operands() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    x = RNG.standard_normal((3, 8)) * 10.0 ** RNG.integers(-3, 4, (3, 1))
    q = RNG.integers(-128, 128, (8, 5), dtype=np.int8)
    return x, q, RNG.random((2, 5)) + 0.1, RNG.standard_normal((2, 5))


def test_each_group_is_a_sum_of_integers() -> None:
    text = print_func(rounded("a scale and a minimum"))
    assert "w[a, b] = i16(q[a, b])" in text, "weights are stored as the integers that they are"
    assert "i32(x_4[i_6, 4*g_6 + k_7]) * i32(w[4*g_6 + k_7, j_1])" in text
    assert "f32(y_1[i, j, g_7]) * (s[g_7, j] * x_2[i, g_7]) - m[g_7, j] * x_6[i, g_7]" in text


@pytest.mark.parametrize("digits", [16, 8])
@pytest.mark.parametrize("form", FORMS)
def test_results_are_off_by_half_of_a_step_of_each_group(form: str, digits: int) -> None:
    for _ in range(5):
        x, q, s, m = operands()
        w = weights(form, q.astype(np.float64), s, m)
        step = np.repeat(np.abs(x).reshape(3, 2, 4).max(-1), 4, -1) / (2 ** (digits - 1) - 1)
        bound = (0.5 * step) @ np.abs(w) + 1e-5 * np.abs(x) @ np.abs(w)
        if form != "integers alone":  # minima are multiplied by a sum of its own
            bound += 1e-5 * np.abs(x).sum(-1, keepdims=True) * (np.abs(w).max() + 130)
        assert np.all(np.abs(results(rounded(form, digits), x, q, s, m) - x @ w) <= bound)


def test_bytes_have_no_sign_and_sums_are_corrected_for_that() -> None:
    text = print_func(rounded("a scale", 8))
    assert "w[a, b] = xor(u8(q[a, b]), 128)" in text
    assert "y_1[i_6, j_1, g_6] = x_6[i_6, g_6]" in text, "sums of integers begin with it, before anything is rounded"
    assert "x_6[i_5, g_5] = x_5[i_5, g_5] * -128" in text
    text = print_func(rounded("a scale", 8, WEIGHTS.replace("q: &i8", "q: &u8")))
    assert "w[a, b] = u8(q[a, b])" in text or "w[a, b] = q[a, b]" in text
    assert "x_5" not in text, "nothing is to be corrected"


@pytest.mark.parametrize("form", FORMS)
def test_integers_in_two_bytes(form: str) -> None:
    func = rounded(form, pieces=2)
    text = print_func(func)
    assert ", p, 4*g_6 + k_7])" in text
    assert "scratch i8[3, 2, 8]" in text and "scratch i32[2, 3, 5, 2]" in text
    for scale in (1.0, 1e-3, 1e6):
        x, q, s, m = operands()
        x *= scale
        x[0, :3] = [-1.0, 1.0, 0.5]
        w = weights(form, q.astype(np.float64), s, m)
        step = np.repeat(np.abs(x).reshape(3, 2, 4).max(-1), 4, -1) / 32639
        bound = (0.5 * step) @ np.abs(w) + 1e-5 * np.abs(x) @ np.abs(w)
        bound += 1e-5 * np.abs(x).sum(-1, keepdims=True) * (np.abs(w).max() + 130)
        assert np.all(np.abs(results(func, x, q, s, m) - x @ w) <= bound)


def test_every_integer_is_its_two_bytes() -> None:
    func = rounded("integers alone", pieces=2)
    for first in range(-32639, 32640, 3 * 7 * 31):
        numbers = np.minimum(first + 31 * np.arange(21), 32639)
        x = np.zeros((3, 8))
        x[:, [0, 4]] = 32639  # so that a step is one
        x[:, [1, 2, 3, 5, 6, 7]] = np.resize(numbers, (3, 6))
        q = RNG.integers(-128, 128, (8, 5), dtype=np.int8)
        np.testing.assert_allclose(results(func, x, q, np.ones((2, 5)), np.zeros((2, 5))), x @ q, rtol=1e-6, atol=2)


def test_pieces_that_are_no_bytes() -> None:
    with pytest.raises(ScheduleError, match="integers of 8 bits are not multiplied in 2 pieces"):
        rounded("a scale", 8, pieces=2)


def test_numbers_that_are_multiples_of_a_step_stay() -> None:
    x = np.tile(np.array([32767.0, -3.0, 0.0, 7.0]), (3, 2))
    _, q, s, m = operands()
    s, m = np.ones_like(s), np.zeros_like(m)
    np.testing.assert_allclose(results(rounded("a scale"), x, q, s, m), x @ q.astype(np.float64), rtol=1e-6)


@pytest.mark.parametrize(("digits", "pieces"), [(16, 1), (8, 1), (16, 2)])
def test_special_numbers(digits: int, pieces: int) -> None:
    """Zeros give zeros, what is not finite changes its own row alone, and the largest and the smallest numbers neither
    overflow nor divide by zero. An infinite element gives what its products are."""
    _, q, s, m = operands()
    largest = float(np.finfo(np.float32).max)
    func = rounded("a scale", digits, pieces=pieces)
    for value in (np.nan, np.inf, -np.inf):
        x = np.ones((3, 8))
        x[1, 3] = value
        y = results(func, x, q, s, m)
        with np.errstate(invalid="ignore"):
            products = value * weights("a scale", q, s, m)[3]
        np.testing.assert_array_equal(y[1], products)
        assert np.isfinite(y[[0, 2]]).all()
    assert not results(func, np.zeros((3, 8)), q, s, m).any()
    assert np.isfinite(results(func, np.full((3, 8), 1e-45), q, s, m)).all()
    assert np.abs(results(func, np.full((3, 8), SMALLEST / 1e3), q, s, m)).max() < 1e-29
    one = np.zeros((8, 5), np.int8)
    one[0] = 1
    scaled = results(func, np.full((3, 8), largest), one, np.ones_like(s), m)
    np.testing.assert_allclose(scaled, largest, rtol=1e-4)


REFUSED = {
    "groups that do not divide it": (WEIGHTS.replace("f32[3, 8]", "f32[3, 8]"), 3, "groups of 3"),
    "scales within a group": (WEIGHTS.replace("s[a // 4, b]", "s[a % 2, b]"), 4, "share"),
    "weights of floats": (WEIGHTS.replace("q: &i8", "q: &f16"), 4, "no sum of one integer"),
    "integers of 32 bits": (WEIGHTS.replace("q: &i8", "q: &i32"), 4, "does not hold"),
    "sums of more than 32 bits": (WEIGHTS.replace("q: &i8", "q: &i16"), 4, "more than 32 bits"),
    "a codebook": (WEIGHTS.replace("f32(q[a, b])", "exp(f32(q[a, b]))"), 4, "no sum of one integer"),
    "sums of float64": (WEIGHTS.replace("y: &f32", "y: &f64").replace("+= x[i, k] * w[k, j]",
                                                                       "+= f64(x[i, k] * w[k, j])"), 4, "f64"),
    "a condition": (WEIGHTS.replace("y[i, j] += x[i, k] * w[k, j]",
                                    "if k < 6 {\n y[i, j] += x[i, k] * w[k, j]\n }"), 4, "more with it"),
    "weights of an argument": (WEIGHTS.replace("* w[k, j]", "* s[k // 4, j]"), 4, "computed for matrices before"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_left_as_it_was(case: str) -> None:
    text, group, reason = REFUSED[case]
    func = read(text)
    before = print_func(func)
    with pytest.raises(ScheduleError, match=reason):
        round_terms(func, buffer(func, "y"), find_loop(func, "k"), group)
    assert print_func(func) == before


def test_digits_are_those_of_an_instruction() -> None:
    func = read(WEIGHTS)
    with pytest.raises(ScheduleError, match="no integers of 12 bits"):
        round_terms(func, buffer(func, "y"), find_loop(func, "k"), 4, 12)


FLOATS = WEIGHTS.replace("q: &i8", "q: &f32").replace(VALUE, "q[a, b] * m[0, b] + s[a // 4, b]")


def floats_rounded(text: str = FLOATS, digits: int = 14, factors: int = 14) -> Func:
    func = read(text)
    round_terms(func, buffer(func, "y"), find_loop(func, "k"), 4, digits, factors=factors)
    return func


def with_weights(func: Func, x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Results for second factors q."""
    return results(func, x, q.astype(np.float32), np.zeros((2, 5)), np.ones((2, 5)))


def test_second_factors_of_floats_are_off_by_half_of_a_power_of_two() -> None:
    func = floats_rounded()
    for _ in range(20):
        x, _, s, m = operands()
        q = RNG.standard_normal((8, 5)) * 10.0 ** RNG.integers(-3, 4, (8, 1))
        w = q * m[0] + np.repeat(s, 4, 0)
        step = np.repeat(np.abs(x).reshape(3, 2, 4).max(-1), 4, -1) / 8191
        steps = np.repeat(2.0 ** np.floor(np.log2(np.abs(w).reshape(2, 4, 5).max(1))) / 4096, 4, 0)
        exact = np.abs(x) @ np.abs(w)
        bound = 0.5 * step @ np.abs(w) + 0.5 * np.abs(x) @ steps + 0.25 * step @ steps + 1e-5 * exact
        found = np.zeros((3, 5), np.float32)
        arrays = (x.astype(np.float32), q.astype(np.float32), s.astype(np.float32), m.astype(np.float32))
        run_kernel(func, [*arrays, found], {})
        assert np.all(np.abs(found - x @ w) <= bound)


def test_second_factors_of_few_bits_are_exact_where_one_is_not_much_larger() -> None:
    func = floats_rounded()
    for power in (-90.0, 0.0, 100.0):
        q = RNG.integers(128, 256, (8, 5)) * RNG.choice([-1.0, 1.0], (8, 5)) * 2.0 ** RNG.integers(-5, 1, (8, 5))
        q[[0, 4]] = 255
        x = np.tile(np.array([8191.0, -3.0, 17.0, 0.0]), (3, 2)) * 2.0**-20
        np.testing.assert_allclose(with_weights(func, x, q * 2.0**power), x @ q * 2.0**power, rtol=5e-7)


def test_special_second_factors() -> None:
    """What is not finite is so in its own column alone, and no size overflows or divides by zero."""
    func, x, largest = floats_rounded(), np.ones((3, 8)), 255 * 2.0**120
    for value in (np.nan, np.inf, -np.inf):
        q = np.ones((8, 5))
        q[3, 1] = value
        y = with_weights(func, x, q)
        np.testing.assert_array_equal(y[:, 1], np.full(3, value, np.float32))
        np.testing.assert_allclose(np.delete(y, 1, 1), 8.0, rtol=1e-3)
    assert not with_weights(func, x, np.zeros((8, 5))).any()
    for size in (1e-45, SMALLEST / 1e3, SMALLEST, 1e-20):
        found = with_weights(func, x, np.full((8, 5), size))
        assert np.abs(found - 8 * size).max() <= 1e-3 * max(SMALLEST, 8 * size)
    one = np.zeros((8, 5))
    one[0] = largest
    np.testing.assert_allclose(with_weights(func, x, one), largest, rtol=1e-3)


@pytest.mark.parametrize(("digits", "factors", "reason"), [(16, 16, "32 bits"), (8, 14, "8 and 14"), (14, 17, "17")])
def test_second_factors_of_too_many_bits(digits: int, factors: int, reason: str) -> None:
    with pytest.raises(ScheduleError, match=reason):
        floats_rounded(digits=digits, factors=factors)
