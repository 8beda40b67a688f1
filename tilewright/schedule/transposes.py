"""Elementwise nests whose result is contiguous in one axis and an operand in another: squares through registers.

    for bo { for ao {                                  a: contiguous in x, b: contiguous in y
      tile: reg[n, n]
      for b { for a vector { tile[b, a] = x[.., b, a] } }
      for a { for b vector { y[.., a, b] = f(tile[b, a]) } }
    } }

Every load and store is of a whole vector; the columns of the tile are shuffles of registers.
"""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import ScalarType
from tilewright.loops.nest import extent_of, loop_var
from tilewright.schedule.access import loads_in, stores_in, stride_in
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

SMALLEST = 4
LARGEST = 16
"""Rows of a square: more would not fit the registers of any target."""


def transposing(loops: list[Op]) -> tuple[Op, Op] | None:
    """(a, b): the loop in which an operand is contiguous, and the one in which the result is; None when these agree
    or there is no such operand."""
    store = stores_in(loops[-1])
    if len(store) != 1:
        return None
    result = next((o for o in loops if stride_in(store[0], loop_var(o)) == 1), None)
    if result is None:
        return None
    for load in loads_in(loops[-1]):
        strides = {o: stride_in(load, loop_var(o)) for o in loops}
        along = strides[result]
        if along is None or along == 0 or along == 1:
            continue
        found = next((o for o in loops if o is not result and strides[o] == 1), None)
        if found is not None:
            return found, result
    return None


def side_of(a: Op, b: Op, target: Target) -> int:
    """Rows and columns of a square: lanes of one register, fewer for short axes; 0 where there is no such square."""
    types = [v.type for op in b.walk() for v in op.results] + [v.type for op in a.walk() for v in op.results]
    widest = max((t.dtype.bytes for t in types if isinstance(t, ScalarType)), default=4)
    side = min(LARGEST, target.vector_bits // 8 // widest)
    known = [extent_of(o).value for o in (a, b) if extent_of(o).is_const]
    while side >= SMALLEST and any(n < side for n in known):
        side //= 2
    return side if side >= SMALLEST else 0


def schedule_squares(s: Schedule, loops: list[Op], a: Op, b: Op, side: int) -> None:
    """Tile a perfect nest by squares that pass through registers. ScheduleError where overlapping squares or copies
    are not legal, or where an axis may be shorter than a square."""
    for loop in (a, b):
        if not s.at_least(extent_of(loop), side):
            raise ScheduleError(f"axis {loop_var(loop)} may be shorter than a square of {side} rows")
    outer = [o for o in loops if o not in (a, b)]
    s.reorder(*outer, a, b)
    lane_tiles, lane = _split(s, b, side)
    s.reorder(*lane_tiles, a)
    _, column = _split(s, a, side)
    for load in _turned(column, lane):
        rows, vector = s.preload(load, lane, column).fill
        s.vectorize(vector)
        s.unroll(rows)
    s.vectorize(lane)
    s.unroll(column)


def _split(s: Schedule, loop: Op, side: int) -> tuple[list[Op], Op]:
    """The loop over tiles (none where one tile is all), and the loop within one."""
    if extent_of(loop) == side:
        return [], loop
    exact = extent_of(loop) % side == 0
    parts = s.split(loop, side, tail="guard" if exact else "overlap")
    return [parts.outer], parts.inner


def _turned(column: Op, lane: Op) -> list[Op]:
    """The loads that are contiguous in the columns of the square and not in its lanes."""
    a, b = loop_var(column), loop_var(lane)
    return [o for o in loads_in(column) if stride_in(o, a) == 1 and stride_in(o, b) not in (0, 1)]
