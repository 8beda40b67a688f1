"""The error function in double precision."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import absolute, at_most, copysign, fma, polynomial
from tilewright.codegen.cpu.kernel.text import Reg
from tilewright.codegen.cpu.vmath.float64.exponential import exp

ONE_FROM = 6.0
"""Where the function is 1 but for less than half a unit of the last place."""
MIDDLE = 2.5

# erf(x) / x - 1 in powers of x^2 on [0, 1], error 2^-62.
NEAR = (
    0.1283791670955126, -0.3761263890318375, 0.11283791670954879, -0.026866170645076792, 0.0052239776248180145,
    -0.000854832698083379, 0.0001205533111164271, -1.4925595266831182e-05, 1.6461000484121368e-06,
    -1.6350312701054695e-07, 1.4659775274047436e-08, -1.1372848856791674e-09, 5.957176147748911e-11,
)  # fmt: skip
# (1 + 2x) e^(x^2) (1 - erf(x)) in powers of (x - MIDDLE) / (x + MIDDLE) on [1, 6], error of erf 2^-52.
FAR_COEFFICIENTS = (
    1.2648381843668612, -0.12235676308242169, -0.09902453957351318, 0.1576299190269252, -0.10296705604695247,
    0.032760893039446855, 0.0009318931040481982, -0.004382072073124513, 0.0004918614359192158, 0.0006320360704212277,
    -8.845012927062207e-05, -0.00011285311462461253, 6.230347907532855e-06, 2.0088992276519525e-05,
    2.1600009594396447e-06,
)  # fmt: skip


def erf(x: Reg) -> Reg:
    """Error function: 2/sqrt(pi) times the integral of e^(-t^2) from 0 to x."""
    a = absolute(x)
    near = at_most(a, 1.0)
    inner = fma(near, polynomial(near * near, NEAR), near)
    far = at_most(a, ONE_FROM)
    ratio = polynomial((far - MIDDLE) / (far + MIDDLE), FAR_COEFFICIENTS) / (far + far + 1.0)
    outer = 1.0 - exp(-(far * far)) * ratio
    return copysign((a < 1.0).select(inner, outer), x)
