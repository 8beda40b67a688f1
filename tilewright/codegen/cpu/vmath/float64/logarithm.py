"""Functions made of the logarithm, in double precision."""

from __future__ import annotations

import math

from tilewright.codegen.cpu.kernel.functions import absolute, clamp, exact_fma, fma, polynomial
from tilewright.codegen.cpu.kernel.text import Reg

# ln 2 = LN2_HIGH + LN2_LOW; LN2_HIGH has 41 bits, so that its product with an exponent is exact.
LN2_HIGH = 0.693147180559663
LN2_LOW = 2.8235290563031577e-13
SMALLEST_NORMAL = 2.0**-1022
TWO_THIRDS_BITS = 0x3FE5555555555555
FOUR_BITS = 0x4010000000000000
EXPONENT_BITS = -(1 << 52)
BIASED_ONE = 1023 << 52
# A number of up to 52 bits, put into the bits of 2^52, is 2^52 plus that number.
INTEGER_BITS = 0x4330000000000000
# 2/3 = TWO_THIRDS + TWO_THIRDS_LOW
TWO_THIRDS, TWO_THIRDS_LOW = 0.6666666666666666, 3.700743415417188e-17

# (2 atanh(s) - 2 s) / s^3 in powers of s^2 on |s| <= 0.2, error of log 2^-58.
ATANH_TAIL = (
    0.6666666666666666, 0.4000000000000794, 0.28571428567275936, 0.2222222304835159, 0.18181737626302938,
    0.15388867805613718, 0.13209708242059462, 0.13609030262858499,
)  # fmt: skip
# (2 atanh(s) - 2 s - 2/3 s^3) / s^5 likewise, error of log 2^-72.
ATANH_FAR_TAIL = (
    0.4, 0.28571428571428487, 0.22222222222277695, 0.18181818167391273, 0.15384617228261813, 0.1333320125384769,
    0.11770245498984806, 0.10391790132801734, 0.11256990431013299,
)  # fmt: skip


def _exponent(x: Reg) -> tuple[Reg, Reg]:
    """n << 52 and n as a number, where x = 2^n m, m in [2/3, 4/3), of a normal x > 0."""
    counted = x.bits - (TWO_THIRDS_BITS - BIASED_ONE)
    n = ((counted >> 52) | INTEGER_BITS).as_float - (2.0**52 + 1023.0)
    return (counted & EXPONENT_BITS) - BIASED_ONE, n


def _log1p_plus(f: Reg, n: Reg) -> Reg:
    """log(1 + f) + n ln 2 for |f| <= 1/3, as 2 atanh(f / (2 + f)) + n ln 2."""
    s = f / (f + 2.0)
    square = s * s
    half = f * f * 0.5
    tail = fma(s, half + square * polynomial(square, ATANH_TAIL), n * LN2_LOW)
    return fma(n, LN2_HIGH, f - (half - tail))


def _with_poles(x: Reg, zero: float, result: Reg) -> Reg:
    """The result where zero < x < inf; -inf at zero, nan below it; inf and nan as they are."""
    pole = x.equals(zero).select(x.like(-math.inf), math.nan)
    return (x <= zero).select(pole, (x < math.inf).select(result, x))


def _normal(x: Reg) -> tuple[Reg, Reg]:
    """x as a normal number times a power of two, and its exponent less that of the power."""
    subnormal = x < SMALLEST_NORMAL
    return subnormal.select(x * 2.0**54, x), subnormal.select(x.like(-54.0), 0.0)


def log(x: Reg) -> Reg:
    """Natural logarithm; -inf at both zeros, nan below them."""
    scaled, offset = _normal(x)
    power, n = _exponent(scaled)
    f = (scaled.bits - power).as_float - 1.0
    return _with_poles(x, 0.0, _log1p_plus(f, n + offset))


def log1p(x: Reg) -> Reg:
    """log(1 + x), accurate near zero; -inf at -1."""
    power, n = _exponent(x + 1.0)
    # f = 2^-n (1 + x) - 1 without the rounding of 1 + x; 4 * 2^-n stays normal where 2^-n does not.
    quadruple = (FOUR_BITS - power).as_float
    f = (x.bits - power).as_float + fma(quadruple, 0.25, -1.0)
    # A zero keeps its sign, and the smallest numbers their bits.
    result = (absolute(x) < 2.0**-54).select(x, _log1p_plus(f, n))
    return _with_poles(x, -1.0, result)


def log_in_two(x: Reg) -> tuple[Reg, Reg]:
    """The logarithm of x > 0 as the sum of two numbers, with an error of about 2^-65; -inf at zero, inf at inf."""
    scaled, offset = _normal(x)
    power, n = _exponent(scaled)
    n = n + offset
    f = (scaled.bits - power).as_float - 1.0
    # s = f / (2 + f)
    below = f + 2.0
    below_low = f - (below - 2.0)
    inverse = 1.0 / below
    s = f * inverse
    s_low = fma(-s, below_low, exact_fma(-s, below, f)) * inverse
    square = s * s
    square_low = exact_fma(s, s, -square) + (s + s) * s_low
    # t = s^2 (2/3 + s^2 (...))
    small = square * polynomial(square, ATANH_FAR_TAIL)
    factor = small + TWO_THIRDS
    factor_low = (TWO_THIRDS - factor) + small + TWO_THIRDS_LOW
    t = square * factor
    t_low = exact_fma(square, factor, -t) + fma(square, factor_low, square_low * factor)
    # n ln 2 + 2 s + s t
    u = s * t
    u_low = exact_fma(s, t, -u) + fma(s, t_low, s_low * t)
    exponent, twice = n * LN2_HIGH, s + s
    total = exponent + twice
    low = twice - (total - exponent)
    more = total + u
    low = low + ((total - more) + u) + (u_low + fma(n, LN2_LOW, s_low + s_low))
    result = more + low
    result_low = low - (result - more)
    pole = x.equals(0.0).select(x.like(-math.inf), x)
    inside = (x > 0.0) & (x < math.inf)
    return inside.select(result, pole), inside.select(result_low, 0.0)


def product_of_log(x: Reg, y: Reg) -> tuple[Reg, Reg]:
    """y log(x) as the sum of two numbers, cut to where its exponential is 0 or inf; nan where it is none."""
    log_x, low = log_in_two(x)
    product = y * log_x
    product_low = exact_fma(y, log_x, -product) + y * low
    cut = clamp(product, -760.0, 720.0)
    return cut, cut.equals(product).select(product_low, 0.0)
