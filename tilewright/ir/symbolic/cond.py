"""Minimum, maximum, conditions and select over symbolic integers, in canonical form."""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd
from typing import Literal

from tilewright.ir.symbolic.arith import ONE, ZERO, Sym, intern, sort_key, sum_of, sym


def minimum(*operands: Sym | int) -> Sym:
    """The smallest of one or more expressions."""
    return _extremum("min", operands)


def maximum(*operands: Sym | int) -> Sym:
    """The largest of one or more expressions."""
    return _extremum("max", operands)


def _extremum(kind: Literal["min", "max"], operands: Iterable[Sym | int]) -> Sym:
    flat: set[Sym] = set()
    for operand in map(sym, operands):
        flat.update(operand.args if operand.kind == kind else (operand,))
    if not flat:
        raise ValueError(f"'{kind}' needs at least one operand")
    kept: list[Sym] = []
    for candidate in sorted(flat, key=sort_key):
        if any(_never_beyond(kind, other, candidate) for other in kept):
            continue
        kept = [other for other in kept if not _never_beyond(kind, candidate, other)]
        kept.append(candidate)
    return kept[0] if len(kept) == 1 else intern(kind, minimum if kind == "min" else maximum, tuple(kept))


def _never_beyond(kind: Literal["min", "max"], a: Sym, b: Sym) -> bool:
    """Whether bounds show that a makes b superfluous: a <= b for a minimum, a >= b for a maximum."""
    difference = (b - a if kind == "min" else a - b).interval
    return difference[0] >= 0


def ge0(e: Sym | int) -> Sym:
    """The condition e >= 0."""
    e = sym(e)
    lo, hi = e.interval
    if lo >= 0 or hi < 0:
        return ONE if lo >= 0 else ZERO
    if lo >= -1 and hi <= 0:
        return logical_not(-e)
    step = gcd(*(coef for mono, coef in e.terms if mono is not ONE))
    if step > 1:
        return ge0(sum_of({mono: coef // step for mono, coef in e.terms}))
    return intern("ge0", ge0, (e,))


def eq0(e: Sym | int) -> Sym:
    """The condition e == 0."""
    e = sym(e)
    lo, hi = e.interval
    if lo > 0 or hi < 0 or e is ZERO:
        return ONE if e is ZERO else ZERO
    if e.is_bool or (lo >= -1 and hi <= 0):
        return logical_not(e if e.is_bool else -e)
    step = gcd(*(coef for mono, coef in e.terms if mono is not ONE))
    first = min((mono.sort_key, coef) for mono, coef in e.terms if mono is not ONE)
    step = -step if first[1] < 0 else step
    if any(coef % step for _, coef in e.terms):
        return ZERO
    if step != 1:
        return eq0(sum_of({mono: coef // step for mono, coef in e.terms}))
    return intern("eq0", eq0, (e,))


def le(a: Sym | int, b: Sym | int) -> Sym:
    """The condition a <= b."""
    return ge0(sym(b) - a)


def lt(a: Sym | int, b: Sym | int) -> Sym:
    """The condition a < b."""
    return ge0(sym(b) - a - ONE)


def ge(a: Sym | int, b: Sym | int) -> Sym:
    """The condition a >= b."""
    return ge0(sym(a) - b)


def gt(a: Sym | int, b: Sym | int) -> Sym:
    """The condition a > b."""
    return ge0(sym(a) - b - ONE)


def eq(a: Sym | int, b: Sym | int) -> Sym:
    """The condition that a and b have the same value."""
    return eq0(sym(a) - b)


def ne(a: Sym | int, b: Sym | int) -> Sym:
    """The condition that a and b have different values."""
    return logical_not(eq(a, b))


def truth(e: Sym | int) -> Sym:
    """e itself where it is 0 or 1, else the condition e != 0."""
    e = sym(e)
    return e if e.is_bool else ne(e, 0)


def logical_not(condition: Sym | int) -> Sym:
    """1 where the condition is 0, else 0; goes through `and` and `or` to the comparisons."""
    condition = truth(condition)
    if condition.kind == "ge0":
        return ge0(-1 - condition.args[0])
    if condition.kind == "min":
        return maximum(*map(logical_not, condition.args))
    if condition.kind == "max":  # of which all but one may be below 0
        return minimum(*(le(a, 0) for a in condition.args))
    return 1 - condition


def logical_and(*conditions: Sym | int) -> Sym:
    """Whether all conditions hold: their minimum; 1 for none."""
    return minimum(1, *map(truth, conditions))


def logical_or(*conditions: Sym | int) -> Sym:
    """Whether any condition holds: their maximum; 0 for none."""
    return maximum(0, *map(truth, conditions))


def select(condition: Sym | int, a: Sym | int, b: Sym | int) -> Sym:
    """a where the condition is not 0, else b; only the chosen one needs to be defined."""
    condition, a, b = truth(condition), sym(a), sym(b)
    if a is b:
        return a
    if condition.is_const:
        return a if condition.value else b
    if a is ONE and b is ZERO:
        return condition
    if a is ZERO and b is ONE:
        return logical_not(condition)
    if b.kind == "select" and b.args[1] is a:
        return select(logical_or(condition, b.args[0]), a, b.args[2])
    return intern("select", select, (condition, a, b))
