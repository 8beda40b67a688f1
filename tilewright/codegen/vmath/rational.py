"""Odd functions that saturate at 1, in single precision, as x P(x^2) / Q(x^2).

All coefficients are positive, so nothing cancels. The fits are minimax over the argument where the function is not
yet 1 (Lawson's iteration on the rational's linear form); then P and Q were scaled by a common factor and their
float32 coefficients moved by units of the last place, by random search, to the least error of the whole evaluation.
"""

from __future__ import annotations

from tilewright.codegen.vmath.body import Body, Value

# tanh(x) / x over x^2 in [0, 8.82^2], error of the fit below 2.1e-8.
TANH_BOUND = 8.82
TANH_P = (
    1.0227272510528564, 0.136971116065979, 0.0035892785526812077, 2.1313433535397053e-05, 1.3989296832050968e-08,
)  # fmt: skip
TANH_Q = (
    1.0227272510528564, 0.47788006067276, 0.02651921473443508, 0.0003383664879947901, 8.08786296602193e-07,
)  # fmt: skip

# erf(x) / x over x^2 in [0, 3.8925^2], error of the fit below 1.9e-8.
ERF_BOUND = 3.8925
ERF_P = (
    1.6156333684921265, 0.2711780369281769, 0.07536894828081131,
    0.0053383102640509605, 0.0004082681844010949, 2.967686896226951e-06,
)  # fmt: skip
ERF_Q = (
    1.431817650794983, 0.717597246170044, 0.16281524300575256,
    0.021325713023543358, 0.0016544710379093885, 5.489288014359772e-05,
)  # fmt: skip


def _odd_rational(body: Body, x: Value, bound: float, p: tuple[float, ...], q: tuple[float, ...]) -> Value:
    # Beyond the bound only x grows, so the quotient passes 1 and is cut there; no power of x overflows.
    square = body.at_most(x * x, bound * bound)
    return body.clamp(x * body.polynomial(square, p) / body.polynomial(square, q), -1.0, 1.0)


def tanh(body: Body, x: Value) -> Value:
    """Hyperbolic tangent."""
    return _odd_rational(body, x, TANH_BOUND, TANH_P, TANH_Q)


def erf(body: Body, x: Value) -> Value:
    """Error function 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    return _odd_rational(body, x, ERF_BOUND, ERF_P, ERF_Q)
