"""Odd functions that saturate at 1, in single precision, as x P(x^2) / Q(x^2).

All coefficients are positive, so nothing cancels; the fits are minimax over the argument where the function is not
yet 1 in float32 (Lawson's iteration on the rational's linear form, then rounded to float32).
"""

from __future__ import annotations

from tilewright.codegen.vmath.body import Body, Value

# tanh(x) / x over x^2 in [0, 9.02^2], error 2.1e-8.
TANH_BOUND = 9.02
TANH_P = (1.0, 0.13379718363285065, 0.0034940349869430065, 2.058348763966933e-05, 1.3319079172902093e-08)
TANH_Q = (1.0, 0.4671303331851959, 0.025871073827147484, 0.0003283093392383307, 7.762022846691252e-07)

# erf(x) / x over x^2 in [0, 3.93^2], error 1.9e-8.
ERF_BOUND = 3.93
ERF_P = (
    1.1283791065216064, 0.19078411161899567, 0.0527903214097023,
    0.00377962039783597, 0.00028480865876190364, 2.0419661268533673e-06,
)  # fmt: skip
ERF_Q = (
    1.0, 0.5024107098579407, 0.11425764113664627,
    0.014997460879385471, 0.0011652150424197316, 3.800402919296175e-05,
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
