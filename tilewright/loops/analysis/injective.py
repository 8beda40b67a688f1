"""Indices that differ between any two iterations of some loops."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.ir.sym import Sym, sym, upper, var
from tilewright.loops.analysis.bounds import Ranges
from tilewright.loops.edit import extent_of, loop_range, loop_var


def is_injective(indices: Sequence[Sym], loops: Sequence[Op]) -> bool:
    """Whether the indices tell all iterations of the loops apart."""
    return told_apart(indices, loops) == set(loops)


def told_apart(indices: Sequence[Sym], loops: Sequence[Op]) -> set[Op]:
    """The loops whose iterations the indices tell apart, whatever the others do: of their variables no part is missing
    among the digits of those indices that are mixed-radix numbers of parts of variables.

    A loop of n iterations may be the units of a number `n*outer + loop` of which the indices have parts, as where a
    flat loop was split by a number that is no product of lengths of axes.
    """
    ranges = {loop_var(o): loop_range(o) for o in loops if extent_of(o) != 1}
    whole = _whole_variables(indices, ranges)
    for o in loops:
        v, n = loop_var(o), extent_of(o)
        if v in ranges and v not in whole and n.is_const:
            for outer in _counted_in(indices, v, n.value):
                whole |= _whole_pair(indices, outer, v, n.value, ranges)
    return {o for o in loops if loop_var(o) not in ranges or loop_var(o) in whole}


def _whole_variables(indices: Sequence[Sym], ranges: Ranges) -> set[Sym]:
    """The variables of `ranges` all parts of which are in the indices; others have one value."""
    parts: dict[Sym, set[_Part]] = {v: set() for v in ranges}
    for index in indices:
        moving = [(mono, step) for mono, step in index.terms if mono.vars & ranges.keys()]
        found = [_part(mono) if len(mono.vars & ranges.keys()) == 1 else None for mono, _ in moving]
        known = [part for part in found if part is not None and part[0] in ranges]
        if len(known) == len(moving) and _is_mixed_radix(moving, ranges):
            for v, part in known:
                parts[v].add(part)
    return {v for v in ranges if _is_whole(parts[v])}


def _counted_in(indices: Sequence[Sym], v: Sym, n: int) -> set[Sym]:
    """The variables that stand in a division beside `v`, n times as large."""
    found: set[Sym] = set()
    pending = [mono for index in indices for mono, _ in index.terms]
    while pending:
        mono = pending.pop()
        if mono.kind in ("floordiv", "mod") and v in mono.vars:
            terms = mono.args[0].terms
            step = next((coef for other, coef in terms if other is v), None)
            found.update(other for other, coef in terms if other.kind == "var" and step and coef == n * step)
            pending += [other for other, _ in terms]
    return found


def _whole_pair(indices: Sequence[Sym], outer: Sym, inner: Sym, n: int, ranges: Ranges) -> set[Sym]:
    """Both variables, if all parts of `n*outer + inner` are in the indices. `outer` may have one value that is not
    known, but is not negative."""
    lowest = outer.bounds[0]
    if outer not in ranges and (lowest is None or lowest < 0):
        return set()
    flat = var(f"{outer.name}.flat.{inner.name}")
    last = n * ranges[outer][1] + (n - 1) if outer in ranges else var(f"{flat.name}.last")
    digits = {outer: flat // n, inner: flat % n}
    others = {v: (low.subs(digits), high.subs(digits)) for v, (low, high) in ranges.items() if v not in digits}
    found = _whole_variables([index.subs(digits) for index in indices], {flat: (sym(0), last), **others})
    return {outer, inner} if flat in found else set()


_Part = tuple[Sym, Sym | None]
"""(d, m): a variable modulo m (None: as it is), divided by d."""


def _part(digit: Sym) -> tuple[Sym, _Part] | None:
    """The variable and which part of it `digit` is; None when it is something else."""
    if digit.kind == "var":
        return digit, (sym(1), None)
    if digit.kind not in ("mod", "floordiv"):
        return None
    inner, by = digit.args
    within = _part(inner)
    if within is None or len(digit.vars & inner.vars) != 1 or inner.vars & by.vars:
        return None
    v, (divisor, modulus) = within
    if digit.kind == "floordiv":
        return v, (divisor * by, modulus)
    return (v, (divisor, divisor * by)) if modulus is None else None


def _is_whole(parts: set[_Part]) -> bool:
    """Whether the parts make up the variable: from the units up to the last, without gaps."""
    following = dict(parts)
    at: Sym | None = sym(1)
    for _ in parts:
        if at is None or at not in following:
            return False
        at = following[at]
    return bool(parts) and at is None


def _is_mixed_radix(moving: Sequence[tuple[Sym, int]], ranges: Ranges) -> bool:
    """Whether every step is longer than all that the digits with smaller steps span."""
    span = 0
    for k, (digit, step) in enumerate(sorted(moving, key=lambda term: term[1])):
        if step <= span or step < 1:
            return False
        last = upper(digit, ranges)
        if last is None or not last.is_const:
            return k + 1 == len(moving)
        span += step * last.value
    return True
