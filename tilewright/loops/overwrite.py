"""Which results of a kernel may take the place of an argument: those that write an element only after its last read.

Threads, vectors and unrolled loops keep the order of accesses within an iteration only, so a read and a write of one
element must lie in the same iteration of every loop around both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir.core import Block, Func, Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.loops.bounds import Ranges, upper
from tilewright.loops.deps import Access, accesses, disjoint, separated
from tilewright.loops.nest import address_of, extent_of, loop_range, loop_var
from tilewright.loops.spec import versions_of

Pair = tuple[int, int]
"""Positions of an input and of an output among a kernel's arguments."""


def overwritable(func: Func) -> tuple[Pair, ...]:
    """Pairs (input, output) of arguments of one type that are proven to be right in the same memory.

    Inputs that the attribute `constants` lists are left out.
    """
    found = [set(_pairs(func, body)) for body in versions_of(func.body)]
    return tuple(sorted(set.intersection(*found)))


def _pairs(func: Func, body: Block) -> Iterator[Pair]:
    first = len(func.args) - int(func.attrs["outputs"])
    touched: dict[Value, list[_Numbered]] = {}
    for n, access in enumerate(accesses(body)):
        touched.setdefault(access.buffer, []).append((n, access))
    for o, target in enumerate(func.args[first:], first):
        stores = [(n, a) for n, a in touched.get(target, ()) if a.write]
        for i, source in enumerate(func.args[:first]):
            loads = touched.get(source, ())
            is_candidate = (
                source.type == target.type and bool(loads) and i not in func.attrs.get("constants", ())
            )
            if is_candidate and all(_reads_first(load, store) for store in stores for load in loads):
                yield i, o


_Numbered = tuple[int, Access]
"""An access and its position in program order."""


def _reads_first(load: _Numbered, store: _Numbered) -> bool:
    """Whether the store is proven to write no element that the load reads later or in another iteration."""
    (at, a), (then, b) = load, store
    band = [x for x, y in zip(a.loops, b.loops, strict=False) if x is y]
    return _meet_in_one_round(a, b, band) and (at < then or disjoint(a, b, band))


def _meet_in_one_round(a: Access, b: Access, band: Sequence[Op]) -> bool:
    """Whether the two touch one element in the same iteration of all loops of `band` only."""
    same = a.idx == b.idx and a.loops == b.loops and not a.unknown
    if same and (_is_injective((address_of(a.op),), band) or _is_injective(a.idx, band)):
        return True
    return separated(a, b, band, {}) == set(band)


# Indices that differ between any two iterations


def _is_injective(indices: Sequence[Sym], loops: Sequence[Op]) -> bool:
    """Whether the indices tell all iterations of the loops apart: each is a mixed-radix number of parts of the loops'
    variables, and no part of a variable is missing."""
    ranges = {loop_var(o): loop_range(o) for o in loops if extent_of(o) != 1}
    parts: dict[Sym, set[_Part]] = {v: set() for v in ranges}
    for index in indices:
        moving = [(mono, step) for mono, step in index.terms if mono.vars & ranges.keys()]
        if not _is_mixed_radix(moving, ranges):
            return False
        for mono, _ in moving:
            found = _part(mono) if len(mono.vars & ranges.keys()) == 1 else None
            if found is None or found[0] not in ranges:
                return False
            parts[found[0]].add(found[1])
    return all(_is_whole(found) for found in parts.values())


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
