"""Circular functions and their inverses, in single precision.

Coefficients are minimax fits (Lawson's iteration on Chebyshev nodes, rounded to float32); the errors given
are relative, before any rounding of the evaluation.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.codegen.cpu.kernel.functions import absolute, copysign, exact_fma, fma, polynomial, sqrt
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.ir import dtype as dt
from tilewright.ir.dtype import DType

TWO_OVER_PI = 0.6366197723675814
# pi/2 as a sum of three float32 numbers, and as a product of two.
HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
HALF_PI_FACTORS = (0.9045259356498718, 1.7365962266921997)
ROUND = 1.5 * 2.0**23

I128, I256 = (DType(f"i{8 * n}", "int", 8 * n, np.dtype(f"V{n}")) for n in (16, 32))

FAR_ARGUMENT = 65536.0
"""Magnitude of arguments from which on the reduction by three constants is not exact any more."""

# 2/pi in units of 2^-256, rounded down.
TWO_OVER_PI_BITS = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 on |r| <= pi/4, errors 4.0e-9 and 1.2e-10.
SIN_TAIL = (-0.16666655242443085, 0.008332188241183758, -0.0001951809972524643)
COS_TAIL = (0.04166664555668831, -0.0013887310633435845, 2.4432552891084924e-05)
# (atan(t) - t) / t^3 on [0, 1] in powers of t^2, error 1.7e-8.
ATAN_TAIL = (
    -0.33333152532577515, 0.19993767142295837, -0.14211003482341766, 0.10665786266326904,
    -0.07551728934049606, 0.043205976486206055, -0.016364244744181633, 0.0029197600670158863,
)  # fmt: skip
# (asin(t) - t) / t^3 on [0, 1/2] in powers of t^2, error 4.9e-9.
ASIN_TAIL = (
    0.16666753590106964, 0.07495252043008804, 0.045476075261831284, 0.0241515152156353, 0.042213767766952515,
)  # fmt: skip


def _quadrant(x: Reg) -> tuple[Reg, Reg]:
    """q (as i32, modulo 4) and r with x = q pi/2 + r and |r| <= pi/4, for |x| < FAR_ARGUMENT."""
    shifted = fma(x, TWO_OVER_PI, ROUND)
    n = shifted - ROUND
    r = x
    for part in HALF_PI:
        r = exact_fma(n, -part, r)
    return shifted.bits, r


def _far_quadrant(x: Reg) -> tuple[Reg, Reg]:
    """The same for FAR_ARGUMENT <= |x| (nan for inf), in integers after Payne and Hanek (1983); one lane."""
    bits = x.bits
    mantissa = (bits & 0x7FFFFF) | 0x800000
    exponent = (bits >> 23) & 0xFF
    # |x| = mantissa 2^(exponent - 150). The shift aligns 2/pi so that the product, modulo 2^128, is the
    # number of quadrants modulo 4 with 126 bits of fraction.
    two_over_pi = x.text.constant(I256, TWO_OVER_PI_BITS)
    window = (two_over_pi >> (280 - exponent).convert("zext", I256)).to(I128)
    quadrants = window * mantissa.convert("zext", I128)
    nearest = ((quadrants + (1 << 125)) >> 126).to(dt.i32)
    fraction = ((quadrants << 2) >> 64).to(dt.i64).to(dt.f64)
    r = (fraction * (math.pi / 2.0 * 2.0**-64)).to(dt.f32)
    negative = x < 0.0
    # 0 * x turns the remainder of inf into nan.
    r = fma(x, 0.0, negative.select(-r, r))
    return negative.select(-nearest, nearest), r


def _sin_of(r: Reg) -> Reg:
    square = r * r
    return fma(polynomial(square, SIN_TAIL), square * r, r)


def _cos_of(r: Reg) -> Reg:
    square = r * r
    return fma(polynomial(square, COS_TAIL), square * square, fma(square, -0.5, 1.0))


def sine_of_quadrant(q: Reg, r: Reg) -> Reg:
    """sin(q pi/2 + r): odd quadrants take the cosine, the upper two the other sign."""
    value = (q & 1).equals(0).select(_sin_of(r), _cos_of(r))
    return (value.bits ^ ((q & 2) << 30)).as_float


def tangent_of_quadrant(q: Reg, r: Reg) -> Reg:
    """tan(q pi/2 + r): sin/cos in even quadrants, -cos/sin in odd ones."""
    even = (q & 1).equals(0)
    sine, cosine = _sin_of(r), _cos_of(r)
    return even.select(sine, -cosine) / even.select(cosine, sine)


def _keep_zero(x: Reg, result: Reg) -> Reg:
    """The result, or x where that is zero: the reduction loses a zero's sign."""
    return x.equals(0.0).select(x, result)


def sin(x: Reg) -> Reg:
    """Sine for |x| < FAR_ARGUMENT."""
    return _keep_zero(x, sine_of_quadrant(*_quadrant(x)))


def far_sin(x: Reg) -> Reg:
    """Sine of one number from FAR_ARGUMENT on."""
    return sine_of_quadrant(*_far_quadrant(x))


def cos(x: Reg) -> Reg:
    """Cosine for |x| < FAR_ARGUMENT."""
    q, r = _quadrant(x)
    return sine_of_quadrant(q + 1, r)


def far_cos(x: Reg) -> Reg:
    """Cosine of one number from FAR_ARGUMENT on."""
    q, r = _far_quadrant(x)
    return sine_of_quadrant(q + 1, r)


def tan(x: Reg) -> Reg:
    """Tangent for |x| < FAR_ARGUMENT."""
    return _keep_zero(x, tangent_of_quadrant(*_quadrant(x)))


def far_tan(x: Reg) -> Reg:
    """Tangent of one number from FAR_ARGUMENT on."""
    return tangent_of_quadrant(*_far_quadrant(x))


def atan(x: Reg) -> Reg:
    """Inverse tangent, by that of 1/|x| where |x| > 1."""
    a = absolute(x)
    outer = a > 1.0
    one = x.like(1.0)
    t = outer.select(one, a) / outer.select(a, one)
    square = t * t
    inner = fma(polynomial(square, ATAN_TAIL), square * t, t)
    factor = x.like(HALF_PI_FACTORS[0])
    return copysign(outer.select(fma(factor, HALF_PI_FACTORS[1], -inner), inner), x)


def _half_angle(a: Reg) -> tuple[Reg, Reg]:
    """Whether a > 1/2, and asin(sqrt((1 - a) / 2)) there, asin(a) elsewhere; nan for a > 1."""
    outer = a > 0.5
    square = outer.select(fma(a, -0.5, 0.5), a * a)
    t = outer.select(sqrt(square), a)
    return outer, fma(polynomial(square, ASIN_TAIL), square * t, t)


def asin(x: Reg) -> Reg:
    """Inverse sine: pi/2 - 2 asin(sqrt((1 - |x|) / 2)) where |x| > 1/2; nan beyond 1."""
    outer, angle = _half_angle(absolute(x))
    factor = x.like(HALF_PI_FACTORS[0])
    complement = fma(factor, HALF_PI_FACTORS[1], angle * -2.0)
    return copysign(outer.select(complement, angle), x)


def acos(x: Reg) -> Reg:
    """Inverse cosine: pi/2 - asin(x), and for |x| > 1/2 the double angle or pi less it; nan beyond 1."""
    outer, angle = _half_angle(absolute(x))
    factor = x.like(HALF_PI_FACTORS[0])
    negative = x < 0.0
    right_angles = outer.select(negative.select(factor + factor, 0.0), factor)
    reflected = outer.select(angle + angle, -angle)
    reflected = negative.select(-reflected, reflected)
    return fma(right_angles, HALF_PI_FACTORS[1], reflected)
