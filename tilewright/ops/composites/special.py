"""Special functions of mathematics, all computed in f64: results of f32 are rounded once.

Errors against SciPy are up to some 500 units of the last place of f64 away from zeros of a function, and a few thousand
beside those of the Bessel functions J and Y: far less than one of f32. Chebyshev coefficients are made when they are
first needed, from integrals that the trapezoidal rule gives to the last digit (Trefethen & Weideman, 2014).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache

import numpy as np

from tilewright.ir.core import Value
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.declared import composite
from tilewright.ops.iterated import incomplete_gamma_series

BERNOULLI = (
    1 / 6,
    -1 / 30,
    1 / 42,
    -1 / 30,
    5 / 66,
    -691 / 2730,
    7 / 6,
    -3617 / 510,
    43867 / 798,
    -174611 / 330,
)
"""B2, B4, ..."""

SHIFT = 10
"""Asymptotic series are taken of an argument that is so much greater."""


@composite
def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's rule; the constant term comes first."""
    found: Value = ew.mul(x, 0.0) if len(coefficients) == 1 else ew.mul(x, float(coefficients[-1]))
    for c in reversed(coefficients[1:-1]):
        found = ew.mul(ew.add(found, float(c)), x)
    return ew.add(found, float(coefficients[0]))


@composite
def chebyshev(t: Value, coefficients: Sequence[float]) -> Value:
    """The sum of Chebyshev polynomials of t in -1..1 (Clenshaw's rule)."""
    twice = ew.add(t, t)
    after: Value = ew.mul(t, 0.0)
    last: Value = after
    for c in reversed(coefficients[1:]):
        after, last = ew.add(ew.sub(ew.mul(twice, after), last), float(c)), after
    return ew.add(ew.sub(ew.mul(t, after), last), float(coefficients[0]))


def fitted(function: Callable[[np.ndarray], np.ndarray], count: int = 48) -> tuple[float, ...]:
    """Chebyshev coefficients of a function of -1..1, without those that change nothing."""
    angles = (np.arange(count) + 0.5) * np.pi / count
    values = function(np.cos(angles))
    found = 2 / count * (np.cos(np.outer(np.arange(count), angles)) @ values)
    found[0] /= 2
    kept = int(np.max(np.nonzero(np.abs(found) > 1e-17 * np.abs(found).max())[0])) + 1
    return tuple(found[:kept].tolist())


@composite
def where(condition: Value, a: Value | float, b: Value | float) -> Value:
    """A choice among values of f64, of which one may be a number."""
    return ew.select(condition, _f64(a), _f64(b))


def _f64(x: Value | float) -> Value | np.float64:
    return x if isinstance(x, Value) else np.float64(x)


# The Gauss error function and its relatives


@lru_cache(maxsize=1)
def _erfcx_fit() -> tuple[float, ...]:
    """(1 + 2 x) erfcx(x) for x from 0 on, as a function of (x - 4) / (x + 4) (Shepherd & Laframboise, 1981)."""

    def exact(t: np.ndarray) -> np.ndarray:
        x = 4 * (1 + t) / (1 - t)
        return np.array([(1 + 2 * v) * _erfcx_number(float(v)) for v in x])

    return fitted(exact)


def _erfcx_number(x: float) -> float:
    """exp(x^2) erfc(x); of large numbers by a continued fraction."""
    if x < 5:
        # The exponent's rounding error is made up for.
        square = x * x
        return math.exp(square) * (1 + _square_rest(x)) * math.erfc(x)
    found = 0.0
    for k in range(120, 0, -1):
        found = k / 2 / (x + found)
    return 1 / math.sqrt(math.pi) / (x + found)


def _square_rest(x: float) -> float:
    """x * x without what its nearest float is."""
    return float(Fraction(x) * Fraction(x) - Fraction(x * x))


@composite
def erfcx(x: Value) -> Value:
    """exp(x^2) erfc(x)."""
    size = ew.abs_(x)
    t = where(ew.is_inf(x), 1.0, ew.div(ew.sub(size, 4.0), ew.add(size, 4.0)))
    positive = ew.div(chebyshev(t, _erfcx_fit()), ew.add(1.0, ew.add(size, size)))
    mirrored = ew.sub(ew.mul(2.0, ew.exp(ew.mul(x, x))), positive)
    return where(ew.lt(x, 0.0), mirrored, positive)


@composite
def erfc(x: Value) -> Value:
    """1 - erf(x), to the last digits where it is small, too."""
    size = ew.abs_(x)
    positive = ew.mul(ew.exp(ew.neg(ew.mul(size, size))), erfcx(size))
    return where(ew.lt(x, 0.0), ew.sub(2.0, positive), positive)


@composite
def log_ndtr(x: Value) -> Value:
    """The logarithm of the normal distribution's cumulative function."""
    t = ew.mul(x, math.sqrt(0.5))
    low = ew.sub(ew.log(ew.mul(0.5, erfcx(ew.neg(ew.min_(t, 0.0))))), ew.mul(t, t))
    high = ew.log1p(ew.mul(-0.5, erfc(t)))
    return where(ew.lt(x, -1.0), low, high)


@composite
def ndtri(p: Value) -> Value:
    """The number below which a normally distributed one is with probability p. Of the lower tail q, Halley's steps
    from an estimate (Winitzki, 2008)."""
    is_high = ew.gt(p, 0.5)
    q = where(is_high, ew.sub(1.0, p), p)
    x = ew.mul(-math.sqrt(2), _erfinv_estimate(ew.log(ew.mul(4.0, ew.mul(q, ew.sub(1.0, q))))))
    for _ in range(3):
        # In terms of logarithms, the ratio of the density and the probability is all that a step needs.
        u = ew.mul(x, -math.sqrt(0.5))
        ratio = ew.div(math.sqrt(2 / math.pi), erfcx(u))
        step = ew.div(ew.sub(ew.sub(ew.log(ew.mul(0.5, erfcx(u))), ew.mul(u, u)), ew.log(q)), ratio)
        bend = ew.mul(0.5, ew.mul(step, ew.add(x, ratio)))
        x = ew.sub(x, ew.div(step, ew.add(1.0, bend)))
    x = where(ew.eq(q, 0.0), -math.inf, where(ew.lt(q, 0.0), math.nan, x))
    return where(is_high, ew.neg(x), x)


def _erfinv_estimate(log: Value) -> Value:
    """About the inverse error function of |y|, with log(1 - y^2) given."""
    a = 0.147
    half = ew.add(2 / (math.pi * a), ew.mul(0.5, log))
    root = ew.sqrt(ew.sub(ew.mul(half, half), ew.div(log, a)))
    return ew.sqrt(ew.max_(ew.sub(root, half), 0.0))


@composite
def erfinv(y: Value) -> Value:
    """The number whose error function is y."""
    size = ew.abs_(y)
    x = _erfinv_estimate(ew.log(ew.mul(ew.sub(1.0, size), ew.add(1.0, size))))
    for _ in range(3):
        slope = ew.mul(2 / math.sqrt(math.pi), ew.exp(ew.neg(ew.mul(x, x))))
        # Near 1 the difference is that of what is missing.
        error = where(ew.gt(size, 0.5), ew.sub(ew.sub(1.0, size), erfc(x)), ew.sub(ew.erf(x), size))
        step = ew.div(error, slope)
        x = ew.sub(x, ew.div(step, ew.add(1.0, ew.mul(x, step))))
    x = where(ew.eq(size, 1.0), math.inf, where(ew.lt(size, 1e-8), ew.mul(size, math.sqrt(math.pi) / 2), x))
    return where(ew.eq(y, 0.0), y, where(ew.lt(y, 0.0), ew.neg(x), x))


# The gamma function and its relatives


def _reflected_angle(x: Value) -> Value:
    """pi times what x is above the nearest integer: the sine of pi x is that of it, but for its sign."""
    return ew.mul(math.pi, ew.sub(x, ew.round_(x)))


@composite
def lgamma(x: Value) -> Value:
    """log |gamma(x)|: Stirling's series of x + 10, and the product of the ten factors between."""
    is_low = ew.lt(x, 0.5)
    y = where(is_low, ew.sub(1.0, x), x)
    z = ew.add(y, float(SHIFT))
    inverse = ew.div(1.0, z)
    series = [b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI[:8], 1)]
    tail = ew.mul(inverse, polynomial(ew.mul(inverse, inverse), series))
    stirling = ew.add(ew.sub(ew.mul(ew.sub(z, 0.5), ew.log(z)), z), ew.add(tail, 0.5 * math.log(2 * math.pi)))
    factors = y
    for k in range(1, SHIFT):
        factors = ew.mul(factors, ew.add(y, float(k)))
    found = where(ew.gt(y, 1e15), ew.mul(y, ew.sub(ew.log(y), 1.0)), ew.sub(stirling, ew.log(factors)))
    found = where(ew.is_inf(y), math.inf, found)
    sine = ew.abs_(ew.sin(_reflected_angle(x)))
    low = ew.sub(ew.sub(math.log(math.pi), ew.log(sine)), found)
    low = where(ew.eq(x, ew.floor(x)), math.inf, low)
    return where(is_low, where(ew.is_inf(x), math.inf, low), found)


@composite
def digamma(x: Value) -> Value:
    """The derivative of lgamma. At 0 it is infinite with the other sign, at negative integers NaN."""
    is_low = ew.lt(x, 0.0)
    y = where(is_low, ew.sub(1.0, x), x)
    z = ew.add(y, float(SHIFT))
    inverse = ew.div(1.0, z)
    series = [b / (2 * k) for k, b in enumerate(BERNOULLI[:8], 1)]
    square = ew.mul(inverse, inverse)
    found = ew.sub(ew.log(z), ew.add(ew.mul(0.5, inverse), ew.mul(square, polynomial(square, series))))
    for k in range(SHIFT - 1, 0, -1):
        found = ew.sub(found, ew.div(1.0, ew.add(y, float(k))))
    found = ew.sub(found, ew.div(1.0, y))
    low = ew.sub(found, ew.div(math.pi, ew.tan(_reflected_angle(x))))
    low = where(ew.eq(x, ew.floor(x)), math.nan, low)
    return where(is_low, low, found)


@composite
def zeta(s: Value, q: Value) -> Value:
    """The sum of (q + k)^-s for k from 0 on (Hurwitz), of q > 0 by Euler and Maclaurin. Of q < 0, and whole s, by the
    sums on both sides of 0."""
    is_low = ew.lt(q, 0.0)
    share = ew.sub(q, ew.floor(q))
    right = _zeta_positive(s, where(is_low, share, q))
    rest = ew.sub(1.0, share)
    left = ew.sub(_zeta_positive(s, rest), _zeta_positive(s, ew.sub(1.0, ew.min_(q, 0.0))))
    odd = ew.ne(ew.mod(s, 2.0), 0.0)
    low = ew.add(right, where(odd, ew.neg(left), left))
    found = where(is_low, where(ew.ne(s, ew.floor(s)), math.nan, low), right)
    found = where(ew.and_(ew.le(q, 0.0), ew.eq(q, ew.floor(q))), math.inf, found)
    found = where(ew.eq(q, math.inf), 0.0, found)
    return where(ew.lt(s, 1.0), math.nan, where(ew.eq(s, 1.0), math.inf, found))


def _zeta_positive(s: Value, q: Value) -> Value:
    z = ew.add(q, float(SHIFT))
    power = ew.pow_(z, ew.neg(s))
    found = ew.add(ew.mul(power, ew.div(z, ew.sub(s, 1.0))), ew.mul(0.5, power))
    rising: Value = s
    power = ew.div(power, z)
    square = ew.mul(z, z)
    for k, b in enumerate(BERNOULLI, 1):
        found = ew.add(found, ew.mul(b / math.factorial(2 * k), ew.mul(rising, power)))
        rising = ew.mul(rising, ew.mul(ew.add(s, 2.0 * k - 1), ew.add(s, 2.0 * k)))
        power = ew.div(power, square)
    for k in range(SHIFT - 1, -1, -1):
        found = ew.add(found, ew.pow_(ew.add(q, float(k)), ew.neg(s)))
    return found


@composite
def polygamma(n: int, x: Value) -> Value:
    """The n-th derivative of digamma."""
    if n == 0:
        return digamma(x)
    sign = 1.0 if n % 2 else -1.0
    return ew.mul(sign * math.factorial(n), zeta(ew.add(ew.mul(x, 0.0), n + 1.0), x))


# Bessel functions of order 0 and 1


ANGLES = 8192
"""Enough for the narrow peaks of exp(x cos(angle)) of the greatest x that coefficients are made of."""


def _mean_over_angles(f: Callable[[np.ndarray, np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    angles = np.arange(ANGLES) * (2 * np.pi / ANGLES)
    return np.asarray(f(x[:, None], angles[None, :]).mean(axis=1))


def _hankel(n: int, z: np.ndarray) -> np.ndarray:
    """exp(z) sqrt(2 z / pi) K_n(z), of complex z of which the real part is not negative, and |z| >= 2."""
    v = np.linspace(-7.5, 7.5, 601)[None, :]
    terms = np.exp(-v * v) * v ** (2 * n) * (1 + v * v / (2 * z[:, None])) ** (n - 0.5)
    return np.asarray(terms.sum(axis=1) * (v[0, 1] - v[0, 0]) / math.gamma(n + 0.5))


def _inside(edge: float, t: np.ndarray) -> np.ndarray:
    return np.asarray(edge * (1 + t) / 2)


def _beyond(edge: float, t: np.ndarray) -> np.ndarray:
    """x, where t is 2 edge / x - 1."""
    return np.asarray(2 * edge / (1 + t))


@cache
def _i_fits(n: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """exp(-x) I_n(x) below 8 (of n = 1 divided by x), and times sqrt(x) beyond, as a function of 16 / x - 1."""

    def scaled(x: np.ndarray) -> np.ndarray:
        return _mean_over_angles(lambda x, a: np.exp(x * (np.cos(a) - 1)) * np.cos(n * a), x)

    near = fitted(lambda t: scaled(_inside(8, t)) / (_inside(8, t) if n else 1))
    return near, fitted(lambda t: np.sqrt(_beyond(8, t)) * scaled(_beyond(8, t)))


@composite
def bessel_i(n: int, x: Value, *, scaled: bool = False) -> Value:
    """The modified Bessel function of the first kind, or exp(-|x|) times it."""
    near_fit, far_fit = _i_fits(n)
    size = ew.abs_(x)
    near = chebyshev(ew.sub(ew.mul(ew.min_(size, 8.0), 0.25), 1.0), near_fit)
    near = ew.mul(near, size) if n else near
    far_at = ew.max_(size, 8.0)
    far = ew.div(chebyshev(ew.sub(ew.div(16.0, far_at), 1.0), far_fit), ew.sqrt(far_at))
    found = where(ew.le(size, 8.0), near, far)
    found = found if scaled else ew.mul(ew.exp(size), found)
    found = where(ew.is_nan(x), x, found)
    return where(ew.lt(x, 0.0), ew.neg(found), found) if n else found


def _harmonic(k: int) -> float:
    return sum(1 / j for j in range(1, k + 1))


def _series(n: int, sign: float, harmonic: bool) -> list[float]:
    """Coefficients of (x / 2)^n times a series in x^2 / 4: that of J_n or I_n, or the one beside their logarithm."""
    return [
        sign**k
        / (math.factorial(k) * math.factorial(k + n))
        * ((_harmonic(k) + _harmonic(k + n)) if harmonic else 1.0)
        for k in range(26)
    ]


@composite
def bessel_k(n: int, x: Value, *, scaled: bool = False) -> Value:
    """The modified Bessel function of the second kind, or exp(x) times it."""
    near_at = ew.min_(x, 2.0)
    half, square = ew.mul(near_at, 0.5), ew.mul(0.25, ew.mul(near_at, near_at))
    first = polynomial(square, _series(n, 1.0, False)[:16])
    beside = polynomial(square, _series(n, 1.0, True)[:16])
    log = ew.add(ew.log(half), np.euler_gamma)
    near = ew.sub(ew.mul(0.5, beside), ew.mul(log, first))
    near = near if n == 0 else ew.add(ew.div(1.0, near_at), ew.mul(half, ew.neg(near)))
    near = ew.mul(near, ew.exp(near_at)) if scaled else near
    far_at = ew.max_(x, 2.0)
    far = ew.mul(chebyshev(ew.sub(ew.div(4.0, far_at), 1.0), _k_fit(n)), ew.sqrt(ew.div(math.pi / 2, far_at)))
    far = far if scaled else ew.mul(far, ew.exp(ew.neg(far_at)))
    found = where(ew.le(x, 2.0), near, far)
    return where(ew.eq(x, 0.0), math.inf, where(ew.lt(x, 0.0), math.nan, where(ew.is_nan(x), x, found)))


@cache
def _k_fit(n: int) -> tuple[float, ...]:
    return fitted(lambda t: _hankel(n, _beyond(2, t).astype(complex)).real)


NEAR = 8.0
"""Up to here Bessel functions of the first two kinds are Chebyshev series in x."""


@cache
def _j_fit(n: int) -> tuple[float, ...]:
    """J_n(x), of n = 1 divided by x, as a function of x^2."""

    def exact(t: np.ndarray) -> np.ndarray:
        x = np.sqrt(_inside(NEAR * NEAR, t))
        found = _mean_over_angles(lambda x, a: np.cos(x * np.sin(a) - n * a), x)
        return found / (x if n else 1)

    return fitted(exact)


@cache
def _y_fit(n: int) -> tuple[float, ...]:
    """Y_n(x) - 2 / pi log(x) J_n(x) (of n = 1 with 2 / (pi x) added, and divided by x), as a function of x^2."""

    def exact(t: np.ndarray) -> np.ndarray:
        found = []
        for square in _inside(NEAR * NEAR, t):
            q = Fraction(float(square)) / 4
            log = Fraction(np.euler_gamma - math.log(2))
            total, power = Fraction(0), Fraction(1)
            for k in range(48):
                term = power / (math.factorial(k) * math.factorial(k + n)) * (-1) ** k
                h = Fraction(_harmonic(k) + _harmonic(k + n))
                total += term * (2 * log - h)
                power *= q
                power = Fraction(power.numerator * (1 << 200) // power.denominator, 1 << 200)
            found.append(float(total) / math.pi / (2 if n else 1))
        return np.array(found)

    return fitted(exact)


@cache
def _phase_fits(n: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """P and Q of Hankel's expansion beyond NEAR, as functions of 2 NEAR / x - 1."""

    def expansion(t: np.ndarray) -> np.ndarray:
        return _hankel(n, -1j * _beyond(NEAR, t))

    return fitted(lambda t: expansion(t).real), fitted(lambda t: expansion(t).imag)


def _far_waves(n: int, x: Value) -> tuple[Value, Value]:
    """J_n and Y_n beyond NEAR."""
    p_fit, q_fit = _phase_fits(n)
    at = ew.max_(x, NEAR)
    t = ew.sub(ew.div(2 * NEAR, at), 1.0)
    p, q = chebyshev(t, p_fit), chebyshev(t, q_fit)
    # cos and sin of x - n pi / 2 - pi / 4, of those of x
    sine, cosine = ew.sin(at), ew.cos(at)
    c, s = ew.add(cosine, sine), ew.sub(sine, cosine)
    c, s = (c, s) if n == 0 else (s, ew.neg(c))
    factor = ew.sqrt(ew.div(1 / math.pi, at))
    return (
        ew.mul(factor, ew.sub(ew.mul(p, c), ew.mul(q, s))),
        ew.mul(factor, ew.add(ew.mul(p, s), ew.mul(q, c))),
    )


@composite
def bessel_j(n: int, x: Value) -> Value:
    """The Bessel function of the first kind."""
    size = ew.abs_(x)
    near_at = ew.min_(size, NEAR)
    t = ew.sub(ew.mul(2 / NEAR**2, ew.mul(near_at, near_at)), 1.0)
    near = chebyshev(t, _j_fit(n))
    near = ew.mul(near, size) if n else near
    far = _far_waves(n, size)[0]
    found = where(ew.is_nan(x), x, where(ew.le(size, NEAR), near, far))
    return where(ew.lt(x, 0.0), ew.neg(found), found) if n else found


@composite
def bessel_y(n: int, x: Value) -> Value:
    """The Bessel function of the second kind, of x > 0."""
    near_at = ew.min_(x, NEAR)
    t = ew.sub(ew.mul(2 / NEAR**2, ew.mul(near_at, near_at)), 1.0)
    beside = chebyshev(t, _y_fit(n))
    log = ew.mul(2 / math.pi, ew.log(near_at))
    first = chebyshev(t, _j_fit(n))
    near = ew.add(beside, ew.mul(log, first))
    near = near if n == 0 else ew.sub(ew.mul(near, near_at), ew.div(2 / math.pi, near_at))
    far = _far_waves(n, x)[1]
    found = where(ew.le(x, NEAR), near, far)
    found = where(ew.eq(x, 0.0), -math.inf, where(ew.lt(x, 0.0), math.nan, found))
    return where(ew.is_nan(x), x, found)


# Incomplete gamma functions


@composite
def incomplete_gamma(a: Value, x: Value, upper: bool) -> Value:
    """The regularised incomplete gamma function, of a and x of one shape, that are not negative. Where one of them
    decides alone (a or x is 0 or infinite), the other may be NaN, as in PyTorch."""
    series = incomplete_gamma_series(a, x)
    is_low = ew.lt(x, ew.add(a, 1.0))
    shift = where(is_low, ew.add(a, 1.0), a)
    factor = ew.exp(ew.sub(ew.sub(ew.mul(a, ew.log(x)), x), lgamma(shift)))
    found = ew.mul(factor, series)
    found = where(is_low, ew.sub(1.0, found), found) if upper else where(is_low, found, ew.sub(1.0, found))
    nothing, all_ = (1.0, 0.0) if upper else (0.0, 1.0)
    # From there on what is missing is less than exp(-0.9 x); terms of it overflow.
    is_beyond = ew.gt(ew.mul(x, 1e-3), ew.add(a, 1e6))
    found = where(ew.or_(is_beyond, ew.is_inf(x)), all_, found)
    found = where(ew.is_inf(a), where(ew.is_inf(x), math.nan, nothing), found)
    found = where(ew.eq(x, 0.0), nothing, found)
    found = where(ew.eq(a, 0.0), where(ew.gt(x, 0.0), all_, math.nan), found)
    return where(ew.or_(ew.lt(x, 0.0), ew.lt(a, 0.0)), math.nan, found)


# Airy's function

AIRY_NEAR = 10.0
"""Beyond, asymptotic series have the accuracy of f64."""


def _airy_number(x: float) -> float:
    """Ai(x) for |x| <= AIRY_NEAR by its power series, in fractions of 240 bits: terms cancel."""
    digits = 1 << 240
    cube = Fraction(x) ** 3
    first = second = total_first = total_second = Fraction(1)
    for k in range(1, 150):
        first = Fraction(int(first * cube / ((3 * k - 1) * (3 * k)) * digits), digits)
        second = Fraction(int(second * cube / ((3 * k) * (3 * k + 1)) * digits), digits)
        total_first += first
        total_second += second
    return float(_AIRY_AT_0 * total_first - _AIRY_SLOPE * Fraction(x) * total_second)


_AIRY_AT_0 = Fraction("0.35502805388781723926006318600418317639797917419917")
_AIRY_SLOPE = Fraction("0.25881940379280679840518356018920396347909113835493")
"""1 / (3^(2/3) gamma(2/3)) and 1 / (3^(1/3) gamma(1/3))."""


@cache
def _airy_fits() -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Ai below 0, up to 2, and from there on times exp(2/3 x^(3/2))."""

    def scaled(t: np.ndarray) -> np.ndarray:
        x = 2 + (AIRY_NEAR - 2) * (1 + t) / 2
        return np.array([_airy_number(float(v)) * math.exp(2 / 3 * float(v) ** 1.5) for v in x])

    low = fitted(lambda t: np.array([_airy_number(float(v)) for v in -_inside(AIRY_NEAR, t)]), 64)
    middle = fitted(lambda t: np.array([_airy_number(float(v)) for v in _inside(2, t)]))
    return low, middle, fitted(scaled)


@composite
def airy(x: Value) -> Value:
    """Airy's function Ai."""
    low_fit, middle_fit, high_fit = _airy_fits()
    low_at = ew.min_(ew.max_(ew.neg(x), 0.0), AIRY_NEAR)
    low = chebyshev(ew.sub(ew.mul(low_at, 2 / AIRY_NEAR), 1.0), low_fit)
    middle = chebyshev(ew.sub(ew.min_(ew.max_(x, 0.0), 2.0), 1.0), middle_fit)
    size = ew.abs_(x)
    zeta = ew.mul(2 / 3, ew.mul(size, ew.sqrt(size)))
    high_at = ew.min_(ew.max_(x, 2.0), AIRY_NEAR)
    high = chebyshev(ew.sub(ew.mul(ew.sub(high_at, 2.0), 2 / (AIRY_NEAR - 2)), 1.0), high_fit)
    # u_k of the asymptotic series (Abramowitz & Stegun 10.4.58 to 10.4.60)
    series = [1.0]
    for k in range(1, 12):
        series.append(series[-1] * (6 * k - 5) * (6 * k - 3) * (6 * k - 1) / (216 * k * (2 * k - 1)))
    root = ew.sqrt(ew.sqrt(ew.max_(size, AIRY_NEAR)))
    inverse = ew.div(1.0, ew.max_(zeta, 1.0))
    square = ew.mul(inverse, inverse)
    falling = polynomial(inverse, [(-1) ** k * u for k, u in enumerate(series)])
    far = ew.div(falling, ew.mul(root, 2 * math.sqrt(math.pi)))
    even = polynomial(square, [(-1) ** k * u for k, u in enumerate(series[::2])])
    odd = ew.mul(inverse, polynomial(square, [(-1) ** k * u for k, u in enumerate(series[1::2])]))
    angle = ew.add(zeta, math.pi / 4)
    waves = ew.sub(ew.mul(ew.sin(angle), even), ew.mul(ew.cos(angle), odd))
    far_low = ew.div(waves, ew.mul(root, math.sqrt(math.pi)))
    positive = where(ew.le(x, 2.0), middle, ew.mul(ew.exp(ew.neg(zeta)), where(ew.le(x, AIRY_NEAR), high, far)))
    negative = where(ew.le(size, AIRY_NEAR), low, far_low)
    found = where(ew.lt(x, 0.0), negative, positive)
    return where(ew.is_nan(x), x, where(ew.is_inf(x), 0.0, found))
