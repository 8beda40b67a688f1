"""Facts about symbolic integers that hold for every value of loop variables in symbolic ranges."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from itertools import islice
from math import gcd
from zlib import crc32

from tilewright.ir.symbolic.arith import (
    ONE,
    ZERO,
    Sym,
    Terms,
    const,
    factors_of,
    intern,
    monomial,
    sum_of,
)
from tilewright.ir.symbolic.cond import maximum, minimum
from tilewright.ir.symbolic.sums import rebuild

# Inclusive ranges of variables, whose ends may refer to other variables (but not, in a cycle, to themselves).
Ranges = Mapping[Sym, tuple[Sym, Sym]]

_MAX_STEPS = 300  # bounds each search; beyond it the answer is "not certain"
_DEPTHS = (2, 3, 6, 12)
"""Steps of one chain in the first search and in those that follow where it gives up.

Proofs are short: of 480 that kernels with unknown sizes needed, 90% took chains of 2 steps and none more than 5. A
search in depth that is on a wrong track takes all steps that it is allowed, on expressions that each step makes longer.
"""


@lru_cache(maxsize=1 << 14)
def affine_in(e: Sym, v: Sym) -> tuple[Sym, Sym] | None:
    """(coef, rest) with e == coef*v + rest and v in neither; None where e is not affine in v."""
    coef: Terms = {}
    rest: Terms = {}
    for mono, scale in e.terms:
        if v not in mono.vars:
            rest[mono] = scale
            continue
        others = list(factors_of(mono))
        if v not in others:
            return None
        others.remove(v)
        if any(v in other.vars for other in others):
            return None
        coef[monomial(others)] = scale
    return sum_of(coef), sum_of(rest)


def prove_ge0(e: Sym, ranges: Ranges | None = None) -> bool:
    """Whether e >= 0 is certain where every variable lies in its range; False also where it is not known."""
    if e.interval[0] >= 0:
        return True
    scope = _scope(_items(ranges))
    return _Prover(scope).start(scope.narrow(e))


def prove_ge0_within(steps: int, e: Sym, ranges: Ranges) -> tuple[bool, int]:
    """`prove_ge0` in at most so many steps of its searches together, and how many of them it took."""
    if e.interval[0] >= 0:
        return True, 0
    scope = _scope(_items(ranges))
    prover = _Prover(scope, steps)
    return prover.start(scope.narrow(e)), steps - max(0, prover.left)


def prove(condition: Sym, ranges: Ranges | None = None) -> bool | None:
    """The truth of a condition where every variable lies in its range; None where it is not known."""
    return condition.value != 0 if condition.is_const else _proved(condition, _items(ranges))


def simplify(e: Sym, ranges: Ranges | None = None) -> Sym:
    """e without the comparisons, minima, maxima, divisions and remainders that the ranges decide.

    The result has the value of e where every variable lies in its range, and may have another one elsewhere.
    """
    return _simplified(e, _items(ranges)) if e.vars else e


# Ranges as a key: in the order in which they are listed, which numbers their variables.
_Items = tuple[tuple[Sym, tuple[Sym, Sym]], ...]


def _items(ranges: Ranges | None) -> _Items:
    return tuple(ranges.items()) if ranges else ()


# Every scheduling primitive asks what the one before it asked: three of four questions are repeated ones.


@lru_cache(maxsize=1 << 14)
def _proved(condition: Sym, ranges: _Items) -> bool | None:
    scope = _scope(ranges)
    return _Prover(scope).decide(scope.narrow(condition))


@lru_cache(maxsize=1 << 12)
def _simplified(e: Sym, ranges: _Items) -> Sym:
    scope = _scope(ranges)
    return scope.widen(_Prover(scope).simplify(scope.narrow(e), {}))


class _Scope:
    """One set of ranges as questions under it see them.

    Proofs work on narrowed copies of the variables, whose own bounds are the numeric bounds of the ranges, so
    that interval arithmetic and the canonical form make use of them.
    """

    def __init__(self, ranges: _Items) -> None:
        self.narrowed: dict[Sym, Sym] = {}
        for number, (v, (low, high)) in enumerate(ranges):
            self.narrowed[v] = _narrowed(v, number, self.narrow(low), self.narrow(high))
        self.widened: dict[Sym, Sym | int] = {inner: v for v, inner in self.narrowed.items()}
        self.ranges = {self.narrowed[v]: (self.narrow(low), self.narrow(high)) for v, (low, high) in ranges}
        self.corners = [p for free in _FREE_VALUES for high in (1, 0) if (p := self._point(free, high)) is not None]

    def narrow(self, e: Sym) -> Sym:
        return e.subs(self.narrowed)

    def widen(self, e: Sym) -> Sym:
        return e.subs(self.widened)

    @cached_property
    def scattered(self) -> list[dict[str, int]]:
        """Points in which each variable has a value of its own."""
        tried = (self._point(seed, None) for seed in range(-_SEEDS, 0))  # a range is empty at some of them
        return list(islice((point for point in tried if point is not None), _SCATTERED))

    def _point(self, free: int, end: int | None) -> dict[str, int] | None:
        """Every ranged variable at one end of its range, or somewhere in it; `free` says what others are, see
        `_free_value`. None where a range is empty or refers to itself.

        Most questions have the answer no, and a counterexample is found in microseconds, a failing search in
        milliseconds.
        """
        point: dict[str, int] = {"": free}
        pending = list(self.ranges.items())
        while pending:
            ready = [(v, r) for v, r in pending if not any(o in r[0].vars | r[1].vars for o, _ in pending)]
            if not ready:
                return None
            for v, (low, high) in ready:
                first, last = _value_at(point, low), _value_at(point, high)
                if first is None or last is None or last < first:
                    return None
                value = _somewhere(first, last, _mixed(free, v.name)) if end is None else (first, last)[end]
                if not _within(v, value):
                    return None
                point[v.name] = value
            pending = [item for item in pending if item[0].name not in point]
        return point


@lru_cache(maxsize=1 << 10)
def _scope(ranges: _Items) -> _Scope:
    return _Scope(ranges)


class _Prover:
    """A bounded search for the proof of one answer; its expressions are over narrowed variables."""

    def __init__(self, scope: _Scope, left: int = sys.maxsize) -> None:
        """`left` are the steps of all its searches together."""
        self.left = left
        self.ranges = scope.ranges
        self.known: dict[Sym, bool] = {}
        self.steps = self.depth = self.max_depth = 0
        self.given_up = False  # whether a chain was left because of the bounds of the search
        self.scope = scope
        self.corners = [dict(point) for point in scope.corners]  # copies: they gain values of further variables

    def decide(self, condition: Sym) -> bool | None:
        """The truth of a condition over narrowed variables; None where it is not known."""
        if condition.is_const:
            return condition.value != 0
        if condition.kind in ("min", "max") and condition.is_bool:
            return self._decide_all([self.decide(arg) for arg in condition.args], condition.kind == "min")
        if condition.kind == "eq0":
            return self._decide_zero(condition.args[0])
        e = condition.args[0] if condition.kind == "ge0" else condition - 1
        if condition.kind != "ge0" and not condition.is_bool:
            decided = self._decide_zero(condition)
            return None if decided is None else not decided
        negated = 1 - condition
        if condition.kind != "ge0" and negated.kind == "eq0":
            decided = self._decide_zero(negated.args[0])
            return None if decided is None else not decided
        return True if self.start(e) else (False if self.start(-1 - e) else None)

    def _decide_zero(self, e: Sym) -> bool | None:
        nonnegative, nonpositive = self.start(e), self.start(-e)
        if nonnegative and nonpositive:
            return True
        return False if self.start(e - 1) or self.start(-e - 1) else None

    @staticmethod
    def _decide_all(decided: list[bool | None], is_and: bool) -> bool | None:
        if (not is_and) in decided:
            return not is_and
        return None if None in decided else is_and

    def start(self, e: Sym) -> bool:
        """Whether e >= 0 is certain, unless some point of the ranges refutes it at once: searches of growing depth."""
        if e.interval[0] >= 0:
            return True
        if _is_negative_at(self.corners, e):
            return False
        for self.max_depth in _DEPTHS:
            self.steps, self.given_up = 0, False
            if self.ge0(e):
                return True
            if not self.given_up or (self.max_depth == _DEPTHS[0] and _is_negative_at(self.scattered, e)):
                return False
            self.known = {each: True for each, proved in self.known.items() if proved}
        return False

    @cached_property
    def scattered(self) -> list[dict[str, int]]:
        return [dict(point) for point in self.scope.scattered]

    def ge0(self, e: Sym) -> bool:
        """Whether a search within the bounds finds that e >= 0; over narrowed variables."""
        e = _tightened(e)
        if e.interval[0] >= 0:
            return True
        if e.interval[1] < 0:
            return False
        if e in self.known:
            return self.known[e]
        self.steps, self.left = self.steps + 1, self.left - 1
        if self.steps > _MAX_STEPS or self.depth == self.max_depth or self.left < 0:
            self.given_up = True
            return False
        self.known[e] = False  # a proof must not rest on itself
        self.depth += 1
        proved = (
            self._follows_from_an_end(e)
            or any(self.ge0(smaller) for smaller in self._smaller(e))
            or self._follows_from_a_range(e)
        )
        self.depth -= 1
        self.known[e] = proved
        return proved

    def _smaller(self, e: Sym) -> Iterator[Sym]:
        """Expressions of which any one being >= 0 implies e >= 0, the most promising first."""
        yield from self._without_extremum(e)
        for v in self._innermost(e):
            direction = self._direction(e, v)
            if direction:
                yield e.subs({v: self._range_of(v, direction)})
        yield from self._without_division(e)
        for v in e.vars:
            if v not in self.ranges:
                direction = self._affine_direction(e, v)
                bound = v.bounds[0] if direction > 0 else v.bounds[1]
                if direction and bound is not None:
                    yield e.subs({v: bound})

    def _range_of(self, v: Sym, direction: int) -> Sym:
        low, high = self.ranges[v]
        return low if direction > 0 else high

    def _follows_from_an_end(self, e: Sym) -> bool:
        """Whether e >= 0 because a variable is within its range, whose ends may be long expressions."""
        return any(
            v in self.ranges and e is self.ranges[v][1] - v for v, scale in e.terms if scale == -1
        )

    def _follows_from_a_range(self, e: Sym) -> bool:
        """Whether e >= 0 because a range that holds a value is not empty."""
        return any(
            (e - (high - low)).interval[0] >= 0
            for low, high in self.ranges.values()
            if not e.vars.isdisjoint(high.vars | low.vars)
        )

    def _without_extremum(self, e: Sym) -> Iterator[Sym]:
        for factor, scale in _signed_atoms(e):
            if factor.kind not in ("min", "max", "select"):
                continue
            parts = factor.args[1:] if factor.kind == "select" else factor.args
            replaced = [e + scale * (part - factor) for part in parts]
            if factor.kind == "select" or (factor.kind == "min") == (scale.interval[0] >= 0):
                if all(self.ge0(each) for each in replaced):
                    yield ZERO
            else:
                yield from sorted(replaced, key=lambda each: len(each.terms))  # the others may take all steps

    def _without_division(self, e: Sym) -> Iterator[Sym]:
        for factor, scale in _signed_atoms(e):
            if factor.kind not in ("floordiv", "mod") or factor.args[1].interval[0] < 0:
                continue
            x, q = factor.args
            rest = e - scale * factor
            grows = scale.interval[0] >= 0
            if factor.kind == "floordiv":
                whole = not grows or scale is ONE  # a whole number is reached where x / q reaches it
                scaled = q * rest + scale * (x if whole else x - q + 1)
                yield scaled + q - 1 if scale == -1 else scaled  # x // q <= r where x < q * (r + 1)
                yield from (rest + scale * (bound // q) for bound in _beyond_an_extremum(x, not grows))
                if not (grows or q.is_const) and self.ge0(q - 1) and self.ge0(x + 1):
                    yield rest + scale * x  # x // q <= x
            elif grows:
                yield rest
            else:
                yield rest + scale * (q - 1)
                if self.ge0(x):
                    yield rest + scale * x

    def _innermost(self, e: Sym) -> list[Sym]:
        """The ranged variables of e on which the range of no other variable of e depends, in a fixed order."""
        ranged = sorted((v for v in e.vars if v in self.ranges), key=lambda v: v.sort_key)
        ends = {v: self.ranges[v][0].vars | self.ranges[v][1].vars for v in ranged}
        free = [v for v in ranged if not any(v in ends[other] for other in ranged if other is not v)]
        return free or ranged

    def _direction(self, e: Sym, v: Sym) -> int:
        """1 where e never falls as v grows, -1 where it never rises, 0 where neither is known."""
        return _monotone(e, v) or self._affine_direction(e, v)

    def _affine_direction(self, e: Sym, v: Sym) -> int:
        split = affine_in(e, v)
        if split is None or split[0].is_const:
            return 0 if split is None else (1 if split[0].value >= 0 else -1)
        if self.ge0(split[0]):
            return 1
        return -1 if self.ge0(-split[0]) else 0

    def simplify(self, e: Sym, memo: dict[Sym, Sym]) -> Sym:
        """e with its decided parts replaced, over narrowed variables."""
        if not e.args:
            return e
        if (known := memo.get(e)) is None:
            known = rebuild(e, tuple(self.simplify(arg, memo) for arg in e.args))
            memo[e] = known = self._without_decided(known)
        return known

    def _without_decided(self, e: Sym) -> Sym:
        if e.kind in ("ge0", "eq0"):
            decided = self.decide(e)
            return e if decided is None else const(decided)
        if e.kind in ("floordiv", "mod"):
            x, q = e.args
            if self.start(x) and self.start(q - 1 - x):
                return ZERO if e.kind == "floordiv" else x
        if e.kind in ("min", "max"):
            return self._without_superfluous(e)
        return e

    def _without_superfluous(self, e: Sym) -> Sym:
        sign = 1 if e.kind == "min" else -1
        kept = list(e.args)
        for candidate in e.args:
            if any(other is not candidate and self.start(sign * (candidate - other)) for other in kept):
                kept.remove(candidate)
        return minimum(*kept) if e.kind == "min" else maximum(*kept)


_FREE_VALUES = (1, 1_000_003, 48)
"""Values that stand for variables without a range in points; "" names the value in a point."""

_SCATTERED, _SEEDS = 16, 48
"""Points in which variables have values of their own, and how many are tried: negative numbers name them."""


def _free_value(free: int, name: str) -> int:
    """The value of a variable without a range; where each has its own, these are of several magnitudes."""
    return free if free >= 0 else 1 + _mixed(free, name) % (12, 120, 3000)[free % 3]


def _mixed(seed: int, name: str) -> int:
    """A number that is another one for each name and seed."""
    return crc32(f"{seed} {name}".encode())


def _somewhere(first: int, last: int, number: int) -> int:
    """A value of a range that a large number chooses: half of them its ends."""
    choice, number = number % 4, number // 4
    return (first, last)[choice] if choice < 2 else first + number % (last - first + 1)


def _is_negative_at(points: list[dict[str, int]], e: Sym) -> bool:
    """Whether e is below 0 at one of the points."""
    return any((_value_at(point, e) or 0) < 0 for point in points)


def _value_at(point: dict[str, int], e: Sym) -> int | None:
    """The value of e; None where it divides by something that is zero there."""
    try:
        found: int = e.evaluate(_completed(point, e))
        return found
    except ZeroDivisionError:
        return None


def _completed(point: dict[str, int], e: Sym) -> dict[str, int]:
    """`point` with a value for each variable of `e`, remembered so that all questions see the same."""
    for v in e.vars:
        if v.name not in point:
            low, high = v.bounds
            free = _free_value(point[""], v.name)
            value = free if low is None else max(low, free)
            point[v.name] = value if high is None else min(high, value)
    return point


def _within(v: Sym, value: int) -> bool:
    low, high = v.bounds
    return (low is None or low <= value) and (high is None or value <= high)


def _narrowed(v: Sym, number: int, low: Sym, high: Sym) -> Sym:
    """A variable in the place of v that has the numeric bounds of its range; its name is no other variable's."""
    lows = [bound for bound in (v.bounds[0], low.bounds[0]) if bound is not None]
    highs = [bound for bound in (v.bounds[1], high.bounds[1]) if bound is not None]
    lo, hi = max(lows, default=None), min(highs, default=None)
    if lo is not None and hi is not None and lo > hi:
        lo, hi = v.bounds  # the range is empty: whatever is said of it is true
    return intern("var", None, (), name=f"{v.name}'{number}", payload=(lo, hi))


def _beyond_an_extremum(x: Sym, above: bool) -> Iterator[Sym]:
    """Expressions that are never below x (or never above it): with an operand in the place of a minimum or maximum."""
    for factor, scale in _signed_atoms(x):
        if factor.kind == ("min" if above == (scale.interval[0] >= 0) else "max"):
            yield from (x + scale * (part - factor) for part in factor.args)


def _tightened(e: Sym) -> Sym:
    """An expression that is >= 0 exactly where e is, with coefficients that share no factor."""
    step = gcd(*(coef for mono, coef in e.terms if mono is not ONE))
    return e if step <= 1 else sum_of({mono: coef // step for mono, coef in e.terms})


def _signed_atoms(e: Sym) -> Iterator[tuple[Sym, Sym]]:
    """(atom, scale) for atoms of e that are no variable: e has the term atom * scale, and scale has a known sign."""
    for mono, coef in e.terms:
        factors = factors_of(mono)
        for factor in factors:
            if factor.kind == "var":
                continue
            others = list(factors)
            others.remove(factor)
            scale = coef * monomial(others)
            if scale.interval[0] >= 0 or scale.interval[1] <= 0:
                yield factor, scale


def _monotone(e: Sym, v: Sym) -> int:
    """1 where the form of e shows that it never falls as v grows, -1 that it never rises, else 0."""
    directions = {_term_direction(mono, coef, v) for mono, coef in e.terms if v in mono.vars}
    return directions.pop() if len(directions) == 1 else 0


def _term_direction(mono: Sym, coef: int, v: Sym) -> int:
    moving = [factor for factor in factors_of(mono) if v in factor.vars]
    if len(moving) != 1:
        return 0
    others = list(factors_of(mono))
    others.remove(moving[0])
    lo, hi = monomial(others).interval
    sign = 1 if lo >= 0 else (-1 if hi <= 0 else 0)
    return _atom_direction(moving[0], v) * sign * (1 if coef > 0 else -1)


def _atom_direction(atom: Sym, v: Sym) -> int:
    if atom is v:
        return 1
    if atom.kind in ("min", "max", "ge0"):
        directions = {_monotone(arg, v) for arg in atom.args if v in arg.vars}
        return directions.pop() if len(directions) == 1 else 0
    if atom.kind == "floordiv" and v not in atom.args[1].vars and atom.args[1].interval[0] >= 0:
        return _monotone(atom.args[0], v)
    return 0
