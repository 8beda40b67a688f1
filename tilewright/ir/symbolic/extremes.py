"""The largest and the smallest value of an expression over ranges of its variables, as expressions without these."""

from __future__ import annotations

from tilewright.ir.symbolic.arith import Sym, sym
from tilewright.ir.symbolic.cond import maximum, minimum
from tilewright.ir.symbolic.prove import Ranges, affine_in, prove_ge0


def upper(e: Sym, ranges: Ranges) -> Sym | None:
    """An expression without the variables of `ranges` that is never below `e`; None when none was found.

    Ranges are inclusive and listed outermost first; those of inner variables may refer to outer ones. The
    bound is exact for expressions that are affine in each variable with a coefficient of known sign.
    """
    return _extreme(e, ranges, 1)


def lower(e: Sym, ranges: Ranges) -> Sym | None:
    """An expression without the variables of `ranges` that is never above `e`; None when none was found."""
    return _extreme(e, ranges, -1)


def _extreme(e: Sym, ranges: Ranges, sign: int) -> Sym | None:
    left = e.vars
    for v in reversed(tuple(ranges)):
        if v in left:
            bound = _eliminate(e, v, ranges[v], sign)
            if bound is None and (bound := _by_known_slope(e, v, ranges, sign)) is None:
                return None
            e, left = bound, bound.vars
    return e if left.isdisjoint(ranges) else None  # listed out of order: a range may bring one back


def _eliminate(e: Sym, v: Sym, interval: tuple[Sym, Sym], sign: int) -> Sym | None:
    """Largest (sign 1) or smallest (sign -1) value of `e` over the interval of `v`."""
    if v not in e.vars:
        return e
    affine = affine_in(e, v)
    if affine is None:
        return _eliminate_in_terms(e, v, interval, sign)
    coef, rest = affine
    lo, hi = coef.bounds
    if lo is not None and lo >= 0:
        return coef * interval[sign > 0] + rest
    if hi is not None and hi <= 0:
        return coef * interval[sign < 0] + rest
    return None


def _by_known_slope(e: Sym, v: Sym, ranges: Ranges, sign: int) -> Sym | None:
    """As `_eliminate`, where the sign of the coefficient of `v` follows from the ranges, none of which is empty."""
    affine = affine_in(e, v)
    if affine is None:
        return None
    coef, rest = affine
    for slope in (1, -1):
        if prove_ge0(slope * coef, ranges):
            return coef * ranges[v][slope == sign] + rest
    return None


def _eliminate_in_terms(e: Sym, v: Sym, interval: tuple[Sym, Sym], sign: int) -> Sym | None:
    """As `_eliminate`, term by term: sound, but blind to terms that move against each other."""
    total = sym(0)
    for mono, coef in e.terms:
        bound = mono if v not in mono.vars else _of_monomial(mono, v, interval, sign if coef > 0 else -sign)
        if bound is None:
            return None
        total = total + coef * bound
    return total


def _of_monomial(mono: Sym, v: Sym, interval: tuple[Sym, Sym], sign: int) -> Sym | None:
    if mono.kind == "var":
        return interval[sign > 0]
    if mono.kind != "mul":
        return _of_atom(mono, v, interval, sign)
    moving = [f for f in mono.args if v in f.vars]
    if len(moving) != 1:
        return None
    factor = sym(1)
    for f in mono.args:
        if f is not moving[0]:
            factor = factor * f
    lo, hi = factor.bounds
    if lo is not None and lo >= 0:
        bound = _eliminate(moving[0], v, interval, sign)
    elif hi is not None and hi <= 0:
        bound = _eliminate(moving[0], v, interval, -sign)
    else:
        return None
    return None if bound is None else factor * bound


def _of_atom(atom: Sym, v: Sym, interval: tuple[Sym, Sym], sign: int) -> Sym | None:
    match atom.kind:
        case "floordiv":
            x, q = atom.args
            bound = _eliminate(x, v, interval, sign) if q.is_const and q.value > 0 else None
            return None if bound is None else bound // q
        case "mod":
            _, q = atom.args
            if v in q.vars or (q.bounds[0] or 0) <= 0:
                return None
            return q - 1 if sign > 0 else sym(0)
        case "min" | "max":
            parts = [_eliminate(a, v, interval, sign) for a in atom.args]
            known = [p for p in parts if p is not None]
            one_is_enough = (atom.kind == "min") == (sign > 0)
            if not known or (len(known) < len(parts) and not one_is_enough):
                return None
            return minimum(*known) if atom.kind == "min" else maximum(*known)
        case "ge0" | "eq0":
            return sym(1 if sign > 0 else 0)
        case "select":
            both = [_eliminate(a, v, interval, sign) for a in atom.args[1:]]
            if both[0] is None or both[1] is None:
                return None
            return maximum(both[0], both[1]) if sign > 0 else minimum(both[0], both[1])
    return None
