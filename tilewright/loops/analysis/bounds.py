"""Bounds of index expressions over loops, and the region of a buffer that a piece of program touches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.sym import Sym, ge0, lower, maximum, minimum, prove, upper

Interval = tuple[Sym, Sym]
Ranges = dict[Sym, Interval]
"""Inclusive ranges of variables, outermost loop first."""


def relevant(ranges: Ranges, e: Sym) -> Ranges:
    """The ranges that can say something about `e`; a proof takes time for each range that it is given."""
    reached: set[Sym] = set()
    pending = [v for v in e.vars if v in ranges]
    while pending:
        v = pending.pop()
        if v not in reached:
            reached.add(v)
            pending += [w for end in ranges[v] if not end.is_const for w in end.vars if w in ranges]
    return {v: r for v, r in ranges.items() if v in reached}


def holds(condition: Sym, ranges: Ranges) -> bool | None:
    """The truth of a condition where every variable lies in its range; None where it is not known."""
    return prove(condition, relevant(ranges, condition))


def follows(condition: Sym, given: Sequence[Sym], ranges: Ranges) -> bool:
    """Whether a comparison holds for certain where one of the `given` ones does."""
    if condition.kind != "ge0":
        return condition in given
    differences = (condition.args[0] - g.args[0] for g in given if g.kind == "ge0")
    return any(holds(ge0(d), ranges) is True for d in differences)


@dataclass(frozen=True, slots=True)
class Box:
    """A box of a buffer: for each axis the first index, and how many from there."""

    start: tuple[Sym, ...]
    sizes: tuple[Sym, ...]


def box(indices: Sequence[tuple[Sym, ...]], ranges: Sequence[Ranges]) -> Box | None:
    """The smallest known box around index tuples, the k-th over `ranges[k]`; None when an axis has no
    bound."""
    start: list[Sym] = []
    sizes: list[Sym] = []
    indices = [_at_points(idx, r) for idx, r in zip(indices, ranges, strict=True)]
    for axis in range(len(indices[0])):
        lows = [lower(idx[axis], r) for idx, r in zip(indices, ranges, strict=True)]
        highs = [upper(idx[axis], r) for idx, r in zip(indices, ranges, strict=True)]
        if any(b is None for b in (*lows, *highs)):
            return None
        low = minimum(*(b for b in lows if b is not None))
        start.append(low)
        sizes.append(maximum(*(b for b in highs if b is not None)) - low + 1)
    return Box(tuple(start), tuple(sizes))


def _at_points(idx: tuple[Sym, ...], ranges: Ranges) -> tuple[Sym, ...]:
    """The indices with the value of each variable that has one only: remainders of sums are then bounded, too."""
    points = {v: low for v, (low, high) in ranges.items() if low is high}
    return tuple(i.subs(points) for i in idx) if points else idx
