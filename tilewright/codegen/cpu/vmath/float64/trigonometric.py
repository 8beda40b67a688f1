"""Circular functions and their inverses, in double precision."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import absolute, copysign, exact_fma, fma, polynomial, sqrt
from tilewright.codegen.cpu.kernel.text import Reg

TWO_OVER_PI = 0.6366197723675814
# pi/2 as a sum of three numbers.
HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)
QUARTER_PI = (0.7853981633974483, 3.061616997868383e-17)
ROUND = 1.5 * 2.0**52

FAR_ARGUMENT = 2.0**30
"""Magnitude of arguments from which on the math library computes: the quotient by pi/2 would not be exact enough."""

# (sin(r) - r) / r^3 and (cos(r) - 1 + r^2/2) / r^4 on |r| <= pi/4, errors of the functions 2^-66 and 2^-60.
SIN_TAIL = (
    -0.16666666666666666, 0.008333333333333331, -0.00019841269841265017, 2.755731921930192e-06,
    -2.5052106219521895e-08, 1.6058529572267877e-10, -7.586576588171073e-13,
)  # fmt: skip
COS_TAIL = (
    0.041666666666666664, -0.0013888888888887382, 2.480158729874307e-05, -2.7557317260008837e-07,
    2.0876143827993133e-09, -1.1382456778061306e-11,
)  # fmt: skip
# (atan(t) - t) / t^3 on |t| <= tan(pi/8), error of atan 2^-62.
ATAN_TAIL = (
    -0.3333333333333333, 0.19999999999999804, -0.14285714285659457, 0.11111111105119366, -0.09090908751706075,
    0.07692296323157785, -0.06666423954373413, 0.058789182929757273, -0.05230375457576669, 0.04551233844829568,
    -0.03456132296826231, 0.01627552168389342,
)  # fmt: skip
# (asin(t) - t) / t^3 on |t| <= 1/2, error of asin 2^-58.
ASIN_TAIL = (
    0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247, 0.02237217294214989,
    0.017352392720869973, 0.013971212973552933, 0.011479177415184906, 0.01032281435018578, 0.005457506718640358,
    0.01740087944269402, -0.014851887071247204, 0.028757851367421566,
)  # fmt: skip
TAN_THREE_EIGHTHS, TAN_EIGHTH = 2.414213562373095, 0.41421356237309503


def _quadrant(x: Reg) -> tuple[Reg, Reg, Reg]:
    """q (whose last two bits count) and the sum of two numbers r, where x = q pi/2 + r and |r| <= pi/4, for
    |x| < FAR_ARGUMENT.

    The first product and its difference from x are exact, the second product is taken apart and what its difference
    rounds off is kept: a remainder as small as that of any such x has all its bits.
    """
    shifted = fma(x, TWO_OVER_PI, ROUND)
    n = shifted - ROUND
    first = exact_fma(n, -HALF_PI[0], x)
    product = n * HALF_PI[1]
    product_low = exact_fma(n, HALF_PI[1], -product)
    r = first - product
    part = first - r
    lost = (first - (r + part)) + (part - product)
    return shifted.bits, r, fma(n, -HALF_PI[2], lost - product_low)


def _sin_of(r: Reg, low: Reg) -> Reg:
    square = r * r
    return r + fma(polynomial(square, SIN_TAIL), square * r, fma(square * -0.5, low, low))


def _cos_of(r: Reg, low: Reg) -> Reg:
    square = r * r
    half = square * 0.5
    whole = 1.0 - half
    return whole + (((1.0 - whole) - half) + fma(polynomial(square, COS_TAIL), square * square, -(r * low)))


def _sine_of_quadrant(q: Reg, r: Reg, low: Reg) -> Reg:
    """sin(q pi/2 + r): odd quadrants take the cosine, the upper two the other sign."""
    value = (q & 1).equals(0).select(_sin_of(r, low), _cos_of(r, low))
    return (value.bits ^ ((q & 2) << 62)).as_float


def _keep_zero(x: Reg, result: Reg) -> Reg:
    """The result, or x where that is zero: the reduction loses a zero's sign."""
    return x.equals(0.0).select(x, result)


def sin(x: Reg) -> Reg:
    """Sine for |x| < FAR_ARGUMENT."""
    return _keep_zero(x, _sine_of_quadrant(*_quadrant(x)))


def cos(x: Reg) -> Reg:
    """Cosine for |x| < FAR_ARGUMENT."""
    q, r, low = _quadrant(x)
    return _sine_of_quadrant(q + 1, r, low)


def tan(x: Reg) -> Reg:
    """Tangent for |x| < FAR_ARGUMENT: sin/cos in even quadrants, -cos/sin in odd ones."""
    q, r, low = _quadrant(x)
    even = (q & 1).equals(0)
    sine, cosine = _sin_of(r, low), _cos_of(r, low)
    return _keep_zero(x, even.select(sine, -cosine) / even.select(cosine, sine))


def atan(x: Reg) -> Reg:
    """Inverse tangent, by that of -1/|x| or of (|x| - 1) / (|x| + 1) where |x| is above the tangent of pi/8."""
    a = absolute(x)
    outer, middle = a > TAN_THREE_EIGHTHS, a > TAN_EIGHTH
    above = outer.select(a.like(-1.0), middle.select(a - 1.0, a))
    below = outer.select(a, middle.select(a + 1.0, 1.0))
    high, low = (
        outer.select(a.like(half), middle.select(a.like(quarter), 0.0))
        for half, quarter in zip(HALF_PI[:2], QUARTER_PI, strict=True)
    )
    t = above / below
    square = t * t
    return copysign(high + (t + fma(polynomial(square, ATAN_TAIL), square * t, low)), x)


def _half_angle(a: Reg) -> tuple[Reg, Reg, Reg]:
    """Whether a > 1/2, and asin(sqrt((1 - a) / 2)) there, asin(a) elsewhere, as a sum; nan for a > 1."""
    outer = a > 0.5
    square = outer.select(fma(a, -0.5, 0.5), a * a)
    t = outer.select(sqrt(square), a)
    return outer, t, polynomial(square, ASIN_TAIL) * square * t


def asin(x: Reg) -> Reg:
    """Inverse sine: pi/2 - 2 asin(sqrt((1 - |x|) / 2)) where |x| > 1/2; nan beyond 1."""
    outer, t, tail = _half_angle(absolute(x))
    complement = HALF_PI[0] - ((t + t) + fma(tail, 2.0, -HALF_PI[1]))
    return copysign(outer.select(complement, t + tail), x)


def acos(x: Reg) -> Reg:
    """Inverse cosine: pi/2 - asin(x), and for |x| > 1/2 the double angle or pi less it; nan beyond 1."""
    outer, t, tail = _half_angle(absolute(x))
    double = (t + t) + (tail + tail)
    reflected = (x < 0.0).select(2.0 * HALF_PI[0] - (double - 2.0 * HALF_PI[1]), double)
    return outer.select(reflected, HALF_PI[0] - (x + (copysign(tail, x) - HALF_PI[1])))
