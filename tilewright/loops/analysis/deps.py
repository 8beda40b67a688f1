"""Which iterations of a loop may touch the same element: the analysis behind every legality check.

Everything here errs on the safe side: "separated" and "ordered" are proofs, and a missing proof means no
more than that. Index variables that come from data (`bind`) count as unknown within their numeric bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.ir.core import Block, Op, Value
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import ZERO, Sym, affine_in, gt, lower, sym, upper, var, weighted_sum
from tilewright.ir.symbolic.arith import factors_of
from tilewright.ir.types import row_major
from tilewright.loops.analysis.bounds import Interval, Ranges, holds
from tilewright.loops.analysis.injective import told_apart
from tilewright.loops.edit import buffer_type, extent_of, loop_range, loop_var

Index = tuple[Sym, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One load or store: `loops` are those around it below the root of the analysis, outermost first;
    `conditional` when a guard or an `if` may skip it; `unknown` are the data-dependent variables of its
    index."""

    op: Op
    buffer: Value
    idx: Index
    write: bool
    loops: tuple[Op, ...]
    conditional: bool
    unknown: frozenset[Sym]

    @property
    def place(self) -> str:
        """The access as error messages show it."""
        return f"{self.op.name} at [{', '.join(map(str, self.idx))}]"


def accesses(roots: Op | Block | Sequence[Op]) -> list[Access]:
    """All loads and stores below the roots (a root `for` counts among `loops`), in program order."""
    ops = roots.ops if isinstance(roots, Block) else [roots] if isinstance(roots, Op) else list(roots)
    found: list[Access] = []
    bound: set[Sym] = set()
    _collect(ops, (), False, bound, found)
    return found


def _collect(
    ops: Iterable[Op], loops: tuple[Op, ...], conditional: bool, bound: set[Sym], found: list[Access]
) -> None:
    for op in ops:
        match op.name:
            case "for":
                _collect(op.blocks[0].ops, (*loops, op), conditional, bound, found)
            case "run":
                _collect(op.blocks[0].ops, loops, conditional, bound, found)
            case "if":
                _collect(op.blocks[0].ops, loops, True, bound, found)
            case "bind":
                bound.add(op.attrs["var"])
            case "load" | "store" | "lanes_reduce":
                found.append(_access(op, loops, conditional, bound))


def _access(op: Op, loops: tuple[Op, ...], conditional: bool, bound: set[Sym]) -> Access:
    buffer = op.operands[-1]
    if op.name == "lanes_reduce":
        lane = _any_lane(buffer)
        return Access(op, buffer, (lane,), False, loops, conditional, frozenset((lane,)))
    idx: tuple[Sym, ...] = op.attrs["idx"]
    unknown = frozenset(v for i in idx for v in i.vars if v in bound) if bound else frozenset()
    skipped = conditional or bool(op.attrs.get("guard"))
    return Access(op, buffer, idx, op.name == "store", loops, skipped, unknown)


def _any_lane(buffer: Value) -> Sym:
    """A variable for every element of a one-dimensional register buffer."""
    (lanes,) = buffer_type(buffer).shape
    return var("lane", 0, lanes.value - 1)


def conflicts(first: Sequence[Access], second: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs on the same buffer of which at least one writes, but for those at different fixed places of an axis."""
    by_buffer: dict[Value, list[Access]] = {}
    for b in second:
        by_buffer.setdefault(b.buffer, []).append(b)
    for a in first:
        for b in by_buffer.get(a.buffer, ()):
            if (a.write or b.write) and not _fixed_apart(a, b):
                yield a, b


def _fixed_apart(a: Access, b: Access) -> bool:
    """Whether two accesses have different constants as index of one axis: they never touch the same element."""
    return any(i is not j and i.is_const and j.is_const for i, j in zip(a.idx, b.idx, strict=True))


def written_buffers(found: Iterable[Access]) -> set[Value]:
    return {a.buffer for a in found if a.write}


def private_buffers(roots: Op | Block | Sequence[Op]) -> set[Value]:
    """Buffers that are allocated below the roots."""
    ops = roots.ops if isinstance(roots, Block) else [roots] if isinstance(roots, Op) else list(roots)
    return {o.result for op in ops for o in op.walk() if o.name == "alloc"}


# Iterations that cannot meet


def separated(a: Access, b: Access, band: Sequence[Op], outer: Ranges) -> set[Op]:
    """The loops of `band` whose variable must be equal wherever `a` and `b` touch the same element.

    `band` are loops around both, outermost first; variables of `outer` have the same value for both.
    """
    equal = _told_apart(a, b, band, outer) & set(band)
    found = True
    while found and len(equal) < len(band):
        found = False
        for loop in band:
            if loop not in equal and _never_meet(a, b, loop, band, equal, outer, both=True):
                equal.add(loop)
                found = True
    return equal


def _told_apart(a: Access, b: Access, band: Sequence[Op], outer: Ranges) -> set[Op]:
    """The loops of which no two iterations share the one index that both have, be it by different names of loops that
    are not around both. Axes whose places come from data tell nothing, and leave what the others tell."""
    if not (a.idx == b.idx and a.loops == b.loops) and (a.unknown or b.unknown or not _is_alike(a, b)):
        return set()
    known = [i for i in a.idx if not i.vars & a.unknown] if a.unknown else a.idx
    loops = a.loops if not band or band[0] in a.loops else (*band, *a.loops)
    return told_apart(known, [o for o in loops if loop_var(o) not in outer])


def _is_alike(a: Access, b: Access) -> bool:
    """Whether two accesses go through the same places in loops of their own."""
    own = [[o for o in c.loops if o not in other.loops] for c, other in ((a, b), (b, a))]
    if [extent_of(o) for o in own[0]] != [extent_of(o) for o in own[1]]:
        return False
    names = {loop_var(y): loop_var(x) for x, y in zip(*own, strict=True)}
    return all(i is j or i is j.subs(names) for i, j in zip(a.idx, b.idx, strict=True))


def ordered(first: Access, second: Access, loop: Op, outer: Ranges) -> bool:
    """Whether `first` in a later iteration of `loop` never touches what `second` touches earlier."""
    return _never_meet(first, second, loop, (loop,), set(), outer, both=False)


def disjoint(a: Access, b: Access, band: Sequence[Op]) -> bool:
    """Whether `a` and `b` never touch the same element in one iteration of `band`, the loops around both."""
    known = {loop_var(o): loop_range(o) for o in band}
    moving_a, moving_b = _moving(a, (), known), _moving(b, (), known)
    for e_a, e_b in _coordinates(a, b):
        box_a, box_b = _interval(e_a, a, moving_a), _interval(e_b, b, moving_b)
        if box_a is None or box_b is None:
            continue
        if holds(gt(box_a[0], box_b[1]), known) or holds(gt(box_b[0], box_a[1]), known):
            return True
    return False


def never_meet(a: Access, b: Access, loop: Op, outer: Ranges) -> bool:
    """Whether `a` and `b` never touch the same element in two different iterations of `loop`, whichever is the later;
    variables of `outer` have the same value for both."""
    return loop in _told_apart(a, b, (loop,), outer) or _never_meet(a, b, loop, (loop,), set(), outer, both=True)


def _never_meet(
    a: Access, b: Access, loop: Op, band: Sequence[Op], equal: set[Op], outer: Ranges, *, both: bool
) -> bool:
    """No common element of `a` at a later and `b` at an earlier iteration of `loop` (and the reverse, for
    `both`)."""
    known = outer | {loop_var(o): loop_range(o) for o in band if o is loop or o in equal}
    moving_a, moving_b = _moving(a, band, known), _moving(b, band, known)
    v = loop_var(loop)
    is_one = a.idx == b.idx and not (a.unknown or b.unknown)
    if is_one and any([_outruns(e, v, moving_a, moving_b) for e in a.idx]):  # as most do, which is found out fast
        return True
    for e_a, e_b in _coordinates(a, b):
        box_a, box_b = _interval(e_a, a, moving_a), _interval(e_b, b, moving_b)
        if box_a is None or box_b is None:
            continue
        if _apart(box_a, box_b, v, known) and (not both or _apart(box_b, box_a, v, known)):
            return True
    return False


def _outruns(e: Sym, v: Sym, moving_a: Ranges, moving_b: Ranges) -> bool:
    """Whether a step of `v` changes the index `e` of two accesses by more than what moves can make up for, as far as
    that has the same range of numbers for both."""
    step = reach = 0
    for mono, coef in e.terms:
        if mono is v:
            step = abs(coef)
        elif mono.kind == "var":
            moves = moving_a.get(mono)
            if moves != moving_b.get(mono):
                return False
            if moves is not None:
                low, high = moves
                if not (low.is_const and high.is_const):
                    return False
                reach += abs(coef) * (high.value - low.value)
        elif any([w is v or w in moving_a or w in moving_b for w in mono.vars]):
            return False
    return reach < step


def _moving(a: Access, band: Sequence[Op], known: Ranges) -> Ranges:
    """Ranges of the variables of `a` that may differ between the two accesses, besides the one under test."""
    loops = a.loops if not band or band[0] in a.loops else (*band, *a.loops)
    ranges = {loop_var(o): loop_range(o) for o in loops if loop_var(o) not in known}
    for v in a.unknown:
        lo, hi = v.bounds
        if lo is not None and hi is not None:
            ranges[v] = (sym(lo), sym(hi))
    return ranges


def _coordinates(a: Access, b: Access) -> Sequence[tuple[Sym, Sym]]:
    """Pairs of numbers that differ only if the elements differ: each axis and row-major runs of axes."""
    return _paired(a.idx, b.idx, buffer_type(a.buffer).shape)


# Every loop of a band, and every primitive, asks for the coordinates of the same pairs of accesses.


@lru_cache(maxsize=1 << 12)
def _paired(a: Index, b: Index, shape: Index) -> Sequence[tuple[Sym, Sym]]:
    """`_coordinates` of two indices.

    Those with the fewest divisions come first: a flat loop's quotient and remainder make its variable again in a run of
    axes, where a proof takes one step, while one for either of them may take all that are allowed.
    """
    pairs = dict.fromkeys(zip(_linear_forms(a, shape), _linear_forms(b, shape), strict=True))
    return sorted(pairs, key=lambda pair: _divisions(pair[0]) + _divisions(pair[1]))


@lru_cache(maxsize=1 << 12)
def _linear_forms(idx: Index, shape: Index) -> Sequence[Sym]:
    """The index on each axis, and the position in each row-major run of several axes."""
    forms = list(idx)
    for first in range(len(idx) - 1):
        for last in range(first + 2, len(idx) + 1):
            forms.append(_linear(idx[first:last], row_major(shape[first:last])))
    return forms


def _divisions(e: Sym) -> int:
    return sum(f.kind in ("floordiv", "mod") for monomial, _ in e.terms for f in factors_of(monomial))


def _linear(idx: Sequence[Sym], weights: Sequence[Sym]) -> Sym:
    return weighted_sum(ZERO, idx, weights)


def _interval(e: Sym, access: Access, moving: Ranges) -> Interval | None:
    """Bounds of `e` over everything that moves; None where something that moves has no bounds."""
    if any(v not in moving for v in access.unknown & e.vars):
        return None
    low, high = lower(e, moving), upper(e, moving)
    return None if low is None or high is None else (low, high)


def _apart(later: Interval, earlier: Interval, v: Sym, known: Ranges) -> bool:
    """Whether `later` at any v' > v has nothing in common with `earlier` at v."""
    following = {v: v + 1}
    rises = _direction(later[0], v)
    if rises is not None and rises >= 0 and holds(gt(later[0].subs(following), earlier[1]), known):
        return True
    falls = _direction(later[1], v)
    return falls is not None and falls <= 0 and bool(holds(gt(earlier[0], later[1].subs(following)), known))


def _direction(e: Sym, v: Sym) -> int | None:
    """1 when `e` never falls as `v` rises, -1 when it never rises, 0 when it does not change; None if
    unknown."""
    affine = affine_in(e, v)
    if affine is None:
        return None
    lo, hi = affine[0].bounds
    if lo is not None and lo >= 0:
        return 0 if hi == 0 else 1
    return -1 if hi is not None and hi <= 0 else None


# Accumulations


@dataclass(frozen=True, slots=True, eq=False)
class Accumulation:
    """`buffer[idx] = buffer[idx] (combine) value`: the ops of one accumulating statement."""

    store: Op
    load: Op
    combine: Op
    value: Value

    @property
    def buffer(self) -> Value:
        return self.store.operands[1]

    @property
    def idx(self) -> tuple[Sym, ...]:
        idx: tuple[Sym, ...] = self.store.attrs["idx"]
        return idx

    @property
    def is_sum(self) -> bool:
        return scalar_operation(self.combine).linear == "together"

    def products(self) -> list[Op]:
        """The multiplications whose results are terms of the sum; none of what is no sum."""
        pending, found = [self.value] if self.is_sum else [], []
        while pending:
            op = pending.pop().op
            linear = scalar_operation(op).linear
            if op is not None and linear == "together":
                pending.extend(reversed(op.operands))
            elif op is not None and linear == "each":
                found.append(op)
        return found


def accumulation_of(store: Op) -> Accumulation | None:
    """The accumulation that ends in this store; None when it is no accumulation by an associative
    operation."""
    combine = store.operands[0].op
    if combine is None or not scalar_operation(combine).reduces:
        return None
    for k, operand in enumerate(combine.operands):
        load = operand.op
        if load is None or load.name != "load" or load.operands[0] is not store.operands[1]:
            continue
        same = load.attrs["idx"] == store.attrs["idx"] and load.parent is store.parent is combine.parent
        value = combine.operands[1 - k]
        if (
            same
            and load.result.users == [combine]
            and combine.result.users == [store]
            and value is not load.result
        ):
            return Accumulation(store, load, combine, value)
    return None


def accumulators(found: Sequence[Access]) -> dict[Value, str]:
    """Buffers that the accesses touch only by accumulations of one kind: buffer -> operation."""
    touched: dict[Value, set[Op]] = {}
    for a in found:
        touched.setdefault(a.buffer, set()).add(a.op)
    kinds: dict[Value, str] = {}
    for buffer, ops in touched.items():
        whole = [accumulation_of(o) for o in ops if o.name == "store"]
        parts = {o for w in whole if w is not None for o in (w.load, w.store)}
        names = {w.combine.name for w in whole if w is not None}
        if whole and None not in whole and parts == ops and len(names) == 1:
            kinds[buffer] = names.pop()
    return kinds


def order_dependences(
    found: Sequence[Access], band: Sequence[Op], outer: Ranges
) -> Iterator[tuple[Access, Access, set[Op]]]:
    """Pairs that may meet in iterations which differ in two or more loops of `band`, with these loops:
    exchanging them could swap the accesses. Accumulations by one operation are left out, as their order
    does not matter."""
    sums = accumulators(found)
    for k, a in enumerate(found):
        if a.buffer in sums:
            continue
        for _, b in conflicts([a], found[k:]):
            free = set(band) - separated(a, b, band, outer)
            if len(free) > 1:
                yield a, b, free
