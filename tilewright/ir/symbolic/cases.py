"""Facts about dims that are found by looking at sizes of 0 and of 1 apart from larger ones, as broadcasting does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from tilewright.ir.symbolic.arith import Sym, const, var

_MAX_VARIABLES = 3
"""Of expressions that are looked at: each multiplies the number of cases by 3."""

_LARGE = 2
"""The least of the sizes that are one case."""


def unbounded(v: Sym) -> Sym:
    """The variable of this name of which nothing is known: a size that is still to be compared with the bounds of `v`,
    within which nothing would be left to compare."""
    return var(v.name, None)


@lru_cache(maxsize=1 << 12)
def at_most_one(d: Sym) -> bool:
    """Whether an expression is known to be 1 or less for all values of its variables."""
    if d.interval[1] <= 1:
        return True
    return len(d.args) > 0 and all(d.subs(case).interval[1] <= 1 for case in _cases(d))


@lru_cache(maxsize=1 << 12)
def sure_broadcast(a: Sym, b: Sym) -> Sym | None:
    """The one of two dims that is their broadcast for all values of their variables, because the other one is always
    the same or 1; None where that is not known."""
    is_first = is_second = True
    for case in _cases(a, b):
        p, q = a.subs(case), b.subs(case)
        if p is q:
            continue
        is_first, is_second = is_first and q == 1, is_second and p == 1
        if not (is_first or is_second):
            return None
    return a if is_first else b


@lru_cache(maxsize=1 << 12)
def may_be_one_beside(own: Sym, other: Sym) -> bool:
    """Whether a dim may be 1 where another one is not, for all that is known: not `min(t, 512)` beside `t`."""
    for case in _cases(own, other):
        p, q = own.subs(case), other.subs(case)
        low, high = p.interval
        if p is not q and q != 1 and low <= 1 <= high:
            return True
    return False


def _cases(*expressions: Sym) -> Iterator[dict[Sym, Sym | int]]:
    """What the variables are in each case: 0, 1, or a variable for what is larger, which comes first as it refutes the
    most. One case where there are too many."""
    variables = sorted(frozenset().union(*(e.vars for e in expressions)), key=lambda v: v.sort_key)
    if len(variables) > _MAX_VARIABLES:
        yield {}
        return
    for values in product(*map(_values, variables)):
        yield dict(zip(variables, values, strict=True))


def _values(v: Sym) -> list[Sym]:
    low, high = v.bounds
    if low is None or low < 0 or low >= _LARGE:
        return [v]
    large = [var(v.name, _LARGE, high)] if high is None or high >= _LARGE else []
    return [*large, *(const(n) for n in range(low, _LARGE if high is None else min(_LARGE, high + 1)))]
