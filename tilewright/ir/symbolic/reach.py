"""How far the values reach that native code computes for an expression: they must fit 64 bits.

Arithmetic on expressions is exact, and the machine's is not: a form is only made, and only accepted, where everything
that is computed on the way to its value fits an i64, for all sizes that a program may meet. What these are is said
here, once: a variable without a bound of its own is at most `LARGEST_SIZE`, and a product of variables, which counts
elements of memory, at most `MOST_ELEMENTS`.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.symbolic.interval import Interval, interval_scaled
from tilewright.ir.symbolic.node import SymNode, interval_of

LARGEST_SIZE = (1 << 36) - 1
"""The largest value of a variable without bounds: an axis of so many elements."""

MOST_ELEMENTS = 1 << 47
"""The largest value of a product of variables: the bytes that a process on x86-64 can address."""

LARGEST_INTEGER = (1 << 63) - 1


def fits_64_bits(e: SymNode) -> bool:
    """Whether all values that are computed for `e` fit an i64."""
    return _reach(e)[1] <= LARGEST_INTEGER


def fits_as_memory(e: SymNode) -> bool:
    """Whether all values that are computed for `e` fit an i64 where they are elements or bytes of memory that is there:
    then neither a factor nor a term is more, however many bytes belong to what its variables count."""
    if e.kind in ("min", "max", "select"):
        return all(map(fits_as_memory, e.args))
    if e._terms is not None and e.kind != "const":
        return all(fits_as_memory(mono) and abs(coef) <= MOST_ELEMENTS for mono, coef in e._terms)
    return fits_64_bits(e)


def beyond_64_bits(e: SymNode) -> SymNode | None:
    """The innermost part of `e` for which a value may be computed that does not fit an i64; None where all fit."""
    if fits_64_bits(e):
        return None
    inner = (beyond_64_bits(part) for part in _parts(e))
    return next((part for part in inner if part is not None), e)


def _parts(e: SymNode) -> list[SymNode]:
    return [mono for mono, _ in e.terms] if e.kind in ("add", "mul") and e._terms is not None else list(e.args)


def limits(e: SymNode) -> Interval:
    """The bounds of `e`, finite ones: those of its variables are at most `LARGEST_SIZE`."""
    return _reach(e)[0]


def _reach(e: SymNode) -> tuple[Interval, int]:
    """The interval of `e`, of finite ends, and the largest magnitude of what is computed for it."""
    if e._reach is None:
        e._reach = _computed(e)
    return e._reach


def _computed(e: SymNode) -> tuple[Interval, int]:
    if e.kind == "const":
        return (e._payload, e._payload), abs(e._payload)
    if e.kind == "var":
        low, high = (_within(end, sign * LARGEST_SIZE) for end, sign in zip(e._payload, (-1, 1), strict=True))
        return (low, high), max(abs(low), abs(high))
    bounds = interval_of(e, limits)
    parts = [(limits(part), _reach(part)[1]) for part in _parts(e)]
    reach = max(reach for _, reach in parts)
    if e._terms is not None:  # coefficients, and any partial sum
        scaled = (interval_scaled(part, coef) for (part, _), (_, coef) in zip(parts, e._terms, strict=True))
        reach = max(reach, sum(map(_magnitude, scaled)), *(abs(coef) for _, coef in e._terms))
    elif isinstance(bounds[0], float) or isinstance(bounds[1], float):  # a division by what can only be 0
        bounds = (-reach, reach)
    elif e.kind == "mul":
        bounds = (max(bounds[0], -MOST_ELEMENTS), min(bounds[1], MOST_ELEMENTS))
    return bounds, max(reach, _magnitude(bounds))


def _magnitude(interval: Interval) -> Any:
    return max(abs(interval[0]), abs(interval[1]))


def _within(end: int | None, limit: int) -> int:
    """The end of a variable's range, which no size goes beyond."""
    if end is None:
        return limit
    return max(-LARGEST_SIZE, min(LARGEST_SIZE, end))
