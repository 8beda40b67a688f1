"""Innermost loops as vectors: how many lanes they get, and what becomes of the iterations that are left over.

    for j in 0..197 { y[j] = f(x[j]) }

becomes whole vectors and a remainder of as many lanes as are left; sums run in several interleaved vectors, so that the
latency of one addition is hidden behind the others.
"""

from __future__ import annotations

from tilewright.cost.elementwise import (
    FEW_VECTORS,
    MOST_PIECES,
    lanes_of_polynomials,
    lanes_of_short_line,
    lanes_of_sum,
    lanes_of_vector,
)
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import converted_from, scalar_operation
from tilewright.ir.sym import ONE
from tilewright.ir.types import ScalarType
from tilewright.loops.edit import body_of, enclosing_loops, extent_of, is_loop, kind_of, loop_var, vars_read
from tilewright.schedule.steps.access import known, stores_in, stride_in
from tilewright.schedule.steps.blocked_summation import LONGEST_PART
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def innermost_loops(s: Schedule) -> list[Op]:
    """The loops that hold no other loop, in program order."""
    loops = [op for op in s.func.body.walk() if is_loop(op)]
    return [o for o in loops if not any(is_loop(op) for op in body_of(o).walk())]


def note_scalar_loops(s: Schedule) -> None:
    """Note each innermost loop that stores one element at a time, unless something has been noted already that was not
    vectorised."""
    if any("vectorised" in reason for reason in s.missed):
        return
    for loop in innermost_loops(s):
        kinds = {kind_of(o) for o in (loop, *enclosing_loops(loop))}
        if stores_in(loop) and not kinds & {"vector", "unroll", "dot"}:
            s.missed.append(
                f"loop '{loop_var(loop).name}' of {extent_of(loop)} iterations is not vectorised: "
                "this form of kernel makes no vectors of it"
            )


def lanes_for(loop: Op, target: Target) -> int:
    """Lanes of a vector loop, by its widest element."""
    return lanes_of_vector(_widest(loop), known(extent_of(loop)))


def _polynomial_lanes(loop: Op, lanes: int, target: Target) -> int:
    """Lanes of a loop that takes longer to compute than to load: several registers of single precision."""
    if not _has_polynomial(loop):
        return lanes
    return lanes_of_polynomials(lanes, _widest(loop), known(extent_of(loop)), target)


def _has_polynomial(loop: Op) -> bool:
    return any(scalar_operation(op).is_polynomial for op in loop.walk())


def _widest(loop: Op) -> int:
    """Bytes of the widest element that lanes of the loop compute with: not of what they share, nor of a position that
    is read from a narrower type."""
    types = [v.type for op in _in_lanes(loop) if not _is_widened_position(op) for v in op.results]
    if not any(isinstance(t, ScalarType) for t in types):
        types = [v.type for op in loop.walk() for v in op.results]
    return max((t.dtype.bytes for t in types if isinstance(t, ScalarType)), default=4)


def _in_lanes(loop: Op) -> list[Op]:
    """Ops of a loop that give something else in each iteration, perhaps."""
    changes = {store.operands[1] for store in stores_in(loop)}  # memory
    values: set[Value] = set()
    variables = {loop_var(loop)}
    found = []
    for op in body_of(loop).walk():
        if changes.isdisjoint(op.operands) and values.isdisjoint(op.operands) and variables.isdisjoint(vars_read([op])):
            continue
        found.append(op)
        values.update(op.results)
        if op.name == "bind":
            variables.add(op.attrs["var"])
    return found


def _is_widened_position(op: Op) -> bool:
    return any(converted_from(v) is not None and all(u.name == "bind" for u in v.users) for v in op.results)


def fills_few_vectors(loop: Op, lanes: int) -> bool:
    """Whether the iterations of a loop, whose number is not known, surely fill a few vectors of `lanes` at most."""
    extent = extent_of(loop)
    most = extent.bounds[1]
    return not extent.is_const and most is not None and most <= FEW_VECTORS * lanes


def vectorize_inner(s: Schedule, loop: Op, target: Target, interleaved: int = 1) -> None:
    """A reduction into lanes, or independent elements; loops that allow neither stay as they are. Where so many of them
    run `interleaved`, they hide one another's latencies."""
    lanes = lanes_for(loop, target)
    if lanes < 2 or kind_of(loop) != "serial":
        return
    try:
        _vectorize_sum(s, loop, lanes, target, interleaved)
    except ScheduleError as as_sum:
        with s.noting(f"not vectorised as a reduction ({as_sum}) nor by elements"):
            vectorize_map(s, loop, lanes, target)


def vectorize_map(s: Schedule, loop: Op, lanes: int, target: Target) -> None:
    """Vectors of `lanes` elements (of more where polynomials are computed), and the remainder in one vector more.
    ScheduleError where lanes may meet."""
    masked = lanes_of_short_line(_widest(loop), known(extent_of(loop)), _has_polynomial(loop))
    if fills_few_vectors(loop, lanes):
        masked = lanes
    if masked and target.masked_memory:
        s.vectorize(loop, masked, tail="guard")
        return
    wide = _polynomial_lanes(loop, lanes, target)
    if wide > lanes:
        left = s.vectorize(loop, wide, tail="peel").tail
        if left is None:
            return
        loop = left
    short = extent_of(loop).is_const and extent_of(loop).value < lanes
    remainder = loop if short else s.vectorize(loop, lanes, tail="peel").tail
    if remainder is not None:
        vectorize_remainder(s, remainder, lanes, target)


def vectorize_remainder(s: Schedule, loop: Op, lanes: int, target: Target) -> None:
    """One vector of just the lanes that are left, which code generation makes of powers of two; one masked vector
    where that would be many pieces, or nobody knows how many are left."""
    with s.noting("the remainder is not vectorised"):
        few = extent_of(loop).is_const and extent_of(loop).value.bit_count() <= MOST_PIECES
        if target.masked_memory and not few:
            s.vectorize(loop, lanes, tail="guard")
        elif extent_of(loop).is_const:
            s.vectorize(loop)


def _whole_sum(loop: Op, lanes: int) -> Op:
    """The outermost loop around `loop` that only goes on with the same sums: their lanes are added up after it, unless
    that makes the sum of a lane deep."""
    sums = stores_in(loop)
    terms = extent_of(loop)
    for around in reversed(enclosing_loops(loop)):
        v = loop_var(around)
        terms = terms * extent_of(around)
        is_deep = not terms.is_const or terms.value > LONGEST_PART * lanes
        others = len(body_of(around).ops) > 1
        if is_deep or others or kind_of(around) != "serial" or any(stride_in(o, v) != 0 for o in sums):
            break
        loop = around
    return loop


def _vectorize_sum(s: Schedule, loop: Op, lanes: int, target: Target, interleaved: int) -> None:
    """Sums in several vectors; the remainder in vectors of its own. ScheduleError when it is no sum."""
    wide = lanes
    extent = extent_of(loop)
    if fills_few_vectors(loop, lanes) and target.masked_memory:
        s.vectorize_reduction(loop, lanes, loop, tail="guard")
        return
    computes = _has_polynomial(loop)
    most = _polynomial_lanes(loop, lanes, target) if computes else lanes_of_sum(lanes, interleaved)
    least = 1 if computes else 2  # vectors: to add up the lanes takes as long as several
    while 2 * wide <= most and not (extent.is_const and extent.value < 2 * least * wide):
        wide *= 2
    exact = extent.is_const and extent.value % wide == 0
    tail = s.vectorize_reduction(loop, wide, _whole_sum(loop, wide) if exact else loop, tail="peel").tail
    while tail is not None and (left := extent_of(tail)) is not ONE:
        if not left.is_const:
            if target.masked_memory:
                s.vectorize_reduction(tail, lanes, tail, tail="guard")
            return
        width = max(left.value - left.value % lanes, 0) or left.value
        tail = s.vectorize_reduction(tail, width, tail, tail="peel").tail
