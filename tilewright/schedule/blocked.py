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

from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.lower import Stage
from tilewright.loops.nest import buffer_type, extent_of, loop_var
from tilewright.loops.packing import Packing
from tilewright.schedule.access import loads_in, perfect_nest, stride_in
from tilewright.schedule.blocks import Blocks, Large, choose_blocks, cost, cost_without
from tilewright.schedule.panels import pack_columns, pack_constants, prefetch_panels
from tilewright.schedule.roles import Roles, element_bytes, known, operands_moving, separate_sums
from tilewright.schedule.tiles import Tile
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

LINE_BYTES = 64
L1_SETS = 64
LEAST_GAIN = 0.03  # of the time, for which blocks are worth their code
CROWDED = 4  # rows of a tile that one set of the first-level cache may hold, beside the columns


@dataclass(frozen=True, slots=True)
class Blocking:
    """Extents of the blocks, where `blocks.depth` is of reduction axis number `axis`. With `run` above 0 the rows are
    copied for each piece of the depth, in runs of that many elements."""

    blocks: Blocks
    axis: int
    run: int


@dataclass(eq=False)
class _Nest:
    """One register tile: the reduction loops, then those of the tile, vector last."""

    depth: list[Op]
    tile: list[Op]


def blocking_for(
    stage: Stage, roles: Roles, axis_of: dict[Op, int], tile: Tile, target: Target
) -> Blocking | str:
    """How to cut a contraction into blocks, or why that would not pay."""
    if roles.row is None or not all(extent_of(o).is_const for o in (roles.row, *stage.reduce)):
        return "the number of rows or the depth is not known"
    moved = operands_moving(stage, axis_of[roles.vector])
    row_operands = operands_moving(stage, axis_of[roles.row]) - moved
    columns = extent_of(roles.vector if roles.block is None else roles.block)
    if len(row_operands) != 1 or not columns.is_const:
        return "it is not one operand's rows with a known number of columns"
    (load,) = row_operands
    line = 1 if roles.line is None else extent_of(roles.line).value
    rows, size = line * extent_of(roles.row).value, element_bytes(load.operands[0])
    depth = product(extent_of(o) for o in stage.reduce).value
    width = tile.columns if roles.block is not None else tile.columns * tile.lanes
    tiles = -(-columns.value // width)
    if rows < 2 * tile.rows or tiles < 2:
        return "there are too few tiles"
    axis = next(k for k, o in enumerate(stage.reduce) if extent_of(o) != 1)
    extent = extent_of(stage.reduce[axis]).value
    row = loop_var(stage.axes[axis_of[roles.row]])
    run = _run_of(load, row, loop_var(stage.reduce[-1]), extent_of(stage.reduce[-1]).value)
    around = known(product(extent_of(o) for o in roles.outer if o is not roles.line)) or 1
    read = product(buffer_type(load.operands[0]).shape)
    large = Large(
        rows=rows,
        unit=tile.rows if roles.line is None else extent_of(roles.row).value,
        columns=tiles,
        depth=extent,
        steps=depth // extent,
        element=size,
        windows=max(1.0, around * rows * depth / read.value) if read.is_const else 1.0,
        tile=tile,
        apart=run > 0,
        crowded=_is_crowded(load, row, tile.rows),
        exact=roles.block is not None,
        around=around,
        lanes=max(1, target.vector_bits // 8 // size),
        cores=target.cores,
    )
    blocks = choose_blocks(large, target.caches.l2)
    if blocks is None:
        return "no block fits the second-level cache"
    within, without = cost(large, blocks), cost_without(large, target.caches.l2)
    if without <= within + LEAST_GAIN:
        return f"blocks would not be faster: {within:.2f} of overhead, {without:.2f} without them"
    return Blocking(blocks, axis, run)


def _run_of(load: Op, row: Sym, depth: Sym, extent: int) -> int:
    """Elements that lie together in a row, up to a cache line, where rows lie further apart than that; 0 where they do
    not, or where too few lie together."""
    line = LINE_BYTES // element_bytes(load.operands[0])
    step, within = stride_in(load, row), stride_in(load, depth)
    if step is None or not step.is_const or abs(step.value) <= line or within != 1:
        return 0
    if any(row in i.vars and depth in i.vars for i in load.attrs["idx"]):
        return 0
    run = gcd(line, extent)
    return run if 4 * run >= line else 0


def _is_crowded(load: Op, row: Sym, rows: int) -> bool:
    """Whether the rows of a tile fall into few sets of the first-level cache, and push one another out."""
    step = stride_in(load, row)
    if step is None or not step.is_const:
        return False
    lines, rest = divmod(abs(step.value) * element_bytes(load.operands[0]), LINE_BYTES)
    return not rest and lines > 0 and rows * gcd(lines, L1_SETS) > CROWDED * L1_SETS


def tile_in_blocks(
    s: Schedule,
    stage: Stage,
    roles: Roles,
    axis_of: dict[Op, int],
    accumulator: Value,
    tile: Tile,
    blocking: Blocking,
    target: Target,
) -> None:
    """Compute the sums of `stage` by tiles in registers within blocks, in the nest that reads them."""
    outer, inner = _block_loops(s, roles, tile, blocking.blocks)
    s.reorder(*outer, *inner)
    fused = s.fuse_at(accumulator, outer[-1], space="scratch", guard="loads")
    clearing, summing = separate_sums(s, stage, fused.copies)
    around, rows, nests = _tile_sums(s, stage, roles, axis_of, summing, fused.copies, tile, blocking)
    parts = [s.partial_sums(fused.buffer, nest.depth[0]) for nest in nests]
    if blocking.run:
        is_split = extent_of(stage.reduce[blocking.axis]) != blocking.blocks.depth
        _copy_rows(s, around[0] if is_split else outer[-1], nests[0], tile, blocking.run)
    loops = [[*nest.depth, *nest.tile] for nest in nests]
    pack_constants(s, loops)
    pack_columns(s, loops, nests[0].depth, [*outer, *around], rows)
    vector = clearing[axis_of[roles.vector]]
    s.reorder(*(o for o in clearing if o is not vector), vector)
    s.simplify()
    for nest in nests:
        _in_registers(s, nest.tile, tile.lanes)
    for part in parts:
        for copying in (part.clear, part.add):
            _in_registers(s, copying, tile.lanes)
    s.vectorize(vector, tile.lanes)
    s.vectorize(inner[-1], tile.lanes)
    prefetch_panels(s, nests[0].depth[-1], [*outer, *around], target)


def _block_loops(s: Schedule, roles: Roles, tile: Tile, blocks: Blocks) -> tuple[list[Op], list[Op]]:
    """Split rows and columns into blocks: the loops over blocks, and those within one, vector last."""
    outer = [o for o in roles.outer if o is not roles.line]
    line, row, block, vector = roles.line, roles.row, roles.block, roles.vector
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
    roles: Roles,
    axis_of: dict[Op, int],
    summing: list[Op],
    copies: dict[Op, Op],
    tile: Tile,
    blocking: Blocking,
) -> tuple[list[Op], list[Op], list[_Nest]]:
    """Pieces of the depth outside, then column tiles, row tiles and the register tile: the loops over pieces and column
    tiles, those over row tiles, and the nests of the whole tiles and of the rows that are left."""
    assert roles.row is not None
    row, vector = summing[axis_of[roles.row]], summing[axis_of[roles.vector]]
    columns = [summing[axis_of[roles.block]]] if roles.block is not None else []
    lines = [summing[axis_of[roles.line]]] if roles.line is not None else []
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
