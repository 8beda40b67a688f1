"""Loops split where an index changes its form: padding by reflection or by the nearest element, rotations, wrapping.

    for j in 0..118 { y[j] = x[min(111, max(0, j - 3))] }

becomes

    for j in 0..3 { y[j] = x[0] }
    for j in 0..112 { y[j + 3] = x[j] }
    for j in 0..3 { y[j + 115] = x[111] }

so that vectors of the long piece in the middle are loads of consecutive elements. Loops are also split where it changes
which of many operands, or slices of them, is read: concatenations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.cost.elementwise import (
    cases_are_worth_loops,
    lanes_of_vector,
    pointer_is_worth_choosing,
    runs_are_worth_loops,
)
from tilewright.cost.typical import TypicalSizes
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import SCALAR_OPS
from tilewright.ir.sym import Sym, ceildiv, ge0, sym
from tilewright.ir.symbolic.prove import affine_in
from tilewright.ir.types import product
from tilewright.loops.analysis.bounds import Ranges, holds
from tilewright.loops.analysis.choices import ChoiceTrees, loads_of, selects
from tilewright.loops.edit import buffer_type, extent_of, kind_of, loop_var, ranges_at, reason_of
from tilewright.schedule.steps.access import loads_in, perfect_nest, stores_in, stride_in
from tilewright.schedule.trace import Schedule

SHORTEST = 16
"""Iterations from which on a loop is worth its pieces."""
MOST_PIECES = 6
MULTIPLES = (-1, 0, 1, 2)
"""Multiples of a divisor at which an index may start anew; what does so more often has no long piece."""


def split_index_sets(s: Schedule, loop: Op) -> bool:
    """Split a loop, innermost and serial, wherever a load's index changes its form; whether anything was split.

    The kernel is specialised for large dims where these decide on which side of a border all iterations are. What is
    left as it was is noted as missed.
    """
    if extent_of(loop).is_const and extent_of(loop).value < SHORTEST:
        return False
    done: list[Op] = []
    pending = [loop]
    while pending and len(pending) + len(done) < MOST_PIECES:
        piece = pending.pop()
        border = _next_border(s, piece)
        if border is None:
            done.append(piece)
            continue
        try:
            pieces = s.split_range(piece, border)
        except ScheduleError as e:
            s.missed.append(f"borders: {reason_of(e)}")
            done.append(piece)
            continue
        for part in pieces:
            s.simplify(part)
        pending += pieces[::-1]
    return len(pending) + len(done) > 1


def split_cases(s: Schedule, nest: Op) -> bool:
    """Split a loop of a nest where conditions of many cases change, so that each case is a loop of its own; whether
    anything was split. Where it is enough to choose a pointer in each iteration, the loop stays whole."""
    loops = perfect_nest(nest)
    for k, loop in enumerate(loops):
        if kind_of(loop) == "serial" and _is_worth_pieces(loops[k:]):
            return not _pointer_is_enough(loop, loops[k + 1 :]) and _split_cases(s, loop)
    return False


def _is_worth_pieces(nest: Sequence[Op]) -> bool:
    """Whether each case of the outer one of these loops is better a nest of its own."""
    loop = nest[0]
    decisions = _decisions(loop)
    ops = [op.name for op in loop.walk()]
    if cases_are_worth_loops(len(decisions) + 1, len(ops)):
        return True
    if not decisions or not _picks(loop):
        return False
    size = max(buffer_type(op.operands[-1]).dtype.storage.itemsize for op in stores_in(loop))
    (elements,) = TypicalSizes({}).medium([product(map(extent_of, nest))])
    return runs_are_worth_loops(len(decisions) + 1, elements // lanes_of_vector(size, None), _computed_on_picked(loop))


def _computed_on_picked(loop: Op) -> int:
    """Operations on what the position in a loop has picked, which all cases have. Those on one operand alone are of its
    case, such as the rotation of keys that a past is joined with, and loops of their own spare them the others."""
    v, count = loop_var(loop), 0
    picked: set[Value] = set()
    for op in loop.walk():
        condition = op.operands[0].op if selects(op) else None
        picks = condition is not None and "expr" in condition.attrs and v in condition.attrs["expr"].vars
        if picks or not picked.isdisjoint(op.operands):
            picked.update(op.results)
            count += op.name in SCALAR_OPS and not picks
    return count


def _picks(loop: Op) -> bool:
    """Whether the position in a loop decides which of several operands is read."""
    return any(_is_number(op) and loop_var(loop) in op.attrs["expr"].vars for op in loop.walk())


def _is_number(op: Op) -> bool:
    """Whether an op makes a scalar of positions, such as the condition of a selection."""
    return op.name == "index"


def _pointer_is_enough(loop: Op, inner: Sequence[Op]) -> bool:
    """Whether each iteration of a loop chooses a pointer, behind which the loops inside read enough elements, in lines
    of whole vectors: others are better joined to longer ones, which loops of their own allow."""
    lanes = lanes_of_vector(max(buffer_type(op.operands[1]).dtype.bytes for op in stores_in(loop)), None)
    if not inner or not extent_of(inner[-1]).is_const or extent_of(inner[-1]).value % lanes:
        return False
    elements = product(map(extent_of, inner))
    few = elements.is_const and not pointer_is_worth_choosing(len(_decisions(loop)) + 1, elements.value)
    return not few and _chooses_pointers(loop, inner)


def _chooses_pointers(loop: Op, inner: Sequence[Op]) -> bool:
    """Whether all that a loop decides is which of several operands is read, in the same way by the innermost one of the
    loops inside."""
    v, trees = loop_var(loop), ChoiceTrees()
    stored = {store.operands[1] for store in stores_in(loop)}
    for op in loop.walk():
        if not any(v in c.vars for c in _conditions_of(op)):
            continue
        for last in map(trees.last_of, op.result.users):
            if last is None:
                return False
            loads = [load for load, _ in loads_of(last)]
            strides = {stride_in(load, loop_var(inner[-1])) for load in loads}
            if len(strides) > 1 or strides.isdisjoint((sym(0), sym(1))):
                return False
            if any(load.operands[0].op is not None or load.operands[0] in stored for load in loads):
                return False
    return True


def _split_cases(s: Schedule, loop: Op) -> bool:
    """Split a loop at the border in the middle, then both parts of it: conditions are looked at a logarithmic number
    of times."""
    borders = _decisions(loop)
    if not borders:
        return False
    try:
        pieces = s.split_range(loop, borders[len(borders) // 2])
    except ScheduleError as e:
        s.missed.append(f"cases: {reason_of(e)}")
        return False
    for piece in pieces:
        s.simplify(piece)
    for piece in pieces:
        if piece.parent is not None and len(_decisions(piece)) < len(borders):
            _split_cases(s, piece)
    return True


def _decisions(loop: Op) -> list[Sym]:
    """Positions within the loop, of those that are known to be, at which a condition on what is read changes; in the
    order of the conditions."""
    v, n, ranges = loop_var(loop), extent_of(loop), ranges_at(loop)
    conditions = dict.fromkeys(c for op in loop.walk() for c in _conditions_of(op) if v in c.vars)
    if n == 2:  # conditions on a number that is 0 or 1 have other forms
        return [sym(1)] if conditions else []
    borders = dict.fromkeys(p for c in conditions if c.kind == "ge0" for p in _sign_changes(c.args[0], v))
    outside = [p for p in borders if p.vars <= n.vars | ranges.keys() - {v}]
    return [p for p in outside if _is_between(p, n, ranges)]


def _is_between(position: Sym, extent: Sym, ranges: Ranges) -> bool:
    """Whether a position is known to be within a loop, and not known to be at an end of it."""
    within = holds(ge0(position), ranges) and holds(ge0(extent - position), ranges)
    return bool(within and not holds(ge0(-position), ranges) and not holds(ge0(position - extent), ranges))


def _conditions_of(op: Op) -> tuple[Sym, ...]:
    if _is_number(op):
        return (op.attrs["expr"],)
    guard: tuple[Sym, ...] = op.attrs.get("guard", ()) if op.name == "load" else ()
    return guard


def _next_border(s: Schedule, loop: Op) -> Sym | None:
    """Where within the loop an index changes its form; None where it does not, or where that is not known."""
    ranges = ranges_at(loop)
    for _ in range(MOST_PIECES):
        n = extent_of(loop)
        unknown = None
        for position in _borders(loop):
            if holds(ge0(-position), ranges) or holds(ge0(position - n), ranges):
                continue
            if holds(ge0(position), ranges) and holds(ge0(n - position), ranges):
                return position
            unknown = position if unknown is None else unknown
        if unknown is None:
            return None
        if not (s.at_least(-unknown, 0) or s.at_least(unknown - n, 0)):
            s.missed.append(
                f"borders: position {unknown} of loop '{loop_var(loop)}' may be within it or not"
            )
            return None
        s.simplify(loop)
    return None


def _borders(loop: Op) -> Iterator[Sym]:
    """Positions, within the loop or not, at which the indices of loads that are not affine change their form."""
    v = loop_var(loop)
    for load in loads_in(loop):
        if stride_in(load, v) is None:
            for index in load.attrs["idx"]:
                yield from _borders_of(index, v, extent_of(loop))


def _borders_of(e: Sym, v: Sym, extent: Sym) -> Iterator[Sym]:
    """Those of the operands first: an expression may be affine once these are decided."""
    if v not in e.vars:
        return
    for arg in e.args:
        yield from _borders_of(arg, v, extent)
    if e.kind in ("min", "max"):
        for k, a in enumerate(e.args):
            for b in e.args[:k]:
                yield from _sign_changes(a - b, v)
    elif e.kind in ("mod", "floordiv"):
        x, divisor = e.args
        if v not in divisor.vars and not _is_often(x, divisor, v, extent):
            for k in MULTIPLES:
                yield from _sign_changes(x - k * divisor, v)


def _sign_changes(e: Sym, v: Sym) -> Iterator[Sym]:
    """The first value of `v` on whose side of it `e`, if affine in `v`, has another sign."""
    slope, rest = affine_in(e, v) or (None, e)
    if slope is None or not slope.is_const or slope.value == 0:
        return
    yield ceildiv(-rest, slope) if slope.value > 0 else rest // -slope + 1


def _is_often(x: Sym, divisor: Sym, v: Sym, extent: Sym) -> bool:
    """Whether `x` passes more multiples of the divisor than are looked at, as far as is known."""
    affine = affine_in(x, v)
    if affine is None or not affine[0].is_const:
        return True
    passed = abs(affine[0].value) * extent
    return divisor.is_const and not (passed.is_const and passed.value <= 2 * divisor.value)
