"""Functions made of the exponential, in double precision."""

from __future__ import annotations

import math

from tilewright.codegen.cpu.kernel.functions import (
    absolute,
    at_most,
    clamp,
    copysign,
    fma,
    polynomial,
)
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath.float64.logarithm import LN2_HIGH, LN2_LOW, product_of_log
from tilewright.codegen.cpu.vmath.power import power_of

LOG2_E = 1.4426950408889634
# Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
ROUND = 1.5 * 2.0**52
BIAS = 1023

# (exp(r) - 1 - r) / r^2 on |r| <= 0.3467, error of exp(r) 2^-62.
EXPM1_TAIL = (
    0.5, 0.1666666666666667, 0.04166666666666667, 0.00833333333332612, 0.0013888888888883737, 0.00019841269874873975,
    2.480158732558584e-05, 2.755725533255441e-06, 2.7557273594799413e-07, 2.510524515390137e-08, 2.0914707069612355e-09,
)  # fmt: skip


def _reduce(x: Reg) -> tuple[Reg, Reg]:
    """ROUND + n and r, where x = n ln 2 + r and |r| <= 0.3467."""
    shifted = fma(x, LOG2_E, ROUND)
    n = shifted - ROUND
    return shifted, fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))


def _powers(shifted: Reg) -> tuple[Reg, Reg, Reg]:
    """2^h, 2^(n - h) and 2^(h - n) where `shifted` is ROUND + n and h about n / 2: each a normal number."""
    half = fma(shifted - ROUND, 0.5, ROUND)
    other = shifted.bits - half.bits
    return tuple(((bits + BIAS) << 52).as_float for bits in (half.bits, other, 0 - other))  # type: ignore[return-value]


def _tail(r: Reg) -> Reg:
    """exp(r) - 1 for |r| <= 0.3467."""
    return fma(polynomial(r, EXPM1_TAIL), r * r, r)


def exp(x: Reg) -> Reg:
    """e^x; underflow is gradual."""
    shifted, r = _reduce(clamp(x, -746.0, 710.0))
    low, high, _ = _powers(shifted)
    return fma(_tail(r), low, low) * high


def _exp_of_sum(x: Reg, low: Reg) -> Reg:
    """e^(x + low) for a `low` that is far below the last place of 1."""
    shifted = fma(x, LOG2_E, ROUND)
    n = shifted - ROUND
    first, second = fma(n, -LN2_HIGH, x), fma(n, -LN2_LOW, low)
    r = first + second
    tail = r + fma(polynomial(r, EXPM1_TAIL), r * r, second - (r - first))
    power, high, _ = _powers(shifted)
    return fma(tail, power, power) * high


def expm1(x: Reg) -> Reg:
    """e^x - 1, accurate near zero."""
    shifted, r = _reduce(clamp(x, -40.0, 710.0))
    low, high, inverse_high = _powers(shifted)
    # 2^n (near + 1) - 1, where only the last product may overflow.
    result = fma(_tail(r), low, low - inverse_high) * high
    # The sum above loses the sign of a zero.
    return copysign(result, x)


def sigmoid(x: Reg) -> Reg:
    """1 / (1 + e^-x), with e^-|x| so that nothing overflows and underflow is gradual."""
    e = exp(-absolute(x))
    return (x < 0.0).select(e, 1.0) / (e + 1.0)


def tanh(x: Reg) -> Reg:
    """Hyperbolic tangent: t / (t + 2) with t = e^2|x| - 1, which is 1 from 20 on."""
    a = at_most(absolute(x), 20.0)
    t = expm1(a + a)
    return copysign(t / (t + 2.0), x)


def _half_exp(a: Reg) -> Reg:
    """e^a / 2, also where e^a overflows."""
    far = a > 700.0
    return exp(far.select(a - 1.0, a)) * far.select(a.like(math.e / 2), 0.5)


def sinh(x: Reg) -> Reg:
    """Hyperbolic sine, by e^|x| - 1 where |x| < 1."""
    a = absolute(x)
    m = expm1(at_most(a, 1.0))
    e = _half_exp(a)
    result = (a < 1.0).select((m + m / (m + 1.0)) * 0.5, e - 0.25 / e)
    return copysign(result, x)


def cosh(x: Reg) -> Reg:
    """Hyperbolic cosine."""
    e = _half_exp(absolute(x))
    return e + 0.25 / e


def pow(x: Reg, y: Reg) -> Reg:
    """x^y with the special cases of C99, annex F.9.4.4."""
    return power_of(x, y, _exp_of_sum(*product_of_log(absolute(x), y)))
