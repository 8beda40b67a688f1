"""Innermost loops as vectors: how many lanes they get, and what becomes of the iterations that are left over.

    for j in 0..197 { y[j] = f(x[j]) }

becomes whole vectors and one rest of as many lanes as are left; sums run in several vectors side by side, so that the
latency of one addition is hidden behind the others.
"""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import ONE
from tilewright.ir.types import ScalarType
from tilewright.loops.nest import body_of, extent_of, is_loop, kind_of
from tilewright.loops.vectorize import MAX_LANES
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

VECTOR_BYTES = 64
SUMS = 4
"""Vectors that a sum runs in: as many as hide the latency of an addition on every core of the last ten years."""

POLYNOMIALS = 4
"""Registers in which polynomials are evaluated side by side: they share the loads of the coefficients, and have what
to do while one another's multiplications are under way."""

_POLYNOMIAL = frozenset({"exp", "exp2", "expm1", "log", "log1p", "tanh", "erf", "sigmoid", "softplus", "pow"})

POLYNOMIAL_REGISTERS = 4
"""Vector registers that a polynomial needs while it is evaluated: more of them side by side would be spilled."""


def innermost_loops(s: Schedule) -> list[Op]:
    """The loops that hold no other loop, in program order."""
    loops = [op for op in s.func.body.walk() if is_loop(op)]
    return [o for o in loops if not any(is_loop(op) for op in body_of(o).walk())]


def lanes_for(loop: Op, target: Target) -> int:
    """Lanes of a vector loop: 64 bytes of the widest element, fewer for short loops."""
    lanes = VECTOR_BYTES // _widest(loop)
    extent = extent_of(loop)
    while extent.is_const and lanes > 1 and lanes > extent.value:
        lanes //= 2
    return lanes


def _polynomial_lanes(loop: Op, lanes: int, target: Target) -> int:
    """Lanes of a loop that takes longer to compute than to load: several registers of single precision."""
    wide = min(MAX_LANES, POLYNOMIALS * target.f32_lanes)
    has_polynomial = any(op.name in _POLYNOMIAL for op in loop.walk())
    if wide <= lanes or not has_polynomial or _widest(loop) != 4:
        return lanes
    extent = extent_of(loop)
    while extent.is_const and wide > lanes and wide > extent.value:
        wide //= 2
    return wide


def _widest(loop: Op) -> int:
    """Bytes of the widest element that the loop computes with."""
    types = [v.type for op in loop.walk() for v in op.results]
    return max((t.dtype.bytes for t in types if isinstance(t, ScalarType)), default=4)


def vectorize_inner(s: Schedule, loop: Op, target: Target) -> None:
    """A reduction into lanes, or independent elements; loops that allow neither stay as they are."""
    lanes = lanes_for(loop, target)
    if lanes < 2 or kind_of(loop) != "serial":
        return
    try:
        _vectorize_sum(s, loop, lanes, target)
        return
    except ScheduleError:
        pass
    try:
        vectorize_map(s, loop, lanes, target)
    except ScheduleError:
        return


def vectorize_map(s: Schedule, loop: Op, lanes: int, target: Target) -> None:
    """Vectors of `lanes` elements (of more where polynomials are computed), and what is left over in one vector more.
    ScheduleError where lanes may meet."""
    wide = _polynomial_lanes(loop, lanes, target)
    if wide > lanes:
        left = s.vectorize(loop, wide, tail="peel").tail
        if left is None:
            return
        loop = left
    short = extent_of(loop).is_const and extent_of(loop).value < lanes
    rest = loop if short else s.vectorize(loop, lanes, tail="peel").tail
    if rest is None:
        return
    try:
        if extent_of(rest).is_const:
            _vectorize_rest(s, rest, lanes, target)
        elif target.masked_memory:
            s.vectorize(rest, lanes, tail="guard")
    except ScheduleError:
        return


def _vectorize_rest(s: Schedule, rest: Op, lanes: int, target: Target) -> None:
    """One vector of just the lanes that are left, which code generation makes of powers of two; one masked vector
    where that would be many pieces."""
    pieces = extent_of(rest).value.bit_count()
    if pieces > 2 and target.masked_memory:
        s.vectorize(rest, lanes, tail="guard")
    else:
        s.vectorize(rest)


def _vectorize_sum(s: Schedule, loop: Op, lanes: int, target: Target) -> None:
    """Sums in several vectors; what is left over in vectors of its own. ScheduleError when it is no sum."""
    wide = lanes
    extent = extent_of(loop)
    most = min(MAX_LANES, SUMS * lanes)
    if any(op.name in _POLYNOMIAL for op in loop.walk()):
        registers = target.vector_registers // POLYNOMIAL_REGISTERS
        most = min(most, registers * (lanes * target.vector_bits // (8 * VECTOR_BYTES)))
    while 2 * wide <= most and not (extent.is_const and extent.value < 2 * wide):
        wide *= 2
    rest = s.vectorize_reduction(loop, wide, loop, tail="peel").tail
    while rest is not None and (left := extent_of(rest)) is not ONE:
        if not left.is_const:
            if target.masked_memory:
                s.vectorize_reduction(rest, lanes, rest, tail="guard")
            return
        width = max(left.value - left.value % lanes, 0) or left.value
        rest = s.vectorize_reduction(rest, width, rest, tail="peel").tail
