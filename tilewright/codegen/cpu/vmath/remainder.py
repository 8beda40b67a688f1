"""The remainder of a division, exactly, in both precisions."""

from __future__ import annotations

from tilewright.codegen.cpu.kernel.functions import absolute, copysign, exact_fma, intrinsic
from tilewright.codegen.cpu.kernel.text import Reg


def _most(x: Reg) -> float:
    """Whole numbers up to this one, and halves, are exact."""
    return 2.0**22 if x.dtype.bits == 32 else 2.0**51


def rem(x: Reg, y: Reg) -> Reg:
    """x - y * trunc(x / y), where |x / y| is a number that is not large.

    The quotient, rounded, is never below the exact one's whole part, and at most one above it, as its whole part is a
    number of this precision. What is left is a multiple of y's last place below |y|, so that subtracting
    the product rounds nothing, and neither does adding |y| where it is negative.
    """
    numerator, divisor = absolute(x), absolute(y)
    quotient = intrinsic("trunc", numerator / divisor)
    left = exact_fma(-quotient, divisor, numerator)
    left = (left < 0.0).select(left + divisor, left)
    return (numerator < divisor).select(x, copysign(left, x))


def is_far(x: Reg, y: Reg) -> Reg:
    """Whether `rem` does not hold: large quotients, divisions by zero, and what is no number. Where products are taken
    apart, which nothing fuses with sums, a quotient that is rounded up may overflow, and parts be lost as denormal."""
    near = absolute(x) < absolute(y) * _most(x)
    if x.dtype.bits == 64 and not x.text.fuses:
        near = near & (absolute(x) < 2.0**1020) & (absolute(y) > 2.0**-960)
    return ~near


def far_rem(x: Reg, y: Reg) -> Reg:
    """The remainder of any two numbers."""
    return x.op("frem", y)
