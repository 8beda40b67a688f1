"""Products whose operands both lie in memory along the sum, as `x @ w.T` of the call: lanes run along the depth.

    for columns of a vector { for tile of rows {
      sums: scratch[rows, vector]
      for columns of a tile {
        lanes: reg[rows, columns, lanes] = 0
        for k in vectors of the depth { lanes[..] += A[row, k] * B[column, k] }
        sums[row, column] = the lanes of each, added up
      }
      y[rows, vector] = epilogue(sums)
    } }

Both operands are read as they lie, the columns once. The other way, lanes along the columns, needs a transposed copy of
these, which pays where many rows use it; `cost.gemm.depth_lanes` says where.
"""

from __future__ import annotations

from tilewright.cost.gemm.depth_lanes import (
    ROWS_OF_BLOCK,
    depth_tile,
    rows_that_pay_copies,
    why_not_along_depth,
)
from tilewright.cost.gemm.register_tile import Tile
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym
from tilewright.loops.edit import extent_of
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Lowered
from tilewright.schedule.gemm.gemm_axes import GemmAxes, assign_axes
from tilewright.schedule.gemm.gemm_shape import gemm_shape
from tilewright.schedule.gemm.reduction_nest import one_reduction
from tilewright.schedule.gemm.register_tile import Nest, mark
from tilewright.schedule.steps.access import conditional_nest, iterations_of, known
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.tiling import loop_around, tile_loop
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def schedule_along_depth(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Compute sums with lanes along the depth. ScheduleError where the operands do not lie so, and where lanes along
    the columns are faster."""
    axes = assign_axes(one_reduction(s, lowered))
    shape = gemm_shape(axes, constants_of(s.func))
    if not shape.along_depth:
        raise ScheduleError("rows and columns of the call do not both lie in memory along the sum")
    if axes.row is not None and shape.rows is None:
        _check_few_rows(s, extent_of(axes.row), rows_that_pay_copies(shape, target))
    elif reason := why_not_along_depth(shape, target):
        raise ScheduleError(f"lanes along the depth: {reason}")
    tile = depth_tile(shape, target)
    for nest in _reading_nests(s, axes, tile, shape.lanes):
        _tile_sums(s, axes, nest, tile, target)
        mark(s, nest, unrolled=(iterations_of(nest.tile[:-1]) or ROWS_OF_BLOCK) <= tile.rows)
    parallelize_outer(s, target)


def _check_few_rows(s: Schedule, rows: Sym, many: int) -> None:
    """ScheduleError where a kernel for `many` rows of an unknown number, from which on copies of the columns pay (0:
    never), is to be made first."""
    low, high = rows.bounds
    if many and ((low or 0) >= many or (s.may_specialize and (high is None or high >= many))):
        raise ScheduleError(f"lanes along the depth: copies of the columns pay from {many} rows on")


def _reading_nests(s: Schedule, axes: GemmAxes, tile: Tile, lanes: int) -> list[Nest]:
    """The nest that reads the sums, by vectors of up to `lanes` columns and blocks of rows: of several tiles, which the
    columns of one tile serve while they are near. Rows of unknown number are read in whole tiles, and then one by
    one."""
    columns = known(extent_of(axes.vector)) or lanes
    width = min(lanes, -(-columns // tile.columns) * tile.columns)
    over_columns, vector = tile_loop(s, axes.vector, width)
    if axes.row is not None and not extent_of(axes.row).is_const:
        around = [*axes.outer, *over_columns]
        s.reorder(*around, axes.row, vector)
        parts = s.split(axes.row, tile.rows, tail="peel")
        whole = Nest([*around, parts.outer], [parts.inner, vector])
        left = [] if parts.tail is None else conditional_nest(parts.tail)
        return [whole, Nest([*around, left[0]], left[1:])] if left else [whole]
    over_rows, row = ([], []) if axes.row is None else _row_blocks(s, axes.row, tile.rows)
    inner = [*row, vector]
    around = loop_around(s, [*axes.outer, *over_columns, *over_rows], inner)
    s.reorder(*around, *inner)
    return [Nest(around, inner)]


def _row_blocks(s: Schedule, row: Op, size: int) -> tuple[list[Op], list[Op]]:
    """The loop over blocks of whole tiles of `size` rows, none where one block is all, and the one within."""
    rows = extent_of(row).value
    blocks = -(-rows // ROWS_OF_BLOCK)
    around, row = tile_loop(s, row, min(rows, -(-rows // blocks // size) * size), "overlap")
    return around, [row]


def _tile_sums(s: Schedule, axes: GemmAxes, nest: Nest, tile: Tile, target: Target) -> None:
    """Compute what an iteration around a nest reads, tile by tile of columns and then of rows."""
    stage = axes.sums.stage
    made = s.compute_at(stage.buffer, nest.outer[-1], space="scratch", guard="loads")
    (depth,) = (made.copies[o] for o in stage.reduce if extent_of(o) != 1)
    tiled = [made.copies[stage.axes[axis]] for axis in axes.tile]
    for loop in tiled:
        s.clamp(loop)
    others = (o for axis, o in enumerate(stage.axes) if axis not in axes.tile)
    outer = [made.copies[o] for o in others if o in made.copies]  # those of one iteration are gone after a nest before
    sizes = [tile.rows, tile.columns][-len(tiled) :]
    tiles = [_in_tiles(s, loop, size) for loop, size in zip(tiled, sizes, strict=True)]
    s.reorder(*outer, *(o for over, _ in reversed(tiles) for o in over), *(o for _, o in tiles))
    _in_lanes(s, depth, tile.lanes, target)
    s.simplify()
    for _, loop in reversed(tiles):
        if loop.parent is not None:
            s.unroll_and_jam(loop)


def _in_tiles(s: Schedule, loop: Op, size: int) -> tuple[list[Op], Op]:
    """The loop over tiles of so many iterations, none where one tile is all, and the one within. The last tile begins
    earlier where it would not be whole."""
    return tile_loop(s, loop, min(size, extent_of(loop).value), "overlap")


def _in_lanes(s: Schedule, depth: Op, lanes: int, target: Target) -> None:
    """Sums in one vector, as the others of a tile hide its latency; what is left in one more."""
    left = s.vectorize_reduction(depth, lanes, tail="peel").tail
    if left is None:
        return
    if target.masked_memory:
        s.vectorize_reduction(left, lanes, tail="guard")
    elif extent_of(left).is_const:
        s.vectorize_reduction(left, extent_of(left).value)
