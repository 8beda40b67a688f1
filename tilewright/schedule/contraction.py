"""The default schedule of contractions (matrix products, convolutions) and of other reductions with a vector axis.

    for outer parallel {                      batch, column tiles, image rows, row tiles
      acc: reg[rows, columns, lanes] = 0
      for k { acc[..] += A[row, k] * B[k, column] }      rows and columns unrolled, lanes one vector
      y[row, column] = epilogue(acc[..])
    }

The tile comes from `tiles.choose_tile`; constant operands are packed in the order in which this nest reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import COSTLY
from tilewright.ir.sym import Sym, ceildiv
from tilewright.ir.types import product
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.nest import body_of, buffer_type, extent_of, loop_var
from tilewright.loops.packing import Packing
from tilewright.schedule.access import loads_in, stores_in, stride_in, variables
from tilewright.schedule.packing import packing_for
from tilewright.schedule.parallelize import parallelize_outer
from tilewright.schedule.tiles import Contraction, Registers, Tile, choose_tile
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

VECTOR_BYTES = 64
"""Bytes of one vector of a tile: one AVX-512 register, two of AVX2, four of NEON; LLVM splits it as needed."""


@dataclass(eq=False)
class _Roles:
    """Which loop of the last stage plays which part. `block` is a column axis that the layout itself has."""

    vector: Op
    row: Op | None
    block: Op | None
    outer: list[Op]


def schedule_contraction(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Tile the reduction stage and compute the stages after it on each tile in registers.

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    stage, loops, accumulator = _one_nest(s, lowered)
    axis_of = _axes_read(loops, accumulator)
    roles = _assign_roles(stage, loops, accumulator, axis_of)
    tile = _tile_for(stage, roles, accumulator, target)
    column_tile, row_tile, inner = _tile_loops(s, roles, tile)
    around = _outer_order(stage, roles, axis_of, column_tile, row_tile, target)
    if not around:
        raise ScheduleError("every axis of the contraction is in its register tile")
    s.reorder(*around, *inner)
    costly = any(op.name in COSTLY for op in inner[-1].walk())
    fused = s.fuse_at(accumulator, around[-1], space="scratch" if costly else "reg", guard="loads")
    nests = _tile_nests(s, stage, roles, tile, axis_of, fused.copies)
    update = nests[1]
    drain = [_in_registers(s, fused.buffer, nests, tile)] if costly else []
    _pack_constants(s, update)
    _pack_columns(s, update, around[: len(around) - len(row_tile)], row_tile)
    s.simplify()
    for nest in (*nests, *drain):
        _mark_tile(s, nest)
    _mark_tile(s, _Nest([], inner), unrolled=not costly)
    _prefetch_panels(s, update, around, target)
    parallelize_outer(s, target)


@dataclass(eq=False)
class _Nest:
    """A nest on the register tile: loops around (reductions among them), and the tile's own, vector last."""

    outer: list[Op]
    tile: list[Op]


def _one_nest(s: Schedule, lowered: Lowered) -> tuple[Stage, list[Op], Value]:
    """The reduction stage, the loops of the one nest that follows it, and the buffer between the two."""
    reductions = [st for st in lowered.stages if st.kind == "reduce"]
    if len(reductions) != 1 or lowered.stages[0] is not reductions[0]:
        raise ScheduleError("it is not one reduction with elementwise work after it")
    stage = reductions[0]
    rest = lowered.stages[1:]
    if buffer_type(stage.buffer).space == "global":
        if rest:
            raise ScheduleError("the sum itself is an output beside others")
        made = s.cache_write(stage.buffer)
        return stage, made.drain, made.buffer
    first = rest[0].axes
    for other in rest[1:]:
        for a, b in zip(first, other.axes, strict=True):
            s.fuse_siblings(a, b)
    return stage, list(first), stage.buffer


def _axes_read(loops: list[Op], accumulator: Value) -> dict[Op, int]:
    """For each loop of the last nest, the axis of the sum that it runs over."""
    by_var = {loop_var(o): o for o in loops}
    reads = [op for op in loads_in(loops[0]) if op.operands[0] is accumulator]
    if not reads or any(variables(r.attrs["idx"]) - set(by_var) for r in reads):
        raise ScheduleError("the sum is not read element by element")
    return {by_var[v]: k for k, v in enumerate(reads[0].attrs["idx"]) if v in by_var}


def _assign_roles(stage: Stage, loops: list[Op], accumulator: Value, axis_of: dict[Op, int]) -> _Roles:
    """Vector: the axis in which the result is contiguous. Row: an axis that only the broadcast operand moves in."""
    store = stores_in(loops[0])[0]
    live = [o for o in loops if extent_of(o) != 1]
    vector = next((o for o in live if stride_in(store, loop_var(o)) == 1), None)
    if vector is None or vector not in axis_of:
        raise ScheduleError("the result is not contiguous in any axis of the sum")
    moved = {o: _operands_moving(stage, axis_of.get(o)) for o in live}
    with_vector = moved[vector]
    block = row = None
    for o in live:
        if o is vector:
            continue
        only_columns = bool(moved[o]) and moved[o] <= with_vector and extent_of(o).is_const
        if only_columns and _known(extent_of(vector)) == VECTOR_BYTES / _bytes(accumulator):
            block = o if len(with_vector) == 1 else block
        if moved[o] - with_vector or (len(with_vector) > 1 and moved[o]):
            row = o
    outer = [o for o in loops if o not in (vector, row, block)]
    return _Roles(vector, row, block if block is not row else None, outer)


def _bytes(buffer: Value) -> int:
    return buffer_type(buffer).dtype.bytes


def _operands_moving(stage: Stage, axis: int | None) -> set[Op]:
    """Loads of the reduction's operands whose address depends on axis `axis` of the sum (one tensor may be both)."""
    if axis is None or axis >= len(stage.axes):
        return set()
    v = loop_var(stage.axes[axis])
    loads = [op for op in loads_in(stage.axes[0]) if op.operands[0] is not stage.buffer]
    return {op for op in loads if v in variables(op.attrs["idx"])}


def _tile_for(stage: Stage, roles: _Roles, accumulator: Value, target: Target) -> Tile:
    lanes = max(1, VECTOR_BYTES // _bytes(accumulator))
    in_register = max(1, target.vector_bits // 8 // _bytes(accumulator))
    registers = Registers(target.vector_registers, in_register, target.embedded_broadcast)
    width = extent_of(roles.vector)
    while width.is_const and lanes > 1 and lanes // 2 >= width.value:
        lanes //= 2
    columns = extent_of(roles.block) if roles.block is not None else ceildiv(width, lanes)
    rows = extent_of(roles.row) if roles.row is not None else None
    shape = Contraction(
        rows=1 if rows is None else _known(rows),
        columns=_known(columns),
        depth=_known(product(extent_of(o) for o in stage.reduce)),
        lanes=lanes,
        element=_bytes(accumulator),
        exact_columns=roles.block is not None,
    )
    return choose_tile(shape, registers, target.caches.l2)


def _outer_order(
    stage: Stage, roles: _Roles, axis_of: dict[Op, int], columns: list[Op], rows: list[Op], target: Target
) -> list[Op]:
    """Loops around the tile. What only moves the rows' operand goes inside of the column tiles when the columns'
    operand does not fit the second-level cache, so that it is read once; else outside, so that rows are read once."""
    vector = _operands_moving(stage, axis_of[roles.vector])
    types = [buffer_type(load.operands[0]) for load in vector]
    sizes = [product(type.shape) * type.dtype.bytes for type in types]
    streams = any(not size.is_const or size.value > target.caches.l2 // 2 for size in sizes)
    moving = {o: _operands_moving(stage, axis_of.get(o)) for o in roles.outer}
    batch = [o for o in roles.outer if moving[o] & vector]
    space = [o for o in roles.outer if o not in batch]
    return [*batch, *columns, *space, *rows] if streams else [*batch, *space, *columns, *rows]


def _known(extent: Sym) -> int | None:
    return extent.value if extent.is_const else None


def _tile_loops(s: Schedule, roles: _Roles, tile: Tile) -> tuple[list[Op], list[Op], list[Op]]:
    """Split the axes; returns (column tiles, row tiles, inner loops from the outermost)."""
    inner: list[Op] = []
    column_tile: list[Op] = []
    row_tile: list[Op] = []
    if roles.row is not None:
        if extent_of(roles.row) == tile.rows:
            inner.append(roles.row)
        else:
            rows = extent_of(roles.row)
            whole = rows.is_const and rows.value >= tile.rows
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
    s: Schedule, stage: Stage, roles: _Roles, tile: Tile, axis_of: dict[Op, int], copies: dict[Op, Op]
) -> tuple[_Nest, _Nest]:
    """Separate clearing from summing, and bring the reduction loops outside of the tile's."""
    axes = [copies[o] for o in stage.axes]
    reduce = [copies[o] for o in stage.reduce]
    if not reduce:
        raise ScheduleError("it sums over no axis")
    innermost = body_of(axes[-1]).ops
    parts = s.fission(innermost[innermost.index(reduce[0]) - 1], len(axes))
    nests = []
    for loops, summing in ((parts.before, []), (parts.after, reduce)):
        inner = [loops[axis_of[o]] for o in (roles.row, roles.block) if o is not None]
        vector = loops[axis_of[roles.vector]]
        around = [o for o in loops if o not in (*inner, vector)]
        if roles.block is None and tile.columns > 1 and extent_of(vector) != tile.lanes:
            within = s.split(vector, tile.lanes)
            inner.append(within.outer)
            vector = within.inner
        nest = _Nest([*around, *summing], [*inner, vector])
        s.reorder(*nest.outer, *nest.tile)
        nests.append(nest)
    return nests[0], nests[1]


def _pack_constants(s: Schedule, update: _Nest) -> None:
    """Lay constant operands out in the order in which the summing nest reads them."""
    loops = [*update.outer, *update.tile]
    for index in s.func.attrs.get("constants", ()):
        operand = s.func.args[index]
        loads = [op for op in loops[0].walk() if op.name == "load" and op.operands[0] is operand]
        if len(loads) != 1 or any(u is not loads[0] for u in operand.users):
            continue
        packing = packing_for(loads[0], loops)
        if packing is not None:
            s.pack_argument(operand, packing)


def _pack_columns(s: Schedule, update: _Nest, around: list[Op], rows: list[Op]) -> None:
    """Copy operands whose columns lie apart in memory into panels, once for each column tile.

    Elements apart in the vector axis would be gathered one by one in every step of every row tile; rows far apart
    (more than a few cache lines) share few sets of the first-level cache and push one another out.
    """
    v = loop_var(update.tile[-1])
    reduction = [o for o in update.outer if o not in around and extent_of(o) != 1]
    for load in loads_in([*update.outer, *update.tile][0]):
        operand = load.operands[0]
        stride = stride_in(load, v)
        moving = [axis for axis, i in enumerate(load.attrs["idx"]) if v in i.vars]
        if buffer_type(operand).space != "global" or len(moving) != 1 or not around:
            continue
        if stride == 1 and not (_is_far(load, reduction) and _is_reused(rows)):
            continue
        order = [axis for axis in range(len(load.attrs["idx"])) if axis != moving[0]]
        packing = Packing(((),) * len(load.attrs["idx"]), (*order, moving[0]))
        try:
            fill = s.pack(operand, around[-1], packing, only=load).fill
            if stride == 1:
                s.vectorize(fill[-1], extent_of(update.tile[-1]).value)
        except ScheduleError:
            continue


def _prefetch_panels(s: Schedule, update: _Nest, around: list[Op], target: Target) -> None:
    """While one panel of a packed operand is used, bring the next one from far memory into the second-level cache:
    a panel is read faster than that memory delivers, and then again for each tile of rows."""
    packed = [s.func.args[index] for index in s.func.attrs.get("packed", {})]
    for load in loads_in(update.outer[-1]):
        operand = load.operands[0]
        if operand not in packed or _bytes_of(operand) <= target.caches.l2 // 2:
            continue
        moving = [o for o in around if o.parent is not None and stride_in(load, loop_var(o)) != 0]
        if moving:
            try:
                s.prefetch(load, moving[-1])
            except ScheduleError:
                continue


def _bytes_of(operand: Value) -> int:
    """Of a buffer of known size."""
    type = buffer_type(operand)
    return int(product(type.shape).value) * type.dtype.bytes


FAR_BYTES = 1024
REUSES = 4


def _is_far(load: Op, reduction: list[Op]) -> bool:
    """Whether one step of the innermost reduction moves the load by many cache lines, in an operand that is not
    packed already."""
    if not reduction:
        return False
    step = stride_in(load, loop_var(reduction[-1]))
    far = step is None or not step.is_const or abs(step.value) * _bytes(load.operands[0]) >= FAR_BYTES
    return far


def _is_reused(rows: list[Op]) -> bool:
    """Whether a panel serves enough row tiles to pay for copying it."""
    return any(not extent_of(o).is_const or extent_of(o).value >= REUSES for o in rows)


def _in_registers(s: Schedule, sums: Value, nests: tuple[_Nest, _Nest], tile: Tile) -> _Nest:
    """Keep the sums of a tile in registers while summing, and in memory for a costly epilogue: such an epilogue is a
    loop, as writing it out for every vector of the tile would make megabytes of code."""
    first, last = (nest.outer[0] if nest.outer else nest.tile[0] for nest in nests)
    loops = s.cache(sums, first, last).drain
    vector = loops[-1]
    others = loops[:-1]
    if extent_of(vector).is_const and extent_of(vector).value > tile.lanes:
        parts = s.split(vector, tile.lanes)
        others, vector = [*others, parts.outer], parts.inner
    return _Nest([], [*others, vector])


def _mark_tile(s: Schedule, nest: _Nest, *, unrolled: bool = True) -> None:
    """The innermost loop becomes a vector, the tile's others are written out; loops of one round are gone."""
    *others, vector = nest.tile
    if vector.parent is not None:
        s.vectorize(vector)
    for loop in others:
        if loop.parent is not None and unrolled:
            s.unroll(loop)
