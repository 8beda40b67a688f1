"""Small sizes, and iterations, for which an access of a kernel leaves its buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, product

from tilewright.graph.accesses import AxisAccess
from tilewright.ir.sym import Sym, affine_in, ge

Place = tuple[tuple[str, int], ...]
"""Values of dims and of loops, by name."""

_SIZES = (1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 0)
"""Sizes of dims that are tried."""

_ALL = (4, 64)
"""Iterations of a loop up to which all are tried, in one search and the next; of more, those at its ends and in its
middle."""

_TRIED, _TRIED_OF_SIZE = 3000, 400
"""Points that are looked at in each search, and for the same sizes of dims."""


def leaving(wanted: Sym, access: AxisAccess, given: Sequence[Sym]) -> Place:
    """Values of dims, and of loops within their ranges, for which an access is done and an expression is negative,
    where the `given` conditions hold of dims; () where none was found, or data decides."""
    loops = list(access.ranges)  # all: one that has no iterations keeps the access from being done
    ends = [end for v in loops for end in access.ranges[v]]
    of_dims = [*given, *(ge(d, 0) for d in access.shape)]
    names = frozenset[Sym]().union(*(e.vars for e in (wanted, *access.guards, *ends, *of_dims)))
    if not names.isdisjoint(access.data):
        return ()
    dims = sorted(names - set(access.ranges), key=lambda v: v.name)
    if any(v.bounds[0] is None for v in dims):
        return ()
    for all_of in _ALL:
        left = _TRIED
        for sizes in islice(product(*(_tried(v, (*access.guards, *given)) for v in dims)), _TRIED):
            points = _Points(wanted, access, loops, all_of, min(left, _TRIED_OF_SIZE))
            env = {v.name: n for v, n in zip(dims, sizes, strict=True)}
            with suppress(ZeroDivisionError):  # what is divided by a size of 0 is not reached
                if all(c.evaluate(env) for c in of_dims) and (found := points.first(env)):
                    return tuple(sorted(found.items()))
            left -= points.tried
            if left <= 0:
                break
    return ()


def _tried(v: Sym, conditions: Iterable[Sym]) -> list[int]:
    """Sizes of a dim: those at which conditions change, and small ones."""
    low, high = v.bounds
    least = low or 0
    limits = [n + k for c in conditions for n in _limits(c, v) for k in (0, 1)]
    sizes = dict.fromkeys([*limits, *_SIZES, least, least + 1])
    return [n for n in sizes if least <= n and (high is None or n <= high)]


def _limits(condition: Sym, v: Sym) -> Iterator[int]:
    """The numbers that a condition compares a variable with."""
    for part in condition.args if condition.kind == "min" else (condition,):
        affine = affine_in(part.args[0], v) if part.kind == "ge0" else None
        if affine is not None and affine[0].is_const and affine[0].value and affine[1].is_const:
            yield -affine[1].value // affine[0].value


class _Points:
    """Looks at points of the ranges of loops, so `many` of them."""

    def __init__(self, wanted: Sym, access: AxisAccess, loops: Sequence[Sym], all_of: int, many: int) -> None:
        self.wanted, self.guards = wanted.evaluate, [g.evaluate for g in access.guards]
        ends = ((v.name, access.ranges[v]) for v in loops)
        self.ends = [(name, low.evaluate, high.evaluate) for name, (low, high) in ends]
        self.all_of, self.many, self.tried = all_of, many, 0

    def first(self, env: dict[str, int], depth: int = 0) -> dict[str, int] | None:
        """The first for which the access is done and the expression negative."""
        if depth == len(self.ends):
            self.tried += 1
            is_done = all(g(env) for g in self.guards)
            return env if is_done and self.wanted(env) < 0 else None
        name, low, high = self.ends[depth]
        for at in self.some(low(env), high(env)):
            if self.tried >= self.many:
                return None
            if found := self.first(env | {name: at}, depth + 1):
                return found
        return None

    def some(self, low: int, high: int) -> Iterable[int]:
        """Values from `low` to `high`."""
        if high - low < self.all_of:
            return range(high, low - 1, -1)
        return high, low, high - 1, low + 1, (low + high) // 2
