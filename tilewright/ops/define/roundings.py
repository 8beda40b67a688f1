"""When the rounding of one product or quotient of floats changes no integer that is made of it: proofs, and candidates.

With m binary digits a float operation gives the exact result times 1 + e, |e| <= 2^-m, and never goes beyond a float
that the exact result does not go beyond. Integers below 2^m are floats. So a result that lies at least `gap` from
every integer (or, for rounding to the nearest, from every half) stays on its side where its error is below `gap`, and
one that is an integer in exact arithmetic is at most rounded to that integer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, sym
from tilewright.ir.symbolic.reach import limits
from tilewright.ops.define.floats import (
    LARGEST_COMPARED,
    Computed,
    Element,
    Ratio,
    mantissa,
    simplest,
)


def proven_conditions(name: str, operands: Sequence[Element]) -> tuple[Sym, ...] | None:
    """Conditions under which floor, ceil, trunc or round of a rounded product or quotient is what it is of the exact
    one, in which the constant is its `simplest` fraction; None where nothing is proved for many values."""
    (x,) = operands if len(operands) == 1 else (None,)
    if not isinstance(x, Computed) or name not in ("floor", "ceil", "trunc", "round"):
        return None
    digits = mantissa(x.dtype)
    if x.name == "div" and all(map(_is_whole, x.operands)):
        largest = 1 << (digits - 2)
        return tuple(c for o in x.operands for c in _at_most(o, largest))
    if x.name == "mul":
        for factor, number in (x.operands, x.operands[::-1]):
            if isinstance(factor, Ratio) and factor.is_const and _is_whole(number):
                return _of_product(name, factor, number, digits)
    return None


def _is_whole(x: Element) -> bool:
    return isinstance(x, Ratio) and x.under == 1


def _at_most(x: Element, largest: int) -> Iterator[Sym]:
    assert isinstance(x, Ratio)
    low, high = limits(x.over)
    if high > largest:
        yield s.le(x.over, largest)
    if low < -largest:
        yield s.ge(x.over, -largest)


def _of_product(name: str, factor: Ratio, number: Element, digits: int) -> tuple[Sym, ...] | None:
    """For a whole number, not negative, times a constant k that stands for the fraction p/q.

    Where q divides the number, the exact product is an integer n, and the float that of n * (1 + d), d = k / (p/q) - 1.
    The float below n is at least n * 2^-m away, and half of that is rounded to n; else a floor is wrong for some
    numbers. Elsewhere the product with p/q lies 1/q or more from every integer.
    """
    assert isinstance(number, Ratio)
    k = Fraction(factor.over.value, factor.under.value)
    reading = simplest(factor)
    fraction = Fraction(reading.over.value, reading.under.value)
    if k <= 0 or fraction <= 0 or limits(number.over)[0] < 0:
        return None
    error = k / fraction - 1
    harmless = Fraction(1, 1 << (digits + 1))
    if (error < -harmless and name != "ceil") or (error > harmless and name in ("ceil", "round")):
        return None
    gap = Fraction(1, fraction.denominator * (2 if name == "round" else 1))
    relative = abs(error) + Fraction(2, 1 << digits)
    largest = min(gap / (fraction * relative), (1 << (digits - 2)) / max(k, Fraction(1)))
    return tuple(_at_most(number, int(largest))) if largest > LARGEST_COMPARED else None


# Which exact number a constant stands for

READINGS = 6
"""How many `readings` a constant has at most."""


def readings(x: Ratio) -> list[Ratio]:
    """The fractions that a constant may stand for, the likeliest first: a simple one, the shortest decimal, those just
    below and above it whose denominators are no larger than the numbers that are compared, itself."""
    if not x.is_const:
        return [x]
    exact = Fraction(x.over.value, x.under.value)
    found = [Fraction(simplest(x).over.value, simplest(x).under.value)]
    found += [Fraction(str(np.float32(exact)))] if np.float32(float(exact)) == float(exact) else []
    found += [Fraction(repr(float(exact))), *_neighbours(exact, LARGEST_COMPARED), exact]
    return [Ratio(sym(f.numerator), sym(f.denominator)) for f in dict.fromkeys(found)]


def _neighbours(x: Fraction, largest: int) -> tuple[Fraction, Fraction]:
    """The largest fraction not above x and the smallest not below it, of denominators up to `largest`."""
    whole = x.numerator // x.denominator
    below, above = (whole, 1), (whole + 1, 1)
    if x == whole:
        return x, x
    # Between neighbours p/q and r/s lies none with a smaller denominator than q + s: as many steps at once as fit.
    while below[1] + above[1] <= largest:
        below, above = _narrowed(x, below, above, largest)
        if Fraction(*below) == x or Fraction(*above) == x:
            return x, x
    return Fraction(*below), Fraction(*above)


def _narrowed(
    x: Fraction, below: tuple[int, int], above: tuple[int, int], largest: int
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Neighbours closer around x: one of the two moved as far towards the other as x and the denominators allow."""
    (p, q), (r, t) = below, above
    if Fraction(p + r, q + t) <= x:
        # (p + n*r) / (q + n*t) <= x
        steps = min(_most(x, p, q, r, t), (largest - q) // t)
        return (p + steps * r, q + steps * t), above
    steps = min(_most(-x, -r, t, -p, q), (largest - t) // q)
    return below, (r + steps * p, t + steps * q)


def _most(x: Fraction, p: int, q: int, r: int, t: int) -> int:
    """The largest n with (p + n*r) / (q + n*t) <= x, for r/t > x."""
    return int((x * q - p) // (r - x * t))
