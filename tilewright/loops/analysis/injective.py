"""Indices that differ between any two iterations of some loops."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.ir.sym import Sym, sym, upper
from tilewright.loops.analysis.bounds import Ranges
from tilewright.loops.edit import extent_of, loop_range, loop_var


def is_injective(indices: Sequence[Sym], loops: Sequence[Op]) -> bool:
    """Whether the indices tell all iterations of the loops apart."""
    return told_apart(indices, loops) == set(loops)


def told_apart(indices: Sequence[Sym], loops: Sequence[Op]) -> set[Op]:
    """The loops whose iterations the indices tell apart, whatever the others do: of their variables no part is missing
    among the digits of those indices that are mixed-radix numbers of parts of variables."""
    ranges = {loop_var(o): loop_range(o) for o in loops if extent_of(o) != 1}
    parts: dict[Sym, set[_Part]] = {v: set() for v in ranges}
    for index in indices:
        moving = [(mono, step) for mono, step in index.terms if mono.vars & ranges.keys()]
        found = [_part(mono) if len(mono.vars & ranges.keys()) == 1 else None for mono, _ in moving]
        known = [part for part in found if part is not None and part[0] in ranges]
        if len(known) == len(moving) and _is_mixed_radix(moving, ranges):
            for v, part in known:
                parts[v].add(part)
    return {o for o in loops if loop_var(o) not in ranges or _is_whole(parts[loop_var(o)])}


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
