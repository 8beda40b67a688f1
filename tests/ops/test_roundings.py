"""What is proved about rounded products and quotients, against the machine's floats."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tilewright.ir import dtype as dt
from tilewright.ir.sym import Sym, var
from tilewright.ops.define.exact import Arithmetic, element_of
from tilewright.ops.define.floats import LARGEST_COMPARED, Computed, Element, Ratio, UnknownValueError
from tilewright.ops.define.roundings import proven_conditions, readings

N = var("n")
ROUNDED = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}
FLOATS = {dt.f32: np.float32, dt.f64: np.float64}


def whole(e: Sym) -> Ratio:
    return Ratio(e, element_of(1, dt.i64))


def number(x: float, dtype: dt.DType) -> Element:
    return element_of(FLOATS[dtype](x), dtype)


def limit_of(conditions: tuple[Sym, ...], most: int) -> int:
    """The largest n up to `most` that all conditions allow, which are upper bounds."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if all(c.evaluate({"n": middle}) for c in conditions):
            low = middle
        else:
            high = middle - 1
    return low


def examined(most: int, seed: int) -> np.ndarray:
    """All small numbers, and of large ones those around multiples, powers of two and some others."""
    rng = np.random.default_rng(seed)
    powers = 2 ** np.arange(1, 60, dtype=np.int64)
    parts = [np.arange(1 << 15), most - np.arange(1000), rng.integers(0, most + 1, 1 << 14)]
    parts += [(powers[:, None] * k // d + np.arange(-3, 4)).ravel() for k, d in ((1, 1), (4, 3), (6, 5), (99, 100))]
    found = np.concatenate(parts)
    return found[(found >= 0) & (found <= most)]


FACTORS = sorted({k / d for d in (1, 3, 7, 8, 10, 49, 100) for k in range(1, 60)})


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_proved_of_products_holds(dtype: dt.DType, name: str) -> None:
    cast = FLOATS[dtype]
    proved = 0
    for factor in FACTORS:
        operand = Computed("mul", (number(factor, dtype), whole(N)), dtype, dtype)
        conditions = proven_conditions(name, (operand,))
        if conditions is None:
            continue
        proved += 1
        most = limit_of(conditions, 1 << 36)
        assert most >= LARGEST_COMPARED
        n = examined(most, int(factor * 1000))
        exact = Fraction(factor).limit_denominator(1024)
        p, q = exact.numerator, exact.denominator
        tie = 2 * (n * p % q) == q
        nearest = (2 * n * p + q) // (2 * q) - (tie & ((2 * n * p + q) // (2 * q) % 2 == 1))
        wanted = {"floor": n * p // q, "trunc": n * p // q, "ceil": -(-n * p // q), "round": nearest}[name]
        assert np.array_equal(ROUNDED[name](n.astype(cast) * cast(factor)), wanted), factor
    assert proved > 20


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_proved_of_quotients_holds(dtype: dt.DType, name: str) -> None:
    cast = FLOATS[dtype]
    for divisor in (1, 2, 3, 7, 10, 49, 640, 1000):
        operand = Computed("div", (whole(N), number(divisor, dtype)), dtype, dtype)
        conditions = proven_conditions(name, (operand,))
        assert conditions is not None
        n = examined(limit_of(conditions, 1 << 36), divisor)
        rest = n % divisor
        up = (2 * rest > divisor) | ((2 * rest == divisor) & (n // divisor % 2 == 1))
        wanted = {"floor": n // divisor, "trunc": n // divisor, "ceil": -(-n // divisor), "round": n // divisor + up}
        assert np.array_equal(ROUNDED[name](n.astype(cast) / cast(divisor)), wanted[name]), divisor


@pytest.mark.parametrize("factor", [0.7, 1.4, 2.3, 13 / 3, 29 / 3])
def test_a_factor_that_rounds_some_dims_down_is_not_proved(factor: float) -> None:
    operand = Computed("mul", (number(factor, dt.f64), whole(N)), dt.f64, dt.f64)
    assert proven_conditions("floor", (operand,)) is None
    with pytest.raises(UnknownValueError):
        Arithmetic(exceptions=False).apply("floor", (operand,), dt.f64, dt.f64)


def test_the_neighbours_of_a_constant_have_nothing_between_them() -> None:
    rng = np.random.default_rng(0)
    for x in (*rng.uniform(0.001, 90, 50), 1 / 3, 0.7, 3.0, 0.5):
        exact = Fraction(float(x))
        found = [Fraction(r.over.value, r.under.value) for r in readings(number(x, dt.f64))]
        assert exact in found
        close = [f for f in found if f.denominator <= LARGEST_COMPARED]
        below, above = max(f for f in close if f <= exact), min(f for f in close if f >= exact)
        difference = above - below
        assert difference == 0 or difference == Fraction(1, below.denominator * above.denominator)
        assert below.denominator + above.denominator > LARGEST_COMPARED or difference == 0


def test_a_constant_of_many_digits_is_the_fraction_below_it() -> None:
    """No fraction of small terms, and no decimal of few digits: the size is still one expression of 64 bits."""
    factor = 0.37284638291
    arithmetic = Arithmetic(exceptions=False)
    product = arithmetic.apply("mul", (arithmetic.cast(N, dt.f64, dt.i64), number(factor, dt.f64)), dt.f64, dt.f64)
    size = arithmetic.cast(product, dt.i64, dt.f64)
    assert isinstance(size, Sym)
    n = np.arange(LARGEST_COMPARED)
    assert np.array_equal(size.evaluate_numpy({"n": n}), np.floor(n * factor))
