"""The schedule of large contractions: blocks of rows, columns and depth that stay in the second-level cache.

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

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from tilewright.cost.cache_blocking import Blocks
from tilewright.cost.register_tile import Contraction, Tile
from tilewright.ir.core import Op, Value
from tilewright.loops.edit import buffer_type, extent_of, loop_var
from tilewright.loops.lower import Stage
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.gemm.gemm_axes import GemmAxes, separate_sums
from tilewright.schedule.gemm.panels import pack_columns, pack_constants, prefetch_panels
from tilewright.schedule.steps.access import loads_in, perfect_nest, stride_in
from tilewright.schedule.steps.transpose_tiles import schedule_squares, side_of
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(frozen=True, slots=True)
class Blocking:
    """Extents of the blocks, where `blocks.depth` is of reduction axis number `axis`. With `run` above 0 the rows are
    copied for each piece of the depth, in runs of that many elements. A `turned` result is contiguous in its rows."""

    blocks: Blocks
    axis: int
    run: int
    turned: bool = False


@dataclass(eq=False)
class _Nest:
    """One register tile: the reduction loops, then those of the tile, vector last."""

    depth: list[Op]
    tile: list[Op]


def blocking_of(stage: Stage, shape: Contraction, blocks: Blocks) -> Blocking:
    """Where blocks cut the reduction, and in which runs rows are copied: such as divide a piece of the depth."""
    axis = next((k for k, o in enumerate(stage.reduce) if extent_of(o) != 1), 0)
    is_last = axis == len(stage.reduce) - 1
    run = gcd(shape.run, blocks.depth) if shape.run and is_last else shape.run
    return Blocking(blocks, axis, run, shape.turned)


def tile_in_blocks(
    s: Schedule,
    stage: Stage,
    axes: GemmAxes,
    axis_of: dict[Op, int],
    accumulator: Value,
    tile: Tile,
    blocking: Blocking,
    target: Target,
) -> None:
    """Compute the sums of `stage` by tiles in registers within blocks, in the nest that reads them."""
    outer, inner = _block_loops(s, axes, tile, blocking.blocks)
    s.reorder(*outer, *inner)
    fused = s.compute_at(accumulator, outer[-1], space="scratch", guard="loads")
    if blocking.turned:
        assert axes.row is not None
        s.swap_axes(fused.buffer, axis_of[axes.row], axis_of[axes.vector])
    clearing, summing = separate_sums(s, stage, fused.copies)
    around, rows, nests = _tile_sums(s, stage, axes, axis_of, summing, fused.copies, tile, blocking)
    parts = [s.rfactor(fused.buffer, nest.depth[0]) for nest in nests]
    if blocking.run:
        is_split = extent_of(stage.reduce[blocking.axis]) != blocking.blocks.depth
        _copy_rows(s, around[0] if is_split else outer[-1], nests[0], tile, blocking.run)
    loops = [[*nest.depth, *nest.tile] for nest in nests]
    pack_constants(s, loops)
    pack_columns(s, loops, nests[0].depth, [*outer, *around], rows)
    vector = clearing[axis_of[axes.vector]]
    s.reorder(*(o for o in clearing if o is not vector), vector)
    s.simplify()
    for nest in nests:
        _in_registers(s, nest.tile, tile.lanes)
    for part in parts:
        for copying in (part.clear, part.add):
            _in_registers(s, copying, tile.lanes)
    s.vectorize(vector, tile.lanes)
    if blocking.turned:
        _transpose(s, [o for o in inner if o.parent is not None], target)
    else:
        s.vectorize(inner[-1], tile.lanes)
    prefetch_panels(s, nests[0].depth[-1], [*outer, *around], target)


def _block_loops(s: Schedule, axes: GemmAxes, tile: Tile, blocks: Blocks) -> tuple[list[Op], list[Op]]:
    """Split rows and columns into blocks: the loops over blocks, and those within one, vector last."""
    outer = [o for o in axes.outer if o is not axes.line]
    line, row, block, vector = axes.line, axes.row, axes.block, axes.vector
    assert row is not None
    if block is not None and extent_of(block) != tile.columns * blocks.columns:
        parts = s.split(block, tile.columns * blocks.columns)
        outer.append(parts.outer)
        block = parts.inner
    elif block is None and extent_of(vector) != tile.columns * tile.lanes * blocks.columns:
        parts = s.split(vector, tile.columns * tile.lanes * blocks.columns)
        outer.append(parts.outer)
        vector = parts.inner
    if line is None and extent_of(row) != blocks.rows:
        parts = s.split(row, blocks.rows, tail="overlap")
        outer.append(parts.outer)
        row = parts.inner
    elif line is not None and extent_of(line) * extent_of(row) != blocks.rows:
        parts = s.split(line, blocks.rows // extent_of(row).value, tail="overlap")
        outer.append(parts.outer)
        line = parts.inner
    return outer, [o for o in (line, row, block, vector) if o is not None]


def _tile_sums(
    s: Schedule,
    stage: Stage,
    axes: GemmAxes,
    axis_of: dict[Op, int],
    summing: list[Op],
    copies: dict[Op, Op],
    tile: Tile,
    blocking: Blocking,
) -> tuple[list[Op], list[Op], list[_Nest]]:
    """Pieces of the depth outside, then column tiles, row tiles and the register tile: the loops over pieces and column
    tiles, those over row tiles, and the nests of the whole tiles and of the rows that are left."""
    assert axes.row is not None
    row, vector = summing[axis_of[axes.row]], summing[axis_of[axes.vector]]
    columns = [summing[axis_of[axes.block]]] if axes.block is not None else []
    lines = [summing[axis_of[axes.line]]] if axes.line is not None else []
    rest = [o for o in summing if o not in (row, vector, *columns, *lines)]
    around: list[Op] = []
    depth = [copies[o] for o in stage.reduce]
    if extent_of(depth[blocking.axis]) != blocking.blocks.depth:
        pieces = s.split(depth[blocking.axis], blocking.blocks.depth)
        around.append(pieces.outer)
        depth[blocking.axis] = pieces.inner
    if blocking.run and extent_of(depth[-1]) != blocking.run:
        runs = s.split(depth[-1], blocking.run)
        depth[-1:] = [runs.outer, runs.inner]
    if columns and extent_of(columns[0]) != tile.columns:
        tiles = s.split(columns[0], tile.columns)
        around.append(tiles.outer)
        columns = [tiles.inner]
    elif not columns:
        if extent_of(vector) != tile.columns * tile.lanes:
            tiles = s.split(vector, tile.columns * tile.lanes)
            around.append(tiles.outer)
            vector = tiles.inner
        if tile.columns > 1:
            lanes = s.split(vector, tile.lanes)
            columns, vector = [lanes.outer], lanes.inner
    s.reorder(*rest, *around, *lines, row, *depth, *columns, vector)
    parts = s.split(row, tile.rows, tail="peel")
    nests = [_Nest(depth, [parts.inner, *columns, vector])]
    if parts.tail is not None:
        chain = perfect_nest(parts.tail)
        nests.append(_Nest(chain[1 : 1 + len(depth)], [chain[0], *chain[1 + len(depth) :]]))
    for nest in nests:
        s.reorder(*nest.depth, *nest.tile)
    return around, [*lines, parts.outer], nests


def _copy_rows(s: Schedule, loop: Op, nest: _Nest, tile: Tile, run: int) -> None:
    """At the start of each round of `loop`, copy the rows that it reads: a tile's rows together, run by run, which is
    the order in which the tile reads them."""
    row, depth = loop_var(nest.tile[0]), loop_var(nest.depth[-1])
    (load,) = (o for o in loads_in(nest.depth[0]) if stride_in(o, row) != 0 and not _is_sum(o))
    factors: list[tuple[int, ...]] = []
    order: list[int] = []
    tail: dict[str, int] = {}
    for i in load.attrs["idx"]:
        first = sum(1 + len(f) for f in factors)
        order.append(first)
        factors.append((tile.rows,) if row in i.vars else (run,) if depth in i.vars else ())
        if row in i.vars:
            tail["row"] = first
        elif depth in i.vars:
            tail["depth"] = first
    last = [tail["row"], tail["depth"], tail["row"] + 1, tail["depth"] + 1]
    packing = Packing(tuple(factors), (*(piece for piece in order if piece not in last), *last))
    fill = s.pack(load.operands[0], loop, packing).fill
    s.vectorize(fill[-1])


def _transpose(s: Schedule, loops: list[Op], target: Target) -> None:
    """Write a result that is contiguous in its rows by squares through registers."""
    *_, row, vector = loops
    schedule_squares(s, loops, vector, row, side_of(vector, row, target), target)


def _is_sum(load: Op) -> bool:
    return buffer_type(load.operands[0]).space != "global"


def _in_registers(s: Schedule, loops: Sequence[Op], lanes: int) -> None:
    """Vectors innermost, all else written out; loops that are gone had one round."""
    *others, vector = loops
    if vector.parent is not None and extent_of(vector).value > lanes:
        parts = s.split(vector, lanes)
        others, vector = [*others, parts.outer], parts.inner
    if vector.parent is not None:
        s.vectorize(vector)
    for loop in others:
        if loop.parent is not None:
            s.unroll(loop)
