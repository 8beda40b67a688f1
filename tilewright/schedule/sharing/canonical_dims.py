"""Canonical dims of a region: names without the model's, and sizes of its own in place of quotients of the inputs'."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Any

from tilewright.ir.core import Op, substitute
from tilewright.ir.sym import Sym, affine_in, rebuild, var
from tilewright.ir.symbolic.arith import factors_of
from tilewright.ir.types import TensorType
from tilewright.ops.define.broadcasting import is_joint


@dataclass(frozen=True)
class CanonicalDims:
    """`canonical`: what stands for each variable of the model in the region's kernel; `actual`: the value of each
    canonical variable, over variables of the model. `joint` are variables that stand for common dims, `same` has what
    stands for dims that are equal to others, and `sums` what makes one variable of a sum of several."""

    canonical: Mapping[Sym, Sym] = field(default_factory=dict)
    actual: Mapping[Sym, Sym] = field(default_factory=dict)
    joint: Mapping[Sym, Sym] = field(default_factory=dict)
    same: Mapping[Sym, Sym] = field(default_factory=dict)
    sums: Mapping[Sym, Sym] = field(default_factory=dict)

    def of(self, attr: Any) -> Any:
        """An attribute or a shape over canonical variables."""
        attr = substitute(attr, self.same) if self.same else attr
        attr = substitute(attr, self.sums) if self.sums else attr
        return substitute(_with(attr, self.joint) if self.joint else attr, self.canonical)


def canonical_dims(region: Op, same: Mapping[Sym, Sym] | None = None) -> CanonicalDims:
    """Canonical names of the variables that the region's types and attributes mention, in order. `same` has what stands
    for variables that are equal to others, or to a number: they are one dim of the kernel, or none.

    A variable that occurs only in quotients becomes its quotient: in a region over images of (h + 31) // 32 lines that
    number is a dim, and the kernel is the one of all images. Several variables are divided by one number, so that sizes
    keep their proportions: schedules are specialised for sizes of all of them alike. Common dims of several are
    variables, too, and so are numbers that others are divided by, the quotients, and sums of several of which nothing
    else occurs.
    """
    occurrences: dict[Sym, list[_Quotient | None]] = {}
    same = same or {}
    expressions = [substitute(e, same) for e in _expressions(region)] if same else [*_expressions(region)]
    whole = _sums(expressions)
    sums = {v: part for total, named in whole.items() for v, part in _as_part_of(total, named).items()}
    expressions = [e.subs(sums) for e in expressions] if sums else expressions
    joint = _joint_dims(expressions)
    for e in expressions:
        for v, quotient in _occurrences(_with(e, joint) if joint else e):
            occurrences.setdefault(v, []).append(quotient)
    found = {v: each for v, each in occurrences.items() if None not in each}
    divided = {v: [q for q in each if q is not None] for v, each in found.items()}
    common = gcd(*(_common_divisor(each) for each in divided.values()))
    canonical: dict[Sym, Sym] = {}
    actual: dict[Sym, Sym] = {}
    for k, v in enumerate(occurrences):
        value, shift = v, 0
        if v in divided and common > 1:
            shift = divided[v][0].shift % common
            value = (v + shift) // common
        named = var(f"n{k}", *value.bounds)
        canonical[v] = named if value is v else common * named - shift
        actual[named] = value
    values = {v: dim for dim, v in (*joint.items(), *whole.items())}
    actual = {named: value.subs(values).subs(values) for named, value in actual.items()}  # common dims may have sums
    return CanonicalDims(canonical, actual, joint, same, sums)


def _sums(expressions: Sequence[Sym]) -> dict[Sym, Sym]:
    """A variable for each sum of variables that is a dim, where these occur in that sum alone."""
    found: dict[Sym, Sym] = {}
    for total in dict.fromkeys(e for e in expressions if _is_sum(e)):
        named = var(f"sum_{len(found)}", *total.bounds)
        parts = _as_part_of(total, named)
        about = [e.subs(parts) for e in expressions if not e.vars.isdisjoint(total.vars)]
        if all(e.vars.isdisjoint(total.vars) for e in about):
            found[total] = named
    return found


def _is_sum(e: Sym) -> bool:
    """Whether it is a sum of several variables."""
    return len(e.terms) > 1 and all(mono.kind == "var" and scale == 1 for mono, scale in e.terms)


def _as_part_of(total: Sym, named: Sym) -> dict[Sym, Sym]:
    """What stands for one of the variables of a sum, so that the others are gone wherever all of them are added up."""
    first = min(total.vars, key=str)
    return {first: named - (total - first)}


def _joint_dims(expressions: Sequence[Sym]) -> dict[Sym, Sym]:
    """A variable for each common dim that the expressions mention, each number that they divide by, and each dim that
    is computed from a quotient by such a number."""
    found = dict.fromkeys(dim for e in expressions for dim in _joint_within(e))
    divisors = dict.fromkeys(n for dim in found for n in _divisors(dim))
    return {dim: var(f"joint_{k}", *dim.bounds) for k, dim in enumerate({**found, **divisors})}


@lru_cache(maxsize=1 << 12)
def _joint_within(e: Sym) -> tuple[Sym, ...]:
    if is_joint(e) or (e.kind not in ("add", "mul") and _divisors(e)):
        return (e,)
    return tuple(dim for arg in e.args for dim in _joint_within(arg))


@lru_cache(maxsize=1 << 12)
def _divisors(e: Sym) -> tuple[Sym, ...]:
    """The numbers that an expression divides by, other than constants."""
    own = e.args[1:] if e.kind == "floordiv" and not e.args[1].is_const else ()
    return (*own, *(n for arg in e.args for n in _divisors(arg)))


def _with(attr: Any, joint: Mapping[Sym, Sym]) -> Any:
    """An attribute with variables in place of common dims."""
    if isinstance(attr, tuple):
        return tuple([_with(a, joint) for a in attr])
    if not isinstance(attr, Sym) or attr.is_const:
        return attr
    if attr in joint:
        return joint[attr]
    return attr if not attr.args else rebuild(attr, tuple([_with(a, joint) for a in attr.args]))


def own_dims(region: Op) -> CanonicalDims:
    """The variables that the region mentions, as they are."""
    return CanonicalDims(actual={v: v for e in _expressions(region) for v in e.vars})


@dataclass(frozen=True)
class _Quotient:
    """(v + shift) // divisor of some variable."""

    shift: int
    divisor: int


def _common_divisor(quotients: Iterable[_Quotient]) -> int:
    """The largest d for which all of the quotients are functions of one (v + shift) // d."""
    first, *others = quotients
    return gcd(first.divisor, *(n for q in others for n in (q.divisor, q.shift - first.shift)))


def _occurrences(e: Sym) -> Iterable[tuple[Sym, _Quotient | None]]:
    """The variables of an expression, each with the quotient in which it occurs there; None where it is no quotient."""
    for mono, _ in e.terms:
        for factor in factors_of(mono):
            quotient = _quotient(factor)
            for v in sorted(factor.vars, key=str):
                yield v, quotient


def _quotient(atom: Sym) -> _Quotient | None:
    if atom.kind != "floordiv" or len(atom.vars) != 1 or not atom.args[1].is_const:
        return None
    (v,) = atom.vars
    split = affine_in(atom.args[0], v)
    if split is None or split[0] != 1:
        return None
    return _Quotient(split[1].value, atom.args[1].value)


def _expressions(region: Op) -> Iterable[Sym]:
    """All expressions in the types and attributes of a region, in order."""
    body = region.blocks[0]
    for value in (*body.args, *region.results):
        yield from _parts(value.type)
    for op in body.ops:
        for value in op.results:
            yield from _parts(value.type)
        for attr in op.attrs.values():
            yield from _parts(attr)


def _parts(x: Any) -> Iterable[Sym]:
    """Expressions in an attribute: an expression, a type, or a tuple of such."""
    if isinstance(x, Sym):
        yield x
    elif isinstance(x, tuple):
        for item in x:
            yield from _parts(item)
    elif isinstance(x, TensorType):
        yield from _parts(x.shape)
