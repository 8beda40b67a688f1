"""Elementwise nests whose result is contiguous in one axis and an operand in another: squares through registers.

    for bb { for ao { for bo {                         a: contiguous in x, b: contiguous in y
      tile: reg[n, n]
      for b { for a vector { tile[b, a] = x[.., b, a] } }
      for a { prefetch y[.., a, b + n]; for b vector { y[.., a, b] = f(tile[b, a]) } }
    } } }

Every load and store is of a whole vector; the columns of the tile are shuffles of registers. Squares follow each other
along the result's rows, whose lines are then complete before they leave the caches; what is read of a line of the
operand beyond the square waits in the caches for the next squares along `a`, at the end of a block of `b`.

An axis that is too short for squares is seen as one with the axis that lies around it in memory, if that is another one
than that of the other side: pairs of numbers x[row, k, 2] that become y[2, k, row] are rows of 2k elements. Where it is
that of the other side, lines interleave: y[k, 2] of x[2, k] is a line of 2k elements, whose vectors are shuffled from
two lines of x.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.cost.data_movement import block_of_squares, lines_come_late, side_of_square
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import ScalarType, product
from tilewright.loops.edit import address_of, buffer_type, extent_of, loop_var
from tilewright.schedule.steps.access import known, loads_in, stores_in, stride_in, stride_of
from tilewright.schedule.steps.tiling import tile_loop
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


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
        address = address_of(load)
        along = stride_of(address, loop_var(result))
        if along == 0 or along == 1:
            continue
        found = next((o for o in loops if o is not result and stride_of(address, loop_var(o)) == 1), None)
        if found is not None:
            return found, result
    return None


def join_short_axes(s: Schedule, loops: list[Op], target: Target) -> list[Op]:
    """Make one loop of a short axis and the one around it in memory where squares need that; the loops left."""
    found = transposing(loops)
    if found is None or side_of(*found, target):
        return loops
    a, b = found
    if not side_of(b, b, target) and _is_around(a, b, stores_in(loops[-1])):
        return _interleaved(s, loops, a, b)
    accesses = {a: loads_in(loops[-1]), b: stores_in(loops[-1])}
    for short in (a, b):
        around = [o for o in loops if o not in found and _is_around(o, short, accesses[short])]
        if around and not side_of(short, short, target):
            with s.noting(f"squares need an axis longer than {loop_var(short)}"):
                others = [o for o in loops if o not in (around[0], short)]
                s.reorder(*others, around[0], short)
                loops = [*others, s.collapse(around[0], short)]
    return loops


def _interleaved(s: Schedule, loops: list[Op], a: Op, b: Op) -> list[Op]:
    """One loop over lines of the result that take elements of several lines of the operand in turn: a vector of it is
    shuffled from one of each."""
    others = [o for o in loops if o not in (a, b)]
    with s.noting(f"vectors of {extent_of(b)} elements"):
        s.reorder(*others, a, b)
        return [*others, s.collapse(a, b)]
    return loops


def _is_around(outer: Op, inner: Op, accesses: Sequence[Op]) -> bool:
    """Whether one of the accesses goes on in the outer loop where the inner one ends."""
    return any(
        stride_in(access, loop_var(inner)) == 1 and stride_in(access, loop_var(outer)) == extent_of(inner)
        for access in accesses
    )


def side_of(a: Op, b: Op, target: Target) -> int:
    """Rows and columns of a square: lanes of one register, fewer for short axes; 0 where there is no such square."""
    types = [v.type for loop in (a, b) for op in loop.walk() for v in op.results]
    widest = max((t.dtype.bytes for t in types if isinstance(t, ScalarType)), default=4)
    return side_of_square(widest, [extent_of(o).value for o in (a, b) if extent_of(o).is_const], target)


def schedule_squares(
    s: Schedule, loops: list[Op], a: Op, b: Op, side: int, target: Target, *, masked: bool = False
) -> None:
    """Tile a perfect nest by squares that pass through registers. ScheduleError where overlapping squares or copies
    are not legal, or where an axis may be shorter than a square, unless squares may then be `masked`."""
    for loop in (a, b):
        if not masked and not s.at_least(extent_of(loop), side):
            raise ScheduleError(f"axis {loop_var(loop)} may be shorter than a square of {side} rows")
    comes_late = _comes_late(stores_in(b)[0], target)
    outer = [o for o in loops if o not in (a, b)]
    s.reorder(*outer, a, b)
    block = block_of_squares(known(extent_of(b)), side)
    blocks, b = tile_loop(s, b, block, _tail(b, block, masked)) if block else ([], b)
    s.reorder(*blocks, a, b)
    _, column = tile_loop(s, a, side, _tail(a, side, masked))
    squares, lane = tile_loop(s, b, side, _tail(b, side, masked))
    s.reorder(*squares, column)
    if squares and comes_late:
        s.prefetch_run(stores_in(lane)[0], squares[0])
    for load in _transposed(column, lane):
        rows, vector = s.preload(load, lane, column).fill
        s.vectorize(vector)
        s.unroll(rows)
    s.vectorize(lane)
    s.unroll(column)


def _comes_late(store: Op, target: Target) -> bool:
    """Whether lines of the result come from beyond L2."""
    type = buffer_type(store.operands[-1])
    return lines_come_late(known(product(type.shape) * type.dtype.bytes), target)


def _tail(loop: Op, size: int, masked: bool) -> str:
    extent = extent_of(loop)
    is_short = (extent.bounds[0] or 0) < size
    return "guard" if extent % size == 0 or (masked and is_short) else "overlap"


def _transposed(column: Op, lane: Op) -> list[Op]:
    """The loads that are contiguous in the columns of the square and not in its lanes."""
    a, b = loop_var(column), loop_var(lane)
    return [o for o in loads_in(column) if stride_in(o, a) == 1 and stride_in(o, b) not in (0, 1)]
