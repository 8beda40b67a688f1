"""The default schedule of contractions (matrix products, convolutions) and of other reductions with a vector axis.

    for outer parallel {                      batch, column tiles, image rows, row tiles
      acc: reg[rows, columns, lanes] = 0
      for k { acc[..] += A[row, k] * B[k, column] }      rows and columns unrolled, lanes one vector
      y[row, column] = epilogue(acc[..])
    }

Tiles come from the cost model (`schedule.model`); constant operands are packed in the order in which this nest reads
them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import COSTLY
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.nest import buffer_type, extent_of
from tilewright.schedule.blocked import blocking_of, tile_in_blocks
from tilewright.schedule.describe import describe
from tilewright.schedule.dots import group_of_products
from tilewright.schedule.model import Decision, choose, why_not_cut, why_not_turned
from tilewright.schedule.panels import pack_columns, pack_constants, prefetch_panels
from tilewright.schedule.parallelize import parallelize_outer
from tilewright.schedule.parts import is_deep, sum_in_parts
from tilewright.schedule.roles import (
    Roles,
    assign_roles,
    axes_read,
    for_its_rows,
    one_nest,
    operands_moving,
    separate_sums,
    turned_roles,
)
from tilewright.schedule.tiles import Tile
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def schedule_contraction(
    s: Schedule, lowered: Lowered, target: Target, decision: Decision | None = None
) -> None:
    """Tile the reduction stage and compute the stages after it on each tile in registers: as the cost model chooses, or
    as `decision` says.

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    stage, loops, accumulator = one_nest(s, lowered)
    tile_contraction(s, stage, loops, accumulator, target, decision)
    parallelize_outer(s, target)


def tile_contraction(
    s: Schedule,
    stage: Stage,
    loops: list[Op],
    accumulator: Value,
    target: Target,
    decision: Decision | None = None,
) -> None:
    """Compute the sums of `stage`, which `accumulator` holds, by tiles in registers within the nest `loops` that
    reads them. ScheduleError when it has not this form."""
    axis_of = axes_read(loops, accumulator)
    roles = assign_roles(stage, loops, accumulator, axis_of)
    constants = [s.func.args[k] for k in s.func.attrs.get("constants", ())]
    group = group_of_products(s, stage, roles, axis_of, constants, target)
    shape = describe(stage, roles, axis_of, constants)
    if group is not None:
        shape = replace(shape, uncut="groups of integers are multiplied in tiles of the whole depth")
    if decision is None:
        turned = (
            None if group is not None else turned_roles(stage, loops, accumulator, axis_of, roles, constants)
        )
        if turned is not None:
            across = describe(stage, turned, axis_of, constants)
            across = replace(across, exact_columns=True, turned=True)
            reason = why_not_turned(shape, across, target)
            if reason:
                s.declined.append(f"vectors along the constants, the result transposed: {reason}")
            else:
                roles, shape = turned, across
        choice = choose(shape, target)
        decision = choice.decision
        s.declined += choice.declined
        if decision.blocks is None:
            s.declined.append(f"not cut into blocks: {why_not_cut(shape, choice)}")
    if decision.blocks is not None:
        blocking = blocking_of(stage, shape, decision.blocks)
        tile_in_blocks(s, stage, roles, axis_of, accumulator, decision.tile, blocking, target)
        return
    tile = for_its_rows(decision.tile, roles)
    column_tile, row_tile, inner = _tile_loops(s, roles, tile)
    around = _outer_order(stage, roles, axis_of, column_tile, row_tile, decision.columns_outside)
    if not around:  # all of it is one tile; the sums still need a loop to be computed in
        whole = s.split(inner[0], extent_of(inner[0]).value)
        around, inner[0] = [whole.outer], whole.inner
    s.reorder(*around, *inner)
    costly = any(op.name in COSTLY for op in inner[-1].walk())
    deep = buffer_type(accumulator).dtype.is_float and is_deep(stage.reduce)
    fused = s.fuse_at(accumulator, around[-1], space="scratch" if costly or deep else "reg", guard="loads")
    nests = _tile_nests(s, stage, roles, tile, axis_of, fused.copies, group)
    update = nests[1]
    drain = [_in_registers(s, fused.buffer, nests, tile)] if costly and not deep else []
    summing = [*update.outer, *update.tile]
    pack_constants(s, [[*summing, *update.group]])
    depth = [o for o in update.outer if o not in around and extent_of(o) != 1]
    if not update.group:
        pack_columns(s, [summing], depth, around[: len(around) - len(row_tile)], row_tile)
    s.simplify()
    for nest in (*nests, *drain):
        _mark_tile(s, nest)
    _mark_tile(s, Nest([], inner), unrolled=not costly)
    if deep:
        for part in sum_in_parts(s, fused.buffer, [o for o in update.outer if o.parent is not None]):
            _mark_tile(s, _tile_nest(s, part.clear, tile))
            _mark_tile(s, _tile_nest(s, part.add, tile))
        s.simplify()
    prefetch_panels(s, update.outer[-1], around, target)


@dataclass(eq=False)
class Nest:
    """A nest on the register tile: loops around (reductions among them), and the tile's own, vector last. Inside of
    that may be the loop over a group of products that are added at once."""

    outer: list[Op]
    tile: list[Op]
    group: list[Op] = field(default_factory=list)


def _outer_order(
    stage: Stage,
    roles: Roles,
    axis_of: dict[Op, int],
    columns: list[Op],
    rows: list[Op],
    columns_outside: bool,
) -> list[Op]:
    """Loops around the tile. What only moves the rows' operand goes inside of the column tiles when these are to be
    read once; else outside, so that rows are read once."""
    vector = operands_moving(stage, axis_of[roles.vector])
    batch = [o for o in roles.outer if operands_moving(stage, axis_of.get(o)) & vector]
    space = [o for o in roles.outer if o not in batch]
    return [*batch, *columns, *space, *rows] if columns_outside else [*batch, *space, *columns, *rows]


def _tile_loops(s: Schedule, roles: Roles, tile: Tile) -> tuple[list[Op], list[Op], list[Op]]:
    """Split the axes; returns (column tiles, row tiles, inner loops from the outermost)."""
    inner: list[Op] = []
    column_tile: list[Op] = []
    row_tile: list[Op] = []
    if roles.row is not None:
        if extent_of(roles.row) == tile.rows:
            inner.append(roles.row)
        else:
            whole = tile.rows > 1 and s.at_least(extent_of(roles.row), tile.rows, of_few=True)
            parts = s.split(roles.row, tile.rows, tail="overlap" if whole else "guard")
            row_tile.append(parts.outer)
            inner.append(parts.inner)
    vector = roles.vector
    if roles.block is not None:
        parts = s.split(roles.block, tile.columns)
        column_tile.append(parts.outer)
        inner.append(parts.inner)
    elif extent_of(vector) != tile.lanes:
        if extent_of(vector) != tile.lanes * tile.columns:
            parts = s.split(vector, tile.lanes * tile.columns)
            column_tile.append(parts.outer)
            vector = parts.inner
        if tile.columns > 1:
            within = s.split(vector, tile.lanes)
            inner.append(within.outer)
            vector = within.inner
    return column_tile, row_tile, [*inner, vector]


def _tile_nests(
    s: Schedule,
    stage: Stage,
    roles: Roles,
    tile: Tile,
    axis_of: dict[Op, int],
    copies: dict[Op, Op],
    group: Op | None,
) -> tuple[Nest, Nest]:
    """Separate clearing from summing, and bring the reduction loops (but for that of a `group`) outside of the
    tile's."""
    reduce = [copies[o] for o in stage.reduce]
    if not reduce:
        raise ScheduleError("it sums over no axis")
    parts = separate_sums(s, stage, copies)
    nests = []
    groups = [] if group is None else [copies[group]]
    for loops, summing, inmost in ((parts.before, [], []), (parts.after, reduce, groups)):
        inner = [loops[axis_of[o]] for o in (roles.row, roles.block) if o is not None]
        vector = loops[axis_of[roles.vector]]
        around = [o for o in loops if o not in (*inner, vector)]
        if roles.block is None and tile.columns > 1 and extent_of(vector) != tile.lanes:
            within = s.split(vector, tile.lanes)
            inner.append(within.outer)
            vector = within.inner
        nest = Nest([*around, *summing], [*inner, vector], inmost)
        s.reorder(*nest.outer, *nest.tile, *nest.group)
        nests.append(nest)
    return nests[0], nests[1]


def _in_registers(s: Schedule, sums: Value, nests: tuple[Nest, Nest], tile: Tile) -> Nest:
    """Keep the sums of a tile in registers while summing, and in memory for a costly epilogue: such an epilogue is a
    loop, as writing it out for every vector of the tile would make megabytes of code."""
    first, last = (nest.outer[0] if nest.outer else nest.tile[0] for nest in nests)
    return _tile_nest(s, s.cache(sums, first, last).drain, tile)


def _tile_nest(s: Schedule, loops: list[Op], tile: Tile) -> Nest:
    """Loops over the elements of a tile, the last of which becomes one vector."""
    vector = loops[-1]
    others = loops[:-1]
    if extent_of(vector).is_const and extent_of(vector).value > tile.lanes:
        parts = s.split(vector, tile.lanes)
        others, vector = [*others, parts.outer], parts.inner
    return Nest([], [*others, vector])


def _mark_tile(s: Schedule, nest: Nest, *, unrolled: bool = True) -> None:
    """The innermost loop becomes a vector, the tile's others are written out; loops of one round are gone."""
    *others, vector = nest.tile
    for loop in nest.group:
        s.dot(loop)
    if vector.parent is not None:
        s.vectorize(vector)
    for loop in others:
        if loop.parent is not None and unrolled:
            s.clamp(loop)
            s.unroll(loop)
