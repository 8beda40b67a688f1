"""Functions of elements which take as many steps as the elements say: divisors, incomplete gamma functions."""

from __future__ import annotations

from tilewright.ir import dtype as dt
from tilewright.ir.types import TensorType, product
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, ScalarBuilder
from tilewright.ops.sort import unflattened

MOST_STEPS = 100_000
"""Of a series of the incomplete gamma function: enough for parameters up to 1e8."""


def _divisor_types(a: TensorType, b: TensorType) -> tuple[TensorType, ...]:
    if not a.dtype.is_int or a != b:
        raise ValueError(f"common divisors are of integers of one type and shape, not of {a} and {b}")
    return (a,)


@irregular(_divisor_types)
def common_divisor(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """The greatest common divisor of each two elements, not negative; that of 0 and 0 is 0."""
    (a, b), (y,) = inputs, outputs
    steps = (a.dtype.bits * 3 + 1) // 2 + 1  # numbers of Fibonacci take the most
    with t.loop(product(a.shape), "element", "parallel") as element:
        place = unflattened(element, a.shape)
        first, second = (t.alloc(a.dtype, (1,), "reg") for _ in range(2))
        first.store((0,), a[place])
        second.store((0,), b[place])
        with t.loop(steps, "step"), t.when(second[0].ne(0)):
            x, y_ = first[0], second[0]
            minus_one = y_.eq(-1) if a.dtype.kind == "int" else y_.eq(0)
            divisor = t.select(minus_one, 1, y_)  # the least integer has no quotient by -1
            rest = t.apply("rem", x, divisor)
            first.store((0,), y_)
            second.store((0,), rest)
        found = first[0]
        y.store(place, t.select(found < 0, -found, found) if a.dtype.kind == "int" else found)


def _gamma_types(a: TensorType, x: TensorType) -> tuple[TensorType, ...]:
    if a.dtype != dt.f64 or a != x:
        raise ValueError(f"the parameters and places of a series are f64 of one shape, not {a} and {x}")
    return (a,)


@irregular(_gamma_types)
def incomplete_gamma_series(t: ScalarBuilder, inputs: list[Array], outputs: list[Array]) -> None:
    """Of a > 0 and x > 0: below a + 1 the sum of x^n / ((a + 1) ... (a + n)), by which x^a exp(-x) / gamma(a + 1) is
    to be multiplied to give the lower function; from there on the continued fraction by which x^a exp(-x) / gamma(a)
    is to be multiplied to give the upper one (Abramowitz & Stegun 6.5.29 and 6.5.31). NaN for others."""
    (a, x), (y,) = inputs, outputs
    with t.loop(product(a.shape), "element", "parallel") as element:
        place = unflattened(element, a.shape)
        p, at = a[place], x[place]
        is_usual = (p > 0) & (at > 0) & (p < 1e300) & (at < 1e300)
        # terms shrink as a normal distribution whose width is the root of a
        needed = t.apply("min", t.apply("sqrt", t.select(is_usual, p, 1.0)) * 10 + 80, float(MOST_STEPS))
        steps = t.bind(needed.cast(dt.i64), "steps", 0, MOST_STEPS)
        y.store(place, float("nan"))
        with t.when(is_usual, at < p + 1):
            term, total = (t.alloc(dt.f64, (1,), "reg") for _ in range(2))
            term.store((0,), 1)
            total.store((0,), 1)
            with t.loop(steps, "n") as n:
                term.store((0,), term[0] * (at / (p + t.index(n + 1).cast(dt.f64))))
                total.store((0,), total[0] + term[0])
            y.store(place, total[0])
        with t.when(is_usual, at >= p + 1):
            # Lentz's rule: ratios of numerators and of denominators of the fraction
            upper, lower, total = (t.alloc(dt.f64, (1,), "reg") for _ in range(3))
            first = at + 1 - p
            upper.store((0,), first + 1e300)
            lower.store((0,), t.const(1, dt.f64) / first)
            total.store((0,), lower[0])
            with t.loop(steps, "n") as n:
                k = t.index(n + 1).cast(dt.f64)
                over, under = -k * (k - p), first + k * 2
                lower.store((0,), t.const(1, dt.f64) / (over * lower[0] + under))
                upper.store((0,), under + over / upper[0])
                total.store((0,), total[0] * (upper[0] * lower[0]))
            y.store(place, total[0])
