"""Functions made of the logarithm, in single precision."""

from __future__ import annotations

import math

from tilewright.codegen.cpu.kernel.functions import absolute, copysign, fma, polynomial, sqrt
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath import wide
from tilewright.codegen.cpu.vmath.power import power_of
from tilewright.ir import dtype as dt

LN2 = 0.6931471805599453
SMALLEST_NORMAL = 2.0**-126
EXPONENT_BITS = -(1 << 23)
TWO_THIRDS_BITS = 0x3F2AAAAB
FOUR_BITS = 0x40800000

# (log(1 + f) - f) / f^2 on |f| <= 1/3, error of log(1 + f) 2.6e-8 (Lawson's iteration, rounded to float32).
LOG1P_TAIL = (
    -0.49999937415122986, 0.33333200216293335, -0.250077486038208, 0.20011073350906372,
    -0.1641702950000763, 0.13997134566307068, -0.1538359820842743, 0.14020581543445587,
)  # fmt: skip


def _log1p_plus(f: Reg, n: Reg) -> Reg:
    """log(1 + f) + n ln 2 for |f| <= 1/3."""
    return fma(n, LN2, fma(polynomial(f, LOG1P_TAIL), f * f, f))


def _power_bits(x: Reg) -> Reg:
    """n << 23 where x = 2^n m, m in [2/3, 4/3): the exponent counted from the bits of 2/3."""
    return (x.bits - TWO_THIRDS_BITS) & EXPONENT_BITS


def _with_poles(x: Reg, zero: float, result: Reg) -> Reg:
    """The result where zero < x < inf; -inf at zero, nan below it; inf and nan as they are."""
    pole = x.equals(zero).select(x.like(-math.inf), math.nan)
    return (x <= zero).select(pole, (x < math.inf).select(result, x))


def log(x: Reg) -> Reg:
    """Natural logarithm; -inf at both zeros, nan below them."""
    subnormal = x < SMALLEST_NORMAL
    scaled = subnormal.select(x * 2.0**23, x)
    offset = subnormal.select(x.like(-23.0), 0.0)
    power = _power_bits(scaled)
    f = (scaled.bits - power).as_float - 1.0
    n = fma(power.to(dt.f32), 2.0**-23, offset)
    return _with_poles(x, 0.0, _log1p_plus(f, n))


def log1p(x: Reg) -> Reg:
    """log(1 + x), accurate near zero; -inf at -1."""
    power = _power_bits(x + 1.0)
    # f = 2^-n (1 + x) - 1 without the rounding of 1 + x; 4 * 2^-n stays normal where 2^-n does not.
    quadruple = (FOUR_BITS - power).as_float
    f = (x.bits - power).as_float + fma(quadruple, 0.25, -1.0)
    result = _log1p_plus(f, power.to(dt.f32) * 2.0**-23)
    # The sum above loses the sign of a zero.
    return _with_poles(x, -1.0, copysign(result, x))


def asinh(x: Reg) -> Reg:
    """Inverse hyperbolic sine: sign(x) log1p(|x| + sqrt(1 + x^2) - 1)."""
    a = absolute(x).to(dt.f64)
    result = wide.log1p(a + (sqrt(fma(a, a, 1.0)) - 1.0))
    return copysign(result.to(dt.f32), x)


def acosh(x: Reg) -> Reg:
    """Inverse hyperbolic cosine: log1p(t + sqrt(2t + t^2)) with t = x - 1; nan below 1."""
    t = x.to(dt.f64) - 1.0
    result = wide.log1p(t + sqrt(fma(t, t, t + t)))
    # The root is real again below -1.
    return (t >= 0.0).select(result, math.nan).to(dt.f32)


def atanh(x: Reg) -> Reg:
    """Inverse hyperbolic tangent: sign(x)/2 log1p(2a / (1 - a)) with a = |x|; inf at 1, nan beyond."""
    a = absolute(x).to(dt.f64)
    result = wide.log1p((a + a) / (1.0 - a)) * 0.5
    result = (a <= 1.0).select(result, math.nan)
    return copysign(result.to(dt.f32), x)


def pow(x: Reg, y: Reg) -> Reg:
    """x^y with the special cases of C99, annex F.9.4.4."""
    magnitude = wide.exp(y.to(dt.f64) * wide.log(absolute(x).to(dt.f64))).to(dt.f32)
    return power_of(x, y, magnitude)
