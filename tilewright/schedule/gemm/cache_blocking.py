"""The schedule of large contractions: blocks of rows, columns and depth that stay in L2.

    for block of columns, block of rows parallel {
      sums: scratch[rows, columns] = 0
      for piece of the depth {
        near: scratch[rows, piece]                      the rows' part of it, where it does not lie well in memory
        for column tile { for row tile {
          acc = 0
          for k in piece { acc += near[row, k] * B[k, column] }
          sums[tile] += acc
        } }
      }
      y[block] = epilogue(sums)
    }

After Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilewright.ir.core import Op
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type, extent_of, loop_var
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.gemm.gemm_plan import GemmPlan
from tilewright.schedule.gemm.panels import pack_columns, pack_constants, prefetch_panels
from tilewright.schedule.gemm.reduction_nest import separate_sums
from tilewright.schedule.gemm.register_tile import Nest, mark, mark_elements, skip_padding
from tilewright.schedule.steps.access import loads_in, perfect_nest, stride_in
from tilewright.schedule.steps.tiling import column_tiles, tile_loop
from tilewright.schedule.steps.transpose_tiles import schedule_squares, side_of
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def tile_in_blocks(s: Schedule, plan: GemmPlan, target: Target) -> None:
    """Compute the sums by tiles in registers within blocks, in the nest that reads them."""
    axes, tile, transposed = plan.axes, plan.decision.tile, plan.shape.transposed
    outer, inner = _block_loops(s, plan)
    s.reorder(*outer, *inner)
    fused = s.compute_at(axes.sums.sums, outer[-1], space="scratch", guard="loads")
    if transposed:
        assert axes.row is not None
        s.swap_axes(fused.buffer, axes.axis(axes.row), axes.axis(axes.vector))
    clear, summing = separate_sums(s, plan.stage, fused.copies)
    group = [] if plan.group is None else [fused.copies[plan.group]]
    pieces = _pieces(s, plan, [fused.copies[o] for o in plan.stage.reduce])
    around, nests = _tile_sums(s, plan, summing, pieces, group)
    parts = [s.rfactor(fused.buffer, nest.outer[0]) for nest in nests]
    if pieces.run:
        _copy_rows(s, [*outer, *pieces.around][-1], nests[0], tile.rows, pieces.run)
    pack_constants(s, [[*nest.loops, *nest.group] for nest in nests])
    if not group:
        pack_columns(s, nests, nests[0].outer, [*outer, *around], target)
    vector = clear[axes.axis(axes.vector)]
    s.reorder(*(o for o in clear if o is not vector), vector)
    s.simplify()
    for nest in nests:
        mark(s, nest)
    for part in parts:
        mark_elements(s, part.clear, tile.lanes)
        mark_elements(s, part.add, tile.lanes)
    for nest in nests:
        skip_padding(s, nest)
    s.vectorize(vector, tile.lanes)
    if transposed:
        _transpose(s, [o for o in inner if o.parent is not None], target)
    else:
        s.vectorize(inner[-1], tile.lanes)
    prefetch_panels(s, nests[0].outer[-1], [*outer, *around], target)


def _block_loops(s: Schedule, plan: GemmPlan) -> tuple[list[Op], list[Op]]:
    """Split rows and columns into blocks: the loops over blocks, and those within one, vector last. Blocks of less than
    a line are of one line each."""
    axes, tile, blocks = plan.axes, plan.decision.tile, plan.decision.blocks
    line, row, block, vector = axes.line, axes.row, axes.block, axes.vector
    assert blocks is not None and row is not None
    columns = tile.columns * blocks.columns
    if block is not None:
        over_columns, block = tile_loop(s, block, columns)
    else:
        over_columns, vector = tile_loop(s, vector, columns * tile.lanes)
    outer = [o for o in axes.outer if o is not line]
    if line is not None and blocks.rows >= extent_of(row).value:
        over_rows, line = tile_loop(s, line, blocks.rows // extent_of(row).value, "overlap")
    else:
        over_rows, row = tile_loop(s, row, blocks.rows, "overlap")
        outer, line = axes.outer, None
    return [*outer, *over_columns, *over_rows], [o for o in (line, row, block, vector) if o is not None]


@dataclass(frozen=True, eq=False)
class _Pieces:
    """The loop over pieces of the depth (none where one is all), the loops of the sums within one, and the elements of
    the runs in which rows are copied for each piece (0: they are not)."""

    around: list[Op]
    depth: list[Op]
    run: int


def _pieces(s: Schedule, plan: GemmPlan, depth: list[Op]) -> _Pieces:
    """Cut the outermost reduction axis into pieces, and the innermost into runs, such as divide a piece."""
    blocks, run = plan.decision.blocks, plan.shape.run
    assert blocks is not None
    axis = next((k for k, o in enumerate(depth) if extent_of(o) != 1), 0)
    if run and axis == len(depth) - 1:
        run = gcd(run, blocks.depth)
    around, depth[axis] = tile_loop(s, depth[axis], blocks.depth)
    if run:
        runs, within = tile_loop(s, depth[-1], run)
        depth[-1:] = [*runs, within]
    return _Pieces(around, depth, run)


def _tile_sums(
    s: Schedule, plan: GemmPlan, summing: list[Op], pieces: _Pieces, group: list[Op]
) -> tuple[list[Op], list[Nest]]:
    """Pieces of the depth outside, then column tiles, row tiles and the register tile: the loops over pieces and column
    tiles, and the nests of the whole tiles and of the rows that are left."""
    axes, tile = plan.axes, plan.decision.tile
    line, row, block, vector = (
        None if o is None else summing[axes.axis(o)] for o in (axes.line, axes.row, axes.block, axes.vector)
    )
    assert row is not None and vector is not None
    others = [o for o in summing if o not in (line, row, block, vector)]
    lines = [] if line is None else [line]
    columns, inner = column_tiles(s, vector, block, tile.columns, tile.lanes)
    around = [*pieces.around, *columns]
    s.reorder(*others, *around, *lines, row, *pieces.depth, *inner, *group)
    parts = s.split(row, tile.rows, tail="peel")
    nests = [Nest(pieces.depth, [parts.inner, *inner], group)]
    if parts.tail is not None:
        row, *chain = perfect_nest(parts.tail)
        first, last = len(pieces.depth), len(chain) - len(group)
        nests.append(Nest(chain[:first], [row, *chain[first:last]], chain[last:]))
    for nest in nests:
        s.reorder(*nest.loops)
    return around, nests


def _copy_rows(s: Schedule, loop: Op, nest: Nest, rows: int, run: int) -> None:
    """At the start of each iteration of `loop`, copy the rows that it reads: a tile's rows together, run by run, which
    is the order in which the tile reads them."""
    row, depth = loop_var(nest.tile[0]), loop_var(nest.outer[-1])
    found = [o for o in loads_in(nest.outer[0]) if buffer_type(o.operands[0]).space == "global"]
    (load,) = (o for o in found if stride_in(o, row) != 0)
    a, b = ([k for k, i in enumerate(load.attrs["idx"]) if v in i.vars][-1] for v in (row, depth))
    group = product(map(extent_of, nest.group)).value
    factors = [(rows,) if k == a else (run * group,) if k == b else () for k in range(len(load.attrs["idx"]))]
    piece = [sum(1 + len(f) for f in factors[:k]) for k in range(len(factors))]
    others = [first for k, first in enumerate(piece) if k not in (a, b)]
    packing = Packing(tuple(factors), (*others, piece[a], piece[b], piece[a] + 1, piece[b] + 1))
    fill = s.pack(load.operands[0], loop, packing).fill
    s.vectorize(fill[-1])


def _transpose(s: Schedule, loops: list[Op], target: Target) -> None:
    """Write a result that is contiguous in its rows by squares through registers."""
    *_, row, vector = loops
    schedule_squares(s, loops, vector, row, side_of(vector, row, target), target)
