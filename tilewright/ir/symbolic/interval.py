"""Interval arithmetic over the integers with infinite ends; the source of numeric bounds of expressions.

An end is an int or a float infinity. No int is ever converted to float, so that ends stay exact at any size.
"""

from __future__ import annotations

from collections.abc import Iterable

Bound = int | float
Interval = tuple[Bound, Bound]

INFINITY = float("inf")


def _is_infinite(x: Bound) -> bool:
    return isinstance(x, float)


def _plus(x: Bound, y: Bound) -> Bound:
    if _is_infinite(x):
        return x
    return y if _is_infinite(y) else x + y


def _times(x: Bound, y: Bound) -> Bound:
    if x == 0 or y == 0:
        return 0
    if _is_infinite(x) or _is_infinite(y):
        return INFINITY if (x > 0) == (y > 0) else -INFINITY
    return x * y


def _floordiv(x: Bound, y: Bound) -> Bound:
    """floor(x / y) for y != 0, as a limit where an end is infinite."""
    if _is_infinite(y):
        return 0 if x == 0 or (x > 0) == (y > 0) else -1
    if _is_infinite(x):
        return x if y > 0 else -x
    return x // y


def interval_sum(a: Interval, b: Interval) -> Interval:
    return _plus(a[0], b[0]), _plus(a[1], b[1])


def interval_scaled(a: Interval, factor: int) -> Interval:
    lo, hi = _times(a[0], factor), _times(a[1], factor)
    return (lo, hi) if factor >= 0 else (hi, lo)


def interval_product(a: Interval, b: Interval) -> Interval:
    corners = [_times(x, y) for x in a for y in b]
    return min(corners), max(corners)


def interval_hull(parts: Iterable[Interval]) -> Interval:
    """The smallest interval around all of them."""
    lows, highs = zip(*parts, strict=True)
    return min(lows), max(highs)


def _nonzero(divisor: Interval) -> Interval:
    """The divisor's interval without a zero at one of its ends."""
    lo, hi = divisor
    return (1 if lo == 0 else lo), (-1 if hi == 0 else hi)


def interval_floordiv(a: Interval, divisor: Interval) -> Interval:
    """Bounds of a // divisor, for every divisor in the interval but zero."""
    lo, hi = _nonzero(divisor)
    if lo > hi:  # the divisor can only be zero
        return -INFINITY, INFINITY
    if lo < 0 < hi:  # the magnitude of a quotient of integers does not exceed that of the dividend
        reach = max(a[1], -a[0])
        return -reach, reach
    corners = [_floordiv(x, y) for x in a for y in (lo, hi)]
    return min(corners), max(corners)


def interval_mod(a: Interval, divisor: Interval) -> Interval:
    """Bounds of a % divisor, for every divisor in the interval but zero; the result has the divisor's sign."""
    lo, hi = _nonzero(divisor)
    if lo > hi:
        return -INFINITY, INFINITY
    low = min(_plus(lo, 1), 0)
    high = max(_plus(hi, -1), 0)
    if lo > 0 and a[0] >= 0:
        high = min(high, a[1])
    return low, high
