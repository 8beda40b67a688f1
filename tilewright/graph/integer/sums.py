"""Sums of numbers in fixed point."""

from __future__ import annotations

import numpy as np

from tilewright.graph.integer.fixed import (
    GREATEST,
    SUM_DIGITS,
    Fixed,
    as_integers,
    centred,
    common,
    integers,
    known_numbers,
    rescaled,
    uniform,
    without_infinities,
)
from tilewright.ops import elementwise as ew

SUMS_BOUND = 1 << 14
"""Integers beyond are fine enough for a known number to be added to them without more digits."""


def plus(a: Fixed, b: Fixed) -> Fixed:
    """a + b."""
    a, b = common([uniform(a), uniform(b)])
    if a.bound + b.bound > GREATEST:
        a, b = (rescaled(x, x.scale * 4) for x in (a, b))
    return Fixed(ew.add(centred(a), centred(b)), a.scale, a.low + b.low, a.high + b.high)


def plus_known(x: Fixed, array: np.ndarray) -> Fixed:
    """x plus known numbers, rounded to its digits where it has many, else to more."""
    exact = without_infinities(array, x.range)
    digits = 0
    if x.bound < SUMS_BOUND:
        digits = max(0, SUM_DIGITS - int(np.log2(x.bound + np.abs(exact / x.scale).max(initial=0.0)) + 1))
    found = np.rint(exact / x.scale * (1 << digits))
    if (x.bound << digits) + np.abs(found).max(initial=0) > GREATEST:
        return plus(x, known_numbers(array))
    fine = rescaled(x, x.scale / (1 << digits))
    low, high = int(found.min(initial=0)), int(found.max(initial=0))
    return Fixed(ew.add(fine.value, integers(as_integers(found))), fine.scale, fine.low + low, fine.high + high)


def negated(x: Fixed) -> Fixed:
    """-x."""
    return Fixed(ew.neg(centred(x)), x.scale, -x.high, -x.low)
