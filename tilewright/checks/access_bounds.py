"""Whether each load and store of a scheduled kernel stays within its buffer, for all sizes of its dims: proved by the
ranges of its indices, or by what guards it.

A proof takes the ranges of the loops around an access, what is known of dims, the conditions under which the access is
done, and of positions that are data what clamps and comparisons say. What variables are declared with proves nothing.
What is not proved may still be right; where small sizes are found for which it is wrong, they are told (`leaving`).
Proofs are counted in terms of expressions, not in seconds, so that they end at the same place on each machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, pairwise
from math import lcm
from typing import Literal

from tilewright.checks.leaving import Place, leaving
from tilewright.checks.result import AccessBounds, UnprovedAccess
from tilewright.graph.accesses import AxisAccess, Ranges, Walk
from tilewright.graph.bounds import MOST_CASES, DimFacts
from tilewright.ir.core import Func, Module, Op
from tilewright.ir.sym import ZERO, Sym, affine_in, ge, maximum, minimum, prove_ge0_within, var
from tilewright.loops.analysis.bounds import relevant
from tilewright.loops.edit import enclosing, extent_of, loop_var
from tilewright.loops.kernel_info import kernel_info

How = Literal["range", "guard", "not proved", "not looked at"]
"""What keeps an access in its buffer: the ranges of its indices; a mask, a condition, a minimum or a clamp; nothing
that was found; or it was not looked at to the end."""

TERMS = 4000
"""Of expressions that proofs look at which do not succeed, for one kernel."""

TERMS_OF_ONE, FEW_TERMS = 800, 50
"""Of one proof, and where nothing is left for the kernel: those that succeed take a few."""

TERMS_OF_SEARCH = 500
"""What a search for sizes that leave a buffer counts as."""


@dataclass(frozen=True, slots=True)
class AccessProof:
    """What was found of one access of a kernel: what keeps it in its buffer; where that is not proved, the axis and the
    condition that is missing. `leaves` are values of dims and of loops for which it leaves the buffer."""

    op: Op
    how: How
    axis: int = -1
    missing: Sym | None = None
    leaves: Place = ()


def access_bounds(module: Module, assumed: Sequence[Sym] = ()) -> AccessBounds:
    """Of all kernels of a scheduled program, where conditions on its dims are `assumed`."""
    counts: Counter[How] = Counter()
    unproved = []
    for kernel in module.funcs.values():
        if kernel.level == "loops":
            is_certain = _has_dims_of_its_own(kernel, module, assumed)
            for proof in access_proofs(kernel, _given(kernel, module, assumed)):
                counts[proof.how] += 1
                if proof.missing is not None:
                    unproved.append(_unproved(kernel, proof if is_certain else replace(proof, leaves=())))
    return AccessBounds(
        counts["range"], counts["guard"], counts["not proved"], counts["not looked at"], tuple(unproved)
    )


def _has_dims_of_its_own(kernel: Func, module: Module, assumed: Sequence[Sym]) -> bool:
    """Whether calls may give a kernel all sizes that what is known of its dims allows: not where these are computed
    from other dims, or an assumption is about such."""
    calls = [op.attrs["dims"] for op in module.main.body.walk() if op.attrs.get("kernel") == kernel.name]
    values = {v for dims in calls for v in dims}
    is_plain = len(calls) == 1 and len(values) == len(kernel.dims) and all(v.kind == "var" for v in values)
    return not kernel.dims or (is_plain and all(c.vars <= values for c in assumed))


def _unproved(kernel: Func, proof: AccessProof) -> UnprovedAccess:
    buffer, index = proof.op.operands[-1], ", ".join(map(str, proof.op.attrs["idx"]))
    return UnprovedAccess(
        kernel.name, buffer.name, str(buffer.type), proof.op.name, index, proof.axis, str(proof.missing),
        proof.how == "not proved", dict(proof.leaves),
    )  # fmt: skip


def _given(kernel: Func, module: Module, assumed: Sequence[Sym]) -> Iterator[Sym]:
    """What calls say of the dims of a kernel: the bounds of their values, and where it is called once, of those that
    are dims of the program also what is assumed of these."""
    calls = [op.attrs["dims"] for op in module.main.body.walk() if op.attrs.get("kernel") == kernel.name]
    for d, values in zip(kernel.dims, zip(*calls, strict=True), strict=False):
        low, high = min(v.interval[0] for v in values), max(v.interval[1] for v in values)
        yield from (ge(d, int(low)),) if low > d.interval[0] else ()
        yield from (ge(int(high), d),) if high < d.interval[1] else ()
    if len(calls) == 1:
        own = {v: d for d, v in zip(kernel.dims, calls[0], strict=True) if v.kind == "var"}
        yield from (c.subs(own) for c in assumed if c.vars <= own.keys())


def access_proofs(kernel: Func, given: Iterable[Sym] = ()) -> Iterator[AccessProof]:
    """Of each load and store of a kernel, in program order; of its dims the `given` conditions hold."""
    conditions = (*given, *_of_versions(kernel))
    facts = DimFacts().where(conditions)
    search = _Search(facts, TERMS)
    walk = _KernelWalk({})
    for op, axes in groupby(walk.accesses(kernel.body), key=lambda access: access.op):
        yield _of_access(op, list(axes), search, conditions)


def _of_versions(kernel: Func) -> Iterator[Sym]:
    """The sizes from which on the kernel is used."""
    least = kernel_info(kernel).specialized_for
    return (ge(d, least[d.name]) for d in kernel.dims if d.name in least)


class _KernelWalk(Walk):
    """Loops, too, are taken at their word only where their extent says the same."""

    def _loop(self, op: Op) -> Iterator[AxisAccess]:
        v, high = loop_var(op), extent_of(op).interval[1] - 1
        declared = v.bounds[1]
        if declared is None or high <= declared:
            yield from super()._loop(op)
            return
        extent, outer = self._shown(extent_of(op)), self.ranges
        shown = self.unbounded[v] = var(v.name)
        self.data |= {v}
        self.ranges = {**outer, shown: (ZERO, extent - 1)}
        yield from self.accesses(op.blocks[0])
        self.ranges = outer


def _of_access(op: Op, axes: Sequence[AxisAccess], search: _Search, conditions: Sequence[Sym]) -> AccessProof:
    how: How = "range"
    for access in axes:
        index, dim = access.index, access.shape[access.axis]
        for wanted in (index, dim - 1 - index):
            try:
                found = search.found(wanted, access)
            except _Spent:
                return AccessProof(op, "not looked at", access.axis, ge(wanted, 0))
            if found == "not proved":
                by_data = any(o.name == "if" and o.operands for o in enclosing(op))
                search.left -= TERMS_OF_SEARCH
                leaves = () if by_data else leaving(wanted, access, conditions)
                return AccessProof(op, found, access.axis, ge(wanted, 0), leaves)
            how = found if found == "guard" else how
    return AccessProof(op, how)


class _Spent(Exception):
    """Nothing is left of the budget."""


@dataclass
class _Search:
    """Proofs of one kernel."""

    facts: DimFacts
    left: int
    known: dict[tuple[Sym, tuple[tuple[Sym, tuple[Sym, Sym]], ...]], bool] = field(default_factory=dict)
    inside: dict[tuple[Sym, ...], DimFacts] = field(default_factory=dict)

    def found(self, wanted: Sym, access: AxisAccess) -> How:
        """What makes an expression at least 0 where an access is done."""
        own: How = "guard" if _has_choices(wanted) or not wanted.vars.isdisjoint(access.data) else "range"
        where_run = self._where(tuple(ge(extent, 1) for extent in access.extents), self.facts)
        for facts in (self.facts, where_run):
            if self._is_sure(facts.applied(wanted), facts.ranges | _applied(access.ranges, facts)):
                return own
        if self._is_known(wanted, access, where_run):
            return "guard" if access.guards else own
        return "not proved"

    def _where(self, conditions: tuple[Sym, ...], facts: DimFacts) -> DimFacts:
        if conditions not in self.inside:
            self.inside[conditions] = facts.where(conditions)
        return self.inside[conditions]

    def _is_known(self, wanted: Sym, access: AxisAccess, facts: DimFacts) -> bool:
        """Whether conditions, or what is known of dims, make an expression at least 0."""
        counters = access.data.union(access.ranges)
        of_dims = tuple(g for g in access.guards if g.vars.isdisjoint(counters))
        if of_dims:
            extents = tuple(ge(extent, 1) for extent in access.extents)
            facts = self._where((*extents, *of_dims), self.facts)
        if self._follows(wanted, access, facts):
            return True
        return any(
            len(each.args) <= MOST_CASES and all(
                self._follows(wanted, access, self._where((each, part), facts)) for part in each.args
            )
            for each in facts.alternatives
            if not each.vars.isdisjoint(facts.applied(wanted).vars)
        )  # fmt: skip

    def _follows(self, wanted: Sym, access: AxisAccess, facts: DimFacts) -> bool:
        e, ranges = facts.applied(wanted), facts.ranges | _applied(access.ranges, facts)
        least = [k for g in access.guards for k in _nonnegative(facts.applied(g))] + facts.nonnegative
        if self._is_sure_by_cases(e, _narrowed(ranges, least), least):
            return True
        parts = _digits([e, *least, *chain.from_iterable(ranges.values())], ranges)
        if not parts:
            return False
        bounds = [v - (v.bounds[0] or 0) for v in parts] + [v.bounds[1] - v for v in parts if v.bounds[1] is not None]
        least = [k.subs(parts) for k in (*least, *bounds)]
        ranges = {v: (low.subs(parts), high.subs(parts)) for v, (low, high) in ranges.items()}
        return self._is_sure_by_cases(e.subs(parts), _narrowed(ranges, least), least)

    def _is_sure_by_cases(self, e: Sym, ranges: Ranges, least: Sequence[Sym]) -> bool:
        """By ranges, or because one of the expressions that are not negative is no larger; each operand of a minimum or
        a maximum for itself where that is needed."""
        if self._is_sure(e, ranges):
            return True
        if any(self._is_sure(e - times * k, ranges) for k in least for times in _multiples(e, k)):
            return True
        split = _split(e)
        return split is not None and split[0](self._is_sure_by_cases(case, ranges, least) for case in split[1])

    def _is_sure(self, e: Sym, ranges: Ranges) -> bool:
        if e.interval[0] >= 0:
            return True
        near = relevant(ranges, e)
        key = e, tuple(near.items())
        if key not in self.known:
            is_spent = self.left <= 0
            proved, terms = prove_ge0_within(FEW_TERMS if is_spent else TERMS_OF_ONE, e, near)
            if is_spent and not proved:
                raise _Spent
            self.known[key] = proved
            self.left -= 0 if proved else 1 + terms
        return self.known[key]


def _applied(ranges: Ranges, facts: DimFacts) -> Ranges:
    return {v: (facts.applied(low), facts.applied(high)) for v, (low, high) in ranges.items()}


LARGEST_DIVISOR = 1 << 20
"""Of a dim that is taken apart."""


def _digits(expressions: Iterable[Sym], ranges: Ranges) -> dict[Sym, Sym]:
    """Dims that expressions divide by constants, as sums of digits, which are variables of their own: what is left of a
    dim after whole blocks is one of them then, in all expressions."""
    divisors: dict[Sym, set[int]] = {}
    for x, q in _divisions(expressions):
        for v in x.vars:
            if v not in ranges and v.bounds[0] is not None and v.bounds[0] >= 0:
                divisors.setdefault(v, set()).update(step * q for step in _steps(x, v))
    found = {}
    for v, each in divisors.items():
        first = last = lcm(*each)
        if last <= LARGEST_DIVISOR:
            kept = [last := d for d in sorted({1, first, *each}, reverse=True) if last % d == 0]
            digits = (d * var(f"{v.name}.{d}", 0, above // d - 1) for above, d in pairwise(kept))
            found[v] = sum(digits, first * var(f"{v.name}.{first}"))
    return found


def _divisions(expressions: Iterable[Sym]) -> Iterator[tuple[Sym, int]]:
    """What is divided by constants within expressions, and by which, each once."""
    pending, seen = list(expressions), set[Sym]()
    while pending:
        e = pending.pop()
        if e not in seen:
            seen.add(e)
            pending += e.args
            if e.kind in ("floordiv", "mod") and e.args[1].is_const:
                yield e.args[0], e.args[1].value


def _steps(e: Sym, v: Sym) -> set[int]:
    """By how much a variable grows until its quotients in an expression do."""
    if e is v:
        return {1}
    times = e.args[1].value if e.kind == "floordiv" and e.args[1].is_const else 1
    return {times * step for a in e.args if v in a.vars for step in _steps(a, v)}


_CHOICES = frozenset({"min", "max", "select"})


def _has_choices(e: Sym) -> bool:
    """Whether a minimum, a maximum or a choice is part of an index."""
    return e.kind in _CHOICES or any(map(_has_choices, e.args))


def _multiples(e: Sym, k: Sym) -> set[int]:
    """How often an expression may be taken off another one: once, and so that a term is gone."""
    own = dict(k.terms)
    shared = {c // own[m] for m, c in e.terms if m in own and not m.is_const and c * own[m] > 0 and c % own[m] == 0}
    return shared | {1} if not e.vars.isdisjoint(k.vars) else shared


def _split(e: Sym) -> tuple[Callable[[Iterable[bool]], bool], list[Sym]] | None:
    """Expressions of which all, or any, must be at least 0 for a sum with a minimum or a maximum to be so."""
    for mono, coef in e.terms:
        if mono.kind in ("min", "max"):
            return all if (mono.kind == "min") == (coef > 0) else any, [e - coef * mono + coef * a for a in mono.args]
    return None


def _nonnegative(condition: Sym) -> Iterator[Sym]:
    """Expressions that are not negative where a condition holds."""
    match condition.kind:
        case "min":
            for part in condition.args:
                yield from _nonnegative(part)
        case "ge0":
            yield condition.args[0]
        case "eq0":
            yield from (condition.args[0], -condition.args[0])
        case _ if condition.is_bool:
            yield condition - 1


def _narrowed(ranges: Ranges, least: Iterable[Sym]) -> Ranges:
    """The ranges where expressions are not negative: of the innermost variable of each that is affine in it."""
    found, order = dict(ranges), list(ranges)
    for e in least:
        inner = [v for v in order if v in e.vars]
        if inner:
            _narrow(found, inner[-1], e)
    return found


def _narrow(ranges: Ranges, v: Sym, e: Sym) -> None:
    """Let the range of a variable say that an expression with it is at least 0."""
    affine = affine_in(e, v)
    if affine is None or not affine[0].is_const:
        return
    coef, rest = affine[0].value, affine[1]
    low, high = ranges[v]
    if coef > 0:
        ranges[v] = maximum(low, -(rest // coef)), high  # v >= -rest / coef, rounded up
    elif coef < 0:
        ranges[v] = low, minimum(high, rest // -coef)
