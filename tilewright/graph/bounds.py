"""That no element is read or written outside of its buffer: proved of an operator, or what must hold of dims for it.

Every load and store of an operator is looked at, axis by axis, over all positions of its loops. Where the bounds do
not follow from the types, from the conditions on the access itself and from what is known of the dims already, they
become a condition on dims. Positions that are data are limited by checks of their own, which `accesses` understands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.graph.accesses import AxisAccess, Ranges, Walk
from tilewright.ir.core import Block, Builder, Op
from tilewright.ir.sym import (
    Sym,
    affine_in,
    ge,
    logical_and,
    logical_or,
    lower,
    lt,
    prove_ge0,
    sym,
    var,
)
from tilewright.ir.types import TensorType, buffer
from tilewright.ops.define import OPERATORS
from tilewright.ops.define.scalar_builder import ScalarBuilder


@dataclass
class DimFacts:
    """What is known of dims: what some of them are in terms of others, expressions that are not negative, and
    conditions of which one holds at least."""

    values: dict[Sym, Sym | int] = field(default_factory=dict)
    nonnegative: list[Sym] = field(default_factory=list)
    alternatives: list[Sym] = field(default_factory=list)

    def where(self, conditions: Iterable[Sym]) -> DimFacts:
        """What is known where these hold as well."""
        facts = DimFacts(dict(self.values), list(self.nonnegative), list(self.alternatives))
        told: set[Sym] = set()
        for condition in conditions:
            told |= condition.vars | facts.applied(condition).vars
            facts.learn(condition)
        for each in facts.alternatives[:]:
            if each.vars.isdisjoint(told):
                continue
            left = [part for part in map(facts.applied, each.args) if part != 0]
            if len(left) == 1:
                facts.learn(left[0])
        return facts

    def learn(self, condition: Sym) -> None:
        """Take for granted from here on that a condition holds."""
        condition = self.applied(condition)
        if condition.kind == "min":
            for part in condition.args:
                self.learn(part)
        elif condition.kind == "max":
            self.alternatives.append(condition)
        elif condition.kind == "ge0":
            self._learn_least(condition.args[0])
        elif (zero := _zero(condition)) is not None and (found := _solved(zero)) is not None:
            v, value = found
            self._put(v, value)
            least = v.bounds[0]
            if least is not None and value.interval[0] < least:
                self._learn_least(value - least)

    def _learn_least(self, e: Sym) -> None:
        for v in sorted(e.vars, key=lambda v: v.sort_key):
            split, least = affine_in(e, v), v.bounds[0]
            if split is not None and split[0] == 1 and least is not None and (-split[1]).interval[0] >= least:
                return self._put(v, var(f"{v.name}.more", 0) - split[1])
        self.nonnegative.append(e)

    def _put(self, v: Sym, value: Sym) -> None:
        self.values = {w: e.subs({v: value}) if isinstance(e, Sym) else e for w, e in self.values.items()}
        self.nonnegative = [e.subs({v: value}) for e in self.nonnegative]
        self.values[v] = value

    @property
    def ranges(self) -> Ranges:
        """Ranges of dims that have a greatest value, none of which refers to another."""
        found: Ranges = {}
        for e in self.nonnegative:
            for v in e.vars:
                split, least = affine_in(e, v), v.bounds[0]
                if split is None or split[0] != -1 or least is None or v in found:
                    continue
                if split[1].vars.isdisjoint(found) and all(v not in high.vars for _, high in found.values()):
                    found[v] = (sym(least), split[1])
        return found

    def applied(self, e: Sym) -> Sym:
        return e.subs(self.values) if self.values and not e.vars.isdisjoint(self.values) else e

    def hold(self, condition: Sym) -> bool:
        """Whether a condition follows."""
        condition = self.applied(condition)
        if condition.is_const:
            return bool(condition.value)
        if condition.kind == "min":
            return all(map(self.hold, condition.args))
        if condition.kind == "max":
            return any(map(self.hold, condition.args)) or condition in map(self.applied, self.alternatives)
        return condition.kind == "ge0" and _follows(condition.args[0], self.ranges, self.nonnegative)


def _zero(condition: Sym) -> Sym | None:
    """What is 0 where a condition holds; None for one of another kind."""
    if condition.kind == "eq0":
        return condition.args[0]
    return None if condition.kind == "max" or not condition.is_bool else 1 - condition


def _solved(e: Sym) -> tuple[Sym, Sym] | None:
    """A variable and its value where e is 0; None where none can be told."""
    if e.kind == "mod" and e.args[0].kind == "var" and e.args[1].is_const:
        v, count = e.args
        return v, var(f"{v.name}.by{count}", 0 if v.bounds[0] is not None else None) * count
    for v in sorted(e.vars, key=lambda v: v.sort_key):
        split = affine_in(e, v)
        if split is not None and split[0].is_const and abs(split[0].value) == 1:
            return v, split[1] * -split[0].value
    return None


def _follows(e: Sym, ranges: Ranges, known: Iterable[Sym]) -> bool:
    """Whether e >= 0 where the variables lie in their ranges and no expression of `known` is negative."""
    if prove_ge0(e, ranges):
        return True
    return any(not e.vars.isdisjoint(k.vars) and prove_ge0(e - k, ranges) for k in known)


@dataclass(frozen=True)
class Bound:
    """A condition on dims, and the access that needs it; None where the bounds depend on more than dims."""

    access: AxisAccess
    holds: Sym | None


def unproved(op: Op, types: Sequence[TensorType], facts: DimFacts) -> Iterator[Bound]:
    """What does not follow from `facts` of the accesses of an op, a primitive or one with loops of its own."""
    inside: dict[tuple[Sym, ...], DimFacts] = {}
    for access in _accesses(op, types):
        if access.extents not in inside:
            inside[access.extents] = facts.where(ge(extent, 1) for extent in access.extents)
        yield from _unproved(access, facts, inside[access.extents])


def _accesses(op: Op, types: Sequence[TensorType]) -> Iterator[AxisAccess]:
    operator = OPERATORS[op.name]
    if operator.kind == "primitive":
        computation = operator.compute(types, op.attrs)
        loops = (*computation.domain, *computation.reduce)
        if all(extent != 0 for _, extent in loops):
            ranges: Ranges = {v: (sym(0), extent - 1) for v, extent in loops}
            yield from Walk(ranges).accesses(computation.body)
        return
    results = operator.result_types(types, op.attrs)
    block = Block([buffer(t.dtype, t.shape) for t in (*types, *results)])
    trace = ScalarBuilder(Builder(block))
    arrays = [trace.array(a) for a in block.args]
    assert operator.lower is not None
    operator.lower(trace, arrays[: len(types)], arrays[len(types) :], **op.attrs)
    yield from Walk({}).accesses(block)


def _unproved(access: AxisAccess, facts: DimFacts, inside: DimFacts) -> Iterator[Bound]:
    index, dim, ranges = access.index, access.shape[access.axis], access.ranges
    if index in ranges and ranges[index][0] == 0 and ranges[index][1] is dim - 1:
        return
    left = [index, dim - 1 - index]
    for known in (facts, inside):  # what is put in for dims may hide what is simple otherwise
        left = [e for e in left if not _is_proved(e, access, known)]
    left = [e for e in left if not _is_proved_in_each_case(e, access, inside)]
    if not left:
        return
    inner = access.data.union(ranges)
    least = [lower(e, ranges) for e in left]
    if not all(_is_exact(e, low, access) for e, low in zip(left, least, strict=True)):
        yield Bound(access, None)
        return
    empty = [lt(extent, 1) for extent in access.extents if extent.vars.isdisjoint(inner)]
    holds = logical_or(*empty, logical_and(*(ge(e, 0) for e in least if e is not None)))
    if not facts.hold(holds):
        yield Bound(access, holds)


def _is_proved(e: Sym, access: AxisAccess, facts: DimFacts) -> bool:
    """Whether e >= 0 where an access is done."""
    ranges = {v: (facts.applied(low), facts.applied(high)) for v, (low, high) in access.ranges.items()}
    guards = [g for each in access.guards for g in _nonnegative(facts.applied(each))]
    return _follows(facts.applied(e), facts.ranges | ranges, (*guards, *facts.nonnegative))


def _is_proved_in_each_case(e: Sym, access: AxisAccess, facts: DimFacts) -> bool:
    """The same for each way in which a condition can hold of which one part does."""
    return any(
        len(each.args) <= MOST_CASES
        and not each.vars.isdisjoint(facts.applied(e).vars)
        and all(_is_proved(e, access, facts.where([part])) for part in each.args)
        for each in facts.alternatives
    )


MOST_CASES = 4
"""Parts of a condition for each of which a bound is proved; the proofs of more take long."""


def _is_exact(e: Sym, least: Sym | None, access: AxisAccess) -> bool:
    """Whether `least` is a value that `e` takes at some iteration, and an expression of dims alone: a condition on
    what is less would refuse calls that are right."""
    inner = access.data.union(access.ranges)
    if least is None or not least.vars.isdisjoint(inner) or not e.vars.isdisjoint(access.data):
        return False
    counters = [v for v in e.vars if v in access.ranges]
    is_guarded = any(v in g.vars for g in access.guards for v in counters)
    return not is_guarded and all(affine_in(e, v) is not None for v in counters)


def _nonnegative(condition: Sym) -> Iterator[Sym]:
    """Expressions that are not negative where a condition holds."""
    if condition.kind == "min":
        for part in condition.args:
            yield from _nonnegative(part)
    elif condition.kind == "ge0":
        yield condition.args[0]
