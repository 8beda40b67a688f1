"""Odd functions that saturate at 1, in single precision, as x (c + R(x^2) / Q(x^2)).

A minimax rational P/Q (Lawson's iteration on the rational's linear form, relative error below 2.1e-8 wherever
the function is not yet 1 in float32) is split into a constant c and R/Q with R = P - c Q. Where the result
nears 1 the exact product c x carries much of it, which halves the rounding errors that P and Q would add. R
and Q are scaled by a common factor, and their coefficients, once rounded to float32, were moved by units of
the last place to the least error of the whole evaluation (random search).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.codegen.cpu.kernel.functions import at_most, clamp, fma, polynomial
from tilewright.codegen.cpu.kernel.text import Reg


@dataclass(frozen=True)
class _OddRational:
    """x (c + r(x^2) / q(x^2)); its value at `bound` is 1 but for a few units of the last place."""

    bound: float
    c: float
    r: tuple[float, ...]
    q: tuple[float, ...]

    def build(self, x: Reg) -> Reg:
        """The function of x, cut at -1 and 1."""
        # Beyond the bound only x grows, so the value passes 1 and is cut there; no power of x overflows.
        square = at_most(x * x, self.bound * self.bound)
        quotient = x * polynomial(square, self.r) / polynomial(square, self.q)
        return clamp(fma(x, self.c, quotient), -1.0, 1.0)


_TANH = _OddRational(
    bound=8.7,
    c=0.1,
    r=(
        0.9814566373825073, 0.09516946971416473, 0.0010057283798232675,
        -1.3350690096558537e-05, -7.204754126632906e-08,
    ),
    q=(
        1.0905073881149292, 0.509635329246521, 0.02831488661468029,
        0.00036244725924916565, 8.720309665477544e-07,
    ),
)  # fmt: skip

_ERF = _OddRational(
    bound=3.87,
    c=0.2,
    r=(
        0.780670702457428, 0.07441771030426025, 0.025120124220848083,
        0.0006155363516882062, 4.657475801650435e-05, -4.72373130833148e-06,
    ),
    q=(
        0.8408964276313782, 0.42084160447120667, 0.09535674005746841,
        0.01247494574636221, 0.0009670977597124875, 3.241201920900494e-05,
    ),
)  # fmt: skip


def tanh(x: Reg) -> Reg:
    """Hyperbolic tangent."""
    return _TANH.build(x)


def erf(x: Reg) -> Reg:
    """Error function: 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    return _ERF.build(x)
