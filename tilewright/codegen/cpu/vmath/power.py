"""Powers: what is the same in both precisions."""

from __future__ import annotations

import math

from tilewright.codegen.cpu.kernel.functions import absolute, floor
from tilewright.codegen.cpu.kernel.text import Reg


def power_of(x: Reg, y: Reg, magnitude: Reg) -> Reg:
    """x^y of e^(y log|x|), with its sign and the special cases of C99, annex F.9.4.4."""
    a = absolute(x)
    # 0 * inf is nan before; 1 to any power and anything to the power 0 is 1, even for nan.
    is_one = y.equals(0.0) | x.equals(1.0) | (x.equals(-1.0) & absolute(y).equals(math.inf))
    magnitude = is_one.select(x.like(1.0), magnitude)
    # Every large float is an even integer, and so, for this purpose, is inf.
    half = y * 0.5
    integral = floor(y).equals(y)
    odd = integral & half.differs(floor(half))
    sign = odd.select(x.bits & -(1 << (x.dtype.bits - 1)), 0)
    root_of_negative = (x < 0.0) & (a < math.inf) & (y < math.inf) & ~integral
    return root_of_negative.select(x.like(math.nan), (magnitude.bits ^ sign).as_float)
