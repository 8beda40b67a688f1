"""Building blocks in double precision for single-precision results: their errors vanish in the last rounding.

Arguments are float32 numbers widened, or little more, so that nothing here overflows, and underflow only
happens where the result is rounded to float32, once. Coefficients are minimax fits (Lawson's iteration on
Chebyshev nodes), about 2^-32 for the exponential and 2^-45 for the logarithm.
"""

from __future__ import annotations

import math

from tilewright.codegen.cpu.kernel.functions import clamp, fma, polynomial
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453
# Adding 1.5 * 2^52 rounds to an integer and leaves it in the low bits.
ROUND = 1.5 * 2.0**52
BIAS = 1023
ONE_BITS = BIAS << 52
# The upper half of the bits of sqrt(1/2).
SQRT_HALF_HIGH = 0x3FE6A09E

# (exp(r) - 1 - r) / r^2 on |r| <= 0.3467, error of exp(r) - 1 2^-31.9.
EXPM1_TAIL = (
    0.50000000442684, 0.1666666636975509, 0.04166636042824873,
    0.008333389458681319, 0.0013940668480905078, 0.0001984588125811498,
)  # fmt: skip
# (atanh(s) - s) / s^3 on |s| <= 0.1717, error of atanh(s) 2^-44.9.
ATANH_TAIL = (
    0.3333333333790697, 0.1999999780770929, 0.14286055021234012, 0.11088071852227432, 0.09792454132240677,
)  # fmt: skip


def _expm1_and_power(x: Reg) -> tuple[Reg, Reg]:
    """exp(r) - 1 and 2^n, where x = n ln 2 + r; x is cut to where float32 is 0 or inf after any use of it."""
    x = clamp(x, -200.0, 200.0)
    shifted = fma(x, LOG2_E, ROUND)
    r = fma(shifted - ROUND, -LN2, x)
    near = fma(polynomial(r, EXPM1_TAIL), r * r, r)
    return near, ((shifted.bits + BIAS) << 52).as_float


def exp(x: Reg) -> Reg:
    """e^x of a double; +-200 stand for all that is beyond."""
    near, power = _expm1_and_power(x)
    return fma(near, power, power)


def expm1(x: Reg) -> Reg:
    """e^x - 1 of a double, with a relative error of 2^-31; 200 stands for all that is beyond."""
    near, power = _expm1_and_power(x)
    return fma(near, power, power - 1.0)


def _exponent(x: Reg) -> Reg:
    """n as i32 where x = 2^n m, m in [sqrt(1/2), sqrt(2)), for a positive normal double."""
    high = (x.bits >> 32).to(dt.i32)
    return (high - SQRT_HALF_HIGH).arithmetic_shift(20)


def _log1p_plus(f: Reg, n: Reg) -> Reg:
    """log(1 + f) + n ln 2 for f in [sqrt(1/2) - 1, sqrt(2) - 1], as 2 atanh(f / (2 + f)) + n ln 2."""
    s = f / (f + 2.0)
    square = s * s
    half = fma(polynomial(square, ATANH_TAIL), square * s, s)
    return fma(n.to(dt.f64), LN2, half + half)


def log(x: Reg) -> Reg:
    """Natural logarithm of a normal double >= 0, or nan."""
    n = _exponent(x)
    f = (x.bits - (n.to(dt.i64) << 52)).as_float - 1.0
    result = (x < math.inf).select(_log1p_plus(f, n), x)
    return x.equals(0.0).select(x.like(-math.inf), result)


def log1p(x: Reg) -> Reg:
    """log(1 + x) of a double >= 0, or nan."""
    n = _exponent(x + 1.0)
    # 2^-n (1 + x) - 1 without the rounding of 1 + x, which matters where n = 0.
    scale = (ONE_BITS - (n.to(dt.i64) << 52)).as_float
    f = fma(x, scale, scale - 1.0)
    return (x < math.inf).select(_log1p_plus(f, n), x)
