"""Functions made of the exponential, in single precision.

Each takes the argument and returns the result. Coefficients are minimax fits
(Lawson's iteration on Chebyshev nodes, then rounded to float32 from the lowest power up, the rest refitted
after each); the errors given are the fit's, relative, before any rounding of the evaluation.
"""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import (
    absolute,
    at_most,
    clamp,
    copysign,
    fma,
    polynomial,
)
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath import wide
from tilewright.codegen.cpu.vmath.scaling import multiply_by_power
from tilewright.ir import dtype as dt
from tilewright.target.scale import Scale

LOG2_E = 1.4426950408889634
# ln 2 = LN2_HIGH + LN2_LOW; LN2_HIGH has 15 bits, so that its product with an exponent is exact.
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.428606765330187e-06

# Outside of these bounds e^x is 0 or inf in float32.
UNDERFLOW, OVERFLOW = -104.0, 89.0

# Adding 1.5 * 2^23 rounds to an integer n and leaves it in the low bits. With twice the exponent's bias
# added, halving the bits yields a biased exponent; all that stands above it is pushed out when it is moved
# into place.
ROUND = 1.5 * 2.0**23
TWICE_BIAS = 254
ROUND_BIASED = ROUND + TWICE_BIAS

# The root of e^x as 2^m e^r, with 2^m made of 2^SPREAD and 2^(m - SPREAD): this is 0 for m = -75, the least
# exponent.
SPREAD = 52
BIAS = 127

# exp(r) on |r| <= 0.3467, error 9.3e-8.
EXP = (
    1.0,
    0.9999997019767761,
    0.4999914765357971,
    0.16667652130126953,
    0.041898176074028015,
    0.00828936044126749,
)
# (exp(r) - 1) / r on |r| <= 0.3467, error of exp 3.1e-9.
EXPM1_OVER_R = (
    1.0,
    0.4999999403953552,
    0.1666652113199234,
    0.04166825860738754,
    0.008368666283786297,
    0.0013821196043863893,
)
# (exp(r) - 1 - r) / r^2 on |r| <= 0.3467, error of exp(r) - 1 1.4e-8.
EXPM1_TAIL = (
    0.4999999701976776,
    0.1666654646396637,
    0.04166743531823158,
    0.00836626160889864,
    0.0013870657421648502,
)


def _reduce(x: Reg) -> tuple[Reg, Reg]:
    """x as n ln 2 + r with |r| <= ln(2)/2: ROUND_BIASED + n, and r."""
    shifted = fma(x, LOG2_E, ROUND_BIASED)
    n = shifted - ROUND_BIASED
    return shifted, fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))


def _half_powers(shifted: Reg) -> tuple[Reg, Reg]:
    """2^floor(n/2) and 2^ceil(n/2), for 2^n as a product: alone it leaves the exponent's range."""
    half = shifted.bits >> 1
    return (half << 23).as_float, ((shifted.bits - half) << 23).as_float


def _inverse_high(shifted: Reg) -> Reg:
    """2^-ceil(n/2)."""
    return (((shifted.bits >> 1) - shifted.bits + TWICE_BIAS) << 23).as_float


def _reduce_root(x: Reg, scale: float, bias: int) -> tuple[Reg, Reg]:
    """scale x as 2 (m ln 2 + r) with |r| <= ln(2)/2 and scale 1 or -1: ROUND + bias + m, and 2 r / scale.

    The square of 2^m e^r is e^x where 2^(2m) alone leaves the exponent's range, and underflows gradually.
    """
    shifted = fma(x, scale * LOG2_E / 2, ROUND + bias)
    m = shifted - (ROUND + bias)
    return shifted, fma(m, -2 * scale * LN2_LOW, fma(m, -2 * scale * LN2_HIGH, x))


def _exp_of_half(twice: Reg, argument_scale: float, factor: float) -> Reg:
    """factor e^(argument_scale twice / 2), for a power of two as `factor`: the coefficients take both."""
    powers = tuple(factor * (argument_scale / 2) ** (i + 1) * c for i, c in enumerate(EXPM1_OVER_R))
    return polynomial(twice, (factor, *powers))


def exp(x: Reg) -> Reg:
    """e^x; underflow is gradual, and arguments that are clearly below it yield 0 without an underflow.

    That one takes some hundred cycles on many cores, also where it comes to 0, and masked scores of attention
    are such arguments: for them this is a product with 0.
    """
    if x.text.scale is not None:
        return _scaled_exp(x.text.scale, x)
    shifted, twice = _reduce_root(clamp(x, UNDERFLOW, OVERFLOW), 1.0, BIAS - SPREAD)
    root = _exp_of_half(twice, 1.0, 2.0**SPREAD) * (shifted.bits << 23).as_float
    return root * root


def _scaled_exp(scale: Scale, x: Reg) -> Reg:
    """e^x as 2^n e^r with a factor 2^n of any size."""
    # A nan is kept, as it is not below.
    keep = ~(x < UNDERFLOW)
    x = at_most(x, OVERFLOW)
    n = fma(x, LOG2_E, ROUND) - ROUND
    r = fma(n, -LN2_LOW, fma(n, -LN2_HIGH, x))
    return multiply_by_power(scale, polynomial(r, EXP), n, keep)


def expm1(x: Reg) -> Reg:
    """e^x - 1, accurate near zero."""
    shifted, r = _reduce(clamp(x, -20.0, 89.0))
    low, high = _half_powers(shifted)
    near = fma(polynomial(r, EXPM1_TAIL), r * r, r)
    # 2^n (near + 1) - 1, where only the last product may overflow.
    result = fma(near, low, low - _inverse_high(shifted)) * high
    # The sum above loses the sign of a zero.
    return copysign(result, x)


def sigmoid(x: Reg) -> Reg:
    """1 / (1 + e^-x), computed as 2^-m / (2^-m + 2^m e^2r) where -x = 2 (m ln 2 + r): nothing overflows."""
    shifted, twice = _reduce_root(clamp(x, -104.0, 104.0), -1.0, BIAS)
    power = shifted.bits << 23
    inverse = ((2 * BIAS << 23) - power).as_float
    root = _exp_of_half(twice, -1.0, 1.0)
    return inverse / fma(root * power.as_float, root, inverse)


def sinh(x: Reg) -> Reg:
    """Hyperbolic sine."""
    m = wide.expm1(absolute(x).to(dt.f64))
    return copysign(((m + m / (m + 1.0)) * 0.5).to(dt.f32), x)


def cosh(x: Reg) -> Reg:
    """Hyperbolic cosine."""
    e = wide.exp(absolute(x).to(dt.f64))
    return ((e + 1.0 / e) * 0.5).to(dt.f32)
