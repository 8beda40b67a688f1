"""Functions made of the logarithm, in single precision."""

from __future__ import annotations

import math

from tilewright.codegen.vmath.body import Body, Value

LN2 = 0.6931471805599453
SMALLEST_NORMAL = 2.0**-126
TWO_THIRDS_BITS = 0x3F2AAAAB

# (log(1 + f) - f) / f^2 on |f| <= 1/3, error of log(1 + f) 2.6e-8.
LOG1P_TAIL = (
    -0.49999937415122986, 0.33333200216293335, -0.250077486038208, 0.20011073350906372,
    -0.1641702950000763, 0.13997134566307068, -0.1538359820842743, 0.14020581543445587,
)  # fmt: skip


def log(body: Body, x: Value) -> Value:
    """Natural logarithm; -inf at both zeros, nan below them."""
    subnormal = x < SMALLEST_NORMAL
    scaled = body.select(subnormal, x * 2.0**23, x)
    offset = body.select(subnormal, body.constant("f32", -23.0), 0.0)
    # scaled = 2^n m with m in [2/3, 4/3): the bits above those of 2/3 count the powers of two.
    power = (scaled.bits - TWO_THIRDS_BITS) & -(1 << 23)
    f = (scaled.bits - power).as_float - 1.0
    n = body.fma(power.to("f32"), 2.0**-23, offset)
    tail = body.polynomial(f, LOG1P_TAIL)
    result = body.fma(n, LN2, body.fma(tail, f * f, f))
    at_or_below_zero = body.select(x.equals(0.0), body.constant("f32", -math.inf), math.nan)
    result = body.select(x < math.inf, result, x)
    return body.select(x <= 0.0, at_or_below_zero, result)
