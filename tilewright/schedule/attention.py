"""The default schedule of attention: two products, with work on the rows of the first between them.

    for batch, head parallel {
      pack the keys, and the values, in panels of columns
      for block of query rows {
        scores of the block = product in register tiles, with its epilogue         scale, mask
        for row { greatest score; weights = exp(...); sum of weights }
        results of the block = weights times values in register tiles, with its epilogue
      }
    }

The scores of a block stay in the second-level cache; those of a whole head are never stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import Sym, ceildiv
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.nest import body_of, buffer_type, extent_of, is_loop, kind_of, loop_var
from tilewright.loops.packing import Packing
from tilewright.schedule.access import loads_in, stores_in, stride_in
from tilewright.schedule.maps import lanes_for
from tilewright.schedule.parallelize import parallelize_outer
from tilewright.schedule.tiles import Contraction, Registers, Tile, choose_tile
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target

VECTOR_BYTES = 64
MOST_ROWS = 72
"""Rows of a block at most; more would only push keys and values out of the cache."""
BLOCK_SHARE = 0.5
"""Of the second-level cache, what the scores and weights of a block may fill."""
LONG = 1024
"""Stands for a number of keys that is not known."""


@dataclass(eq=False)
class _Form:
    """The stages of an attention kernel, and the parts that the loops of its last nest play."""

    scores: Stage
    epilogue: Stage | None  # the first of `rows`, where it alone reads the scores
    rows: list[Stage]
    values: Stage
    batch: list[Op]
    row: Op
    column: Op
    row_axis: int  # of the values' own axes
    column_axis: int


@dataclass(eq=False)
class _Nest:
    """A nest on a register tile: loops around it (reductions among them), and the tile's own, vector last."""

    outer: list[Op]
    tile: list[Op]


def schedule_attention(s: Schedule, lowered: Lowered, target: Target) -> None:
    """One block of query rows after the other, each from its scores to its results.

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    form = _form_of(s, lowered)
    keys = extent_of(form.values.reduce[0])
    rows = _block_rows(extent_of(form.row), keys, target)
    tile = _tile_for(rows, extent_of(form.column), keys, target)
    s.reorder(*form.batch, form.row, form.column)
    block = s.split(form.row, rows, tail="overlap" if extent_of(form.row).is_const else "guard")
    around, last = _tile_loops(s, block.inner, form.column, tile)
    values = s.fuse_at(form.values.buffer, around[-1], space="reg", guard="loads")
    copies = dict(values.copies)
    for stage in reversed(form.rows):
        copies |= s.fuse_at(stage.buffer, block.outer, guard="loads").copies
    home = form.batch[-1] if form.batch else block.outer
    scores = _scores(s, form, rows, block.outer, copies, target)
    sums = _sum_nests(s, form.values, values.copies, form.row_axis, form.column_axis, tile)
    for nest in (scores[1], sums[1]):
        _pack_columns(s, nest, home)
    _join_rows(s, form, copies)
    s.simplify()
    for nest in (*scores, *sums, last):
        _mark_tile(s, nest)
    parallelize_outer(s, target)
    for stage in form.rows:
        _vectorize_rows(s, copies[(*stage.axes, *stage.reduce)[-1]], target)
    s.simplify()


# The form


def _form_of(s: Schedule, lowered: Lowered) -> _Form:
    stages = lowered.stages
    sums = [k for k, st in enumerate(stages) if st.kind == "reduce" and st.combine == "add"]
    if len(sums) < 2 or sums[0] != 0:
        raise ScheduleError("it is not a product of the rows of another product")
    scores, values = stages[0], stages[sums[-1]]
    last = _last_nest(s, stages, sums[-1])
    rows = stages[1 : sums[-1]]
    weights = _load_of({st.buffer for st in rows}, values)
    row_axis = _axis(values, weights.attrs["idx"][-2])
    moving = {v for i in weights.attrs["idx"] for v in i.vars}
    columns = [k for k, o in enumerate(values.axes) if loop_var(o) not in moving and extent_of(o) != 1]
    if len(columns) != 1 or len(values.reduce) != 1:
        raise ScheduleError("the second product has not one axis of columns")
    loops = _loops_by_axis(last, values.buffer)
    row, column = loops.get(row_axis), loops.get(columns[0])
    if row is None or column is None or stride_in(stores_in(last[0])[0], loop_var(column)) != 1:
        raise ScheduleError("the result is not contiguous in the columns of the second product")
    batch = [o for o in last if o not in (row, column)]
    return _Form(scores, _epilogue_of(scores, rows), rows, values, batch, row, column, row_axis, columns[0])


def _last_nest(s: Schedule, stages: list[Stage], values: int) -> list[Op]:
    """The loops of the one nest after the second product."""
    rest = stages[values + 1 :]
    if buffer_type(stages[values].buffer).space == "global":
        if rest:
            raise ScheduleError("the second product itself is an output beside others")
        made = s.cache_write(stages[values].buffer)
        stages[values].buffer = made.buffer
        return made.drain
    for other in rest[1:]:
        for a, b in zip(rest[0].axes, other.axes, strict=True):
            s.fuse_siblings(a, b)
    return list(rest[0].axes)


def _load_of(buffers: set[Value], stage: Stage) -> Op:
    """The load of the rows in the second product."""
    v = loop_var(stage.reduce[0])
    found = [
        op for op in loads_in(stage.axes[0]) if op.operands[0] in buffers and v in op.attrs["idx"][-1].vars
    ]
    if len(found) != 1 or len(found[0].attrs["idx"]) < 2:
        raise ScheduleError("the second product does not read one tensor of rows")
    return found[0]


def _axis(stage: Stage, v: Sym) -> int:
    """The axis of a stage whose loop variable is `v`."""
    for k, loop in enumerate(stage.axes):
        if loop_var(loop) is v:
            return k
    raise ScheduleError("the rows are not an axis of the result")


def _loops_by_axis(loops: list[Op], sums: Value) -> dict[int, Op]:
    """For each axis of the sums, the loop of the last nest that runs over it."""
    by_var = {loop_var(o): o for o in loops}
    reads = [op for op in loads_in(loops[0]) if op.operands[0] is sums]
    if len(reads) != 1:
        raise ScheduleError("the second product is not read element by element")
    return {k: by_var[i] for k, i in enumerate(reads[0].attrs["idx"]) if i in by_var}


def _epilogue_of(scores: Stage, rows: list[Stage]) -> Stage | None:
    """The stage of elementwise work on the scores, where it alone reads them."""
    own = {*scores.axes[0].walk(), *rows[0].axes[0].walk()}
    alone = all(u in own for u in scores.buffer.users)
    return rows[0] if alone and rows[0].kind == "map" and len(rows[0].axes) == len(scores.axes) else None


# Sizes


def _block_rows(rows: Sym, keys: Sym, target: Target) -> int:
    """Rows of a block: as many as the cache holds with their weights, spread evenly over the blocks."""
    row_bytes = 2 * 4 * (keys.value if keys.is_const else LONG)
    most = max(4, min(MOST_ROWS, int(target.caches.l2 * BLOCK_SHARE) // row_bytes))
    if not rows.is_const:
        return most
    blocks = -(-rows.value // most)
    return -(-rows.value // blocks)


def _tile_for(rows: int, columns: Sym, depth: Sym, target: Target) -> Tile:
    lanes = VECTOR_BYTES // 4
    in_register = max(1, target.vector_bits // 32)
    registers = Registers(target.vector_registers, in_register, target.embedded_broadcast)
    shape = Contraction(
        rows=rows,
        columns=ceildiv(columns, lanes).value if columns.is_const else None,
        depth=depth.value if depth.is_const else None,
        lanes=lanes,
    )
    return choose_tile(shape, registers, target.caches.l2)


# Tiles


def _tile_loops(s: Schedule, row: Op, column: Op, tile: Tile) -> tuple[list[Op], _Nest]:
    """Split a nest of rows and columns into tiles: the loops around a tile, and those of the tile."""
    rows, columns = extent_of(row), extent_of(column)
    outer: list[Op] = []
    width = tile.lanes * tile.columns
    if columns != width:
        parts = s.split(column, width, tail="guard")
        outer.append(parts.outer)
        column = parts.inner
    parts = s.split(row, tile.rows, tail="overlap" if rows.is_const else "guard")
    outer.append(parts.outer)
    inner = [parts.inner]
    if tile.columns > 1:
        parts = s.split(column, tile.lanes)
        inner.append(parts.outer)
        column = parts.inner
    inner.append(column)
    s.reorder(*outer, *inner)
    return outer, _Nest([], inner)


def _scores(
    s: Schedule, form: _Form, rows: int, block: Op, copies: dict[Op, Op], target: Target
) -> tuple[_Nest, _Nest, _Nest]:
    """Compute the scores of a block in register tiles: nests that clear them, sum them, and store them."""
    sums = form.scores.buffer
    if form.epilogue is None:
        whole = s.fuse_at(sums, block, guard="loads")
        copies |= whole.copies
        first = whole.nests[0]
        made = s.cache(whole.buffer, first, space="scratch")
        sums, loops = made.buffer, made.drain
    else:
        loops = [copies[o] for o in form.epilogue.axes]
    depth = extent_of(form.scores.reduce[0])
    tile = _tile_for(rows, extent_of(loops[-1]), depth, target)
    around, last = _tile_loops(s, loops[-2], loops[-1], tile)
    fused = s.fuse_at(sums, around[-1], space="reg", guard="loads")
    inside = {old: fused.copies[new] for old, new in copies.items() if new in fused.copies} | fused.copies
    rank = len(form.scores.axes)
    return (*_sum_nests(s, form.scores, inside, rank - 2, rank - 1, tile), last)


def _sum_nests(
    s: Schedule, stage: Stage, copies: dict[Op, Op], row_axis: int, column_axis: int, tile: Tile
) -> tuple[_Nest, _Nest]:
    """Separate clearing from summing, and bring the reduction outside of the tile."""
    axes = [copies[o] for o in stage.axes]
    reduce = [copies[o] for o in stage.reduce]
    innermost = body_of(axes[-1]).ops
    parts = s.fission(innermost[innermost.index(reduce[0]) - 1], len(axes))
    nests = []
    for loops, summing in ((parts.before, []), (parts.after, reduce)):
        row, column = loops[row_axis], loops[column_axis]
        around = [o for o in loops if o not in (row, column)]
        inner = [row]
        if tile.columns > 1:
            within = s.split(column, tile.lanes)
            inner.append(within.outer)
            column = within.inner
        nest = _Nest([*around, *summing], [*inner, column])
        s.reorder(*nest.outer, *nest.tile)
        nests.append(nest)
    return nests[0], nests[1]


def _mark_tile(s: Schedule, nest: _Nest) -> None:
    """The innermost loop becomes a vector, the tile's others are written out; loops of one round are gone."""
    *others, vector = nest.tile
    if vector.parent is not None:
        s.vectorize(vector)
    for loop in others:
        if loop.parent is not None:
            s.unroll(loop)


# Operands


FAR_BYTES = 1024


def _pack_columns(s: Schedule, nest: _Nest, home: Op) -> None:
    """Copy the operand that moves with the columns into panels as wide as the tile, once for each round of `home`."""
    vector = nest.tile[-1]
    width = extent_of(vector).value
    for loop in nest.tile[1:-1]:
        width *= extent_of(loop).value
    v = loop_var(vector)
    for load in loads_in((*nest.outer, *nest.tile)[0]):
        moving = [axis for axis, i in enumerate(load.attrs["idx"]) if v in i.vars]
        if buffer_type(load.operands[0]).space != "global" or len(moving) != 1:
            continue
        (axis,) = moving
        contiguous = stride_in(load, v) == 1
        if contiguous and not _is_far(load, nest.outer[-1]):
            continue
        rank = len(load.attrs["idx"])
        pieces = [k if k <= axis else k + 1 for k in range(rank) if k != axis]
        packing = Packing(
            tuple((width,) if k == axis else () for k in range(rank)), (axis, *pieces, axis + 1)
        )
        try:
            fill = s.pack(load.operands[0], home, packing, only=load).fill
            if contiguous:
                s.vectorize(fill[-1], VECTOR_BYTES // 4)
        except ScheduleError:
            continue


def _is_far(load: Op, reduction: Op) -> bool:
    """Whether a step of the reduction moves the load by many cache lines."""
    step = stride_in(load, loop_var(reduction))
    return step is None or not step.is_const or abs(step.value) * 4 >= FAR_BYTES


# Rows


def _join_rows(s: Schedule, form: _Form, copies: dict[Op, Op]) -> None:
    """All stages of a row one after the other, while the row is in the nearest cache."""
    nests = [st for st in form.rows if st is not form.epilogue]
    for second in nests[1:]:
        a, b = ([copies[o] for o in st.axes[:-1]] for st in (nests[0], second))
        try:
            for outer, inner in zip(a, b, strict=True):
                s.fuse_siblings(outer, inner)
        except ScheduleError:
            return


def _vectorize_rows(s: Schedule, loop: Op, target: Target) -> None:
    """A reduction into lanes, or independent elements."""
    if loop.parent is None or any(is_loop(op) for op in body_of(loop).walk()) or kind_of(loop) != "serial":
        return
    lanes = lanes_for(loop, target)
    if lanes < 2:
        return
    try:
        s.vectorize_reduction(loop, lanes, loop, tail="peel")
        return
    except ScheduleError:
        pass
    try:
        s.vectorize(loop, lanes, tail="peel")
    except ScheduleError:
        return
