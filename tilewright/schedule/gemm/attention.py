"""The default schedule of attention: two products, with work on the rows of the first between them.

    for batch, head parallel {
      pack the keys, and the values, in panels of columns
      for block of query rows {
        scores of the block = product in register tiles, with its epilogue         scale, mask
        for row { greatest score; weights = exp(...); sum of weights }
        results of the block = weights times values in register tiles, with its epilogue
      }
    }

The scores of a block stay in L2; those of a whole head are never stored. A few rows, such as the one query of a
decoder, are a block of their own: nothing is packed, as every key and value is read only once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.cost.attention import (
    FEW_ROWS,
    KEYS_OF_A_PIECE,
    MOST_SHARING,
    columns_of_piece,
    heads_at_once,
    is_one_block,
    most_rows,
    rows_of_block,
    rows_of_chunk,
    tile_of_products,
)
from tilewright.cost.gemm.register_tile import Tile
from tilewright.graph.fusion.region import Region
from tilewright.graph.fusion.rules import the_contraction
from tilewright.graph.fusion.strategy import Facts, Group
from tilewright.graph.match import dtype_of, is_constant, shape_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.scalar import scalar_operation
from tilewright.ir.sym import Sym
from tilewright.loops.edit import body_of, enclosing_loops, extent_of, is_loop, loop_var, loops_in, reason_of
from tilewright.loops.lanes.vectorize import MAX_LANES
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.gemm.contraction import is_contraction
from tilewright.schedule.gemm.dot_products import dot_for, split_group
from tilewright.schedule.gemm.panels import pack_all_columns
from tilewright.schedule.gemm.reduction_nest import copied, reading_nest, reduction_of, with_loop_of
from tilewright.schedule.gemm.register_tile import Nest, TileSums, mark, tile_sums
from tilewright.schedule.gemm.rounded_rows import MOST_UNROLLED, unroll_all
from tilewright.schedule.maps.elementwise import is_elementwise
from tilewright.schedule.rows.row_reduction import is_row_reduction, share_iterations
from tilewright.schedule.steps.access import iterations_of, known, loads_in, stores_in, stride_in
from tilewright.schedule.steps.parallelize import parallelize_each, parallelize_outer
from tilewright.schedule.steps.tiling import column_tiles, loop_around, tile_loop
from tilewright.schedule.steps.transpose_tiles import schedule_squares, side_of, transposing
from tilewright.schedule.steps.vectorize import vectorize_inner
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


@dataclass(frozen=True, eq=False)
class _Shares:
    """Loops of few rows of heads that share keys: what threads take `pieces` of, keys and columns; rows of the scores,
    of which each piece has all, so that no index is divided by their number; and the heads of a key."""

    pieces: Sequence[Op] = ()
    rows: Sequence[Op] = ()
    heads: Sequence[Op] = ()


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """The stages of an attention kernel, and the parts that the loops of its last nest play."""

    scores: Stage
    epilogue: Stage | None  # the first of `rows`, where it alone reads the scores
    rows: list[Stage]
    values: Stage
    batch: list[Op]
    row: Op | None  # None for a single row
    column: Op
    row_axis: int  # of the values' own axes; -1 for a single row
    column_axis: int
    scattered: bool  # whether results are stored otherwise than column by column


class Attention(Strategy):
    """A product, reductions of its rows, and a product with these rows.

        weights = softmax(q k^T * scale + mask);  result = weights v

    The scores between the two products are as large as both sequences together; in one kernel they never leave the
    cache. Nothing here knows softmax: any elementwise work and reductions of whole rows may stand between the products.
    """

    name = label = "attention"
    form = "tiles"
    respecialize_remainder = True

    def gather(self, op: Op, facts: Facts) -> Group | NoMatch | None:
        values = facts.region(op)
        if not facts.info(op).is_matrix_product or values is None or not is_contraction(values):
            return None
        found = rows_before(op, facts)
        if found is None:
            return None
        scores, rows = found
        reason = why_apart(op, scores, rows, values, facts, lambda o: _are_multiplied(o, facts.target))
        if reason:
            return NoMatch(reason)
        return with_sources((scores, *rows, values), facts)

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        schedule_attention(s, lowered, target)


def rows_before(op: Op, facts: Facts) -> tuple[Region, list[Region]] | None:
    """The only region of a matrix product that the left operand of another one, `op`, is computed from, and the regions
    of reductions and elementwise work on its rows between the two, in their order. None where there are not both."""
    found: set[Region] = set()
    rows: set[Region] = set()
    waiting = [facts.region(op.operands[0].op)]
    while waiting:
        region = waiting.pop()
        if region is None or region in found or region in rows:
            continue
        if is_contraction(region):
            found.add(region)
        elif is_row_reduction(region) or is_elementwise(region):
            rows.add(region)
            waiting += _feeders(region, facts)
    products = [r for r in found if any(facts.info(o).is_matrix_product for o in r.ops)]
    if len(products) != 1 or len(found) != 1:
        return None
    inside = {products[0]}
    for region in sorted(rows | set(_feeders(facts.region(op), facts)), key=partial(_place, facts=facts)):
        if is_row_reduction(region) or is_elementwise(region):
            inside |= {region} if not inside.isdisjoint(_feeders(region, facts)) else set()
    between = sorted(inside - {products[0]}, key=partial(_place, facts=facts))
    return (products[0], between) if any(map(is_row_reduction, between)) else None


def _feeders(region: Region | None, facts: Facts) -> list[Region]:
    """The regions that a region reads."""
    ops = () if region is None else region.ops
    found = dict.fromkeys(facts.region(v.op) for o in ops for v in o.operands)
    return [r for r in found if r is not None and r is not region]


def with_sources(group: Sequence[Region], facts: Facts) -> Group:
    """The regions with those that only move or widen what nothing but these reads: parts of caches. Keys and values are
    copied, or read but once, and may be widened then."""
    inside = {o for r in group for o in r.ops}
    found: list[Region] = []
    for region in group:
        for feeder in _feeders(region, facts):
            users = {u for o in feeder.ops for v in o.results for u in v.users}
            if (
                feeder not in (*group, *found) and is_elementwise(feeder)
                and users <= {*inside, *feeder.ops} and all(_moves_or_widens(o, facts) for o in feeder.ops)
            ):  # fmt: skip
                found.append(feeder)
    return Group((*found, *group))


def _moves_or_widens(op: Op, facts: Facts) -> bool:
    """Whether elements of its result are those of its only operand, if in more bits."""
    info = facts.info(op)
    if info.is_alias or info.is_index_map:
        return True
    return info.is_pointwise and len(op.operands) == 1 and dtype_of(op.operands[0]).bits < dtype_of(op.result).bits


def _place(region: Region, facts: Facts) -> int:
    """Where a region may stand in the program: behind all that it reads."""
    return max(facts.order[o] for o in region.ops)


def why_apart(
    op: Op, scores: Region, rows: Sequence[Region], values: Region, facts: Facts, multiplies: Callable[[Op], bool]
) -> str:
    """Why all of them are not one kernel, `op` being the second product; "" when they are. `multiplies` says whether
    there is a schedule for the dtypes of a product."""
    if not facts.info(op).reads_rows:
        return "the second product reads the rows as columns"
    first = the_contraction(scores, facts)
    if any(is_constant(v) for o in (first, op) for v in o.operands):
        return "one of the products is with a constant"
    regions = (scores, *rows, values)
    if not _is_read_by(scores, regions):
        return "the scores are needed elsewhere too"
    if not all(_is_read_by(r, regions) for r in rows):
        return "the weights are needed elsewhere too"
    if shape_of(first.result)[:-1] != shape_of(op.operands[0])[:-1]:
        return "the rows are not those of the first product"
    if shape_of(op.result)[-1] == 1:
        return "the second product gives one column"
    if not all(map(multiplies, (first, op))):
        return "the register tiles are for f32, and for what the machine adds up in groups"
    return ""


def _are_multiplied(product: Op, target: Target | None) -> bool:
    """Whether the operands of a product are in f32, or what the machine adds up in groups."""
    left, right, sums = map(dtype_of, (*product.operands, product.result))
    if left is right is sums is dt.f32:
        return True
    return target is not None and dot_for(left, right, sums, target) is not None


def _is_read_by(region: Region, readers: Sequence[Region]) -> bool:
    """Whether nothing but the readers (the region may be one) reads what a region computes."""
    allowed = {o for r in readers for o in r.ops}
    return all(u in allowed for o in region.ops for v in o.results for u in v.users)


def schedule_attention(s: Schedule, lowered: Lowered, target: Target) -> None:
    """One block of query rows after the other, each from its scores to its results.

    ScheduleError when the kernel has not this form; it is then unchanged but for equivalent rewriting.
    """
    form = form_of(s, lowered)
    row = form.row
    shares = _Shares()
    if row is None or _are_few(s, form, row):
        shared = _heads_that_share(form)
        if shared is None:
            copies, nests = _one_block(s, form, target)
        else:
            copies, nests, shares = _of_shared_keys(s, form, shared, target)
    else:
        copies, nests = _blocks(s, form, row, target)
    s.simplify()
    _sum_weights_as_computed(s, form, copies)
    for nest in nests:
        mark(s, nest)
    if shares.pieces:  # before vectors: indices are still simple to reason about
        outermost = [next(iter(enclosing_loops(o)), o) for o in shares.pieces]
        parallelize_each(s, outermost, target, shares.rows)
    else:
        parallelize_outer(s, target)
    for stage in (form.scores, *form.rows):
        innermost = copies.get((*stage.axes, *stage.reduce)[-1])
        if innermost is not None and innermost.parent is not None and not _holds_loops(innermost):
            vectorize_inner(s, innermost, target)
    for loop in shares.heads:
        _multiply_together(s, loop, target)
    s.simplify()


def _multiply_together(s: Schedule, heads: Op, target: Target) -> None:
    """Heads that share keys read each of them once: all sums of a key go on with the same elements of it."""
    key = enclosing_loops(heads)[-1]
    count = heads_at_once(known(extent_of(heads)) or 1, target)
    if count > 1:
        parts = s.split(heads, count)
        heads = parts.outer
        with s.noting("heads read keys one after the other"):
            s.unroll_and_jam(parts.inner)
    s.unroll(heads)
    unroll_all(s, [o for o in loops_in(key) if known(extent_of(o)) in range(2, MOST_UNROLLED + 1)])


def _are_few(s: Schedule, form: AttentionForm, row: Op) -> bool:
    """Whether all rows of a head are one block. Of an unknown number they may be few or many, such as the tokens of a
    decoder: few have a kernel of their own, as a block of the usual size would be computed for one of them."""
    rows = extent_of(row)
    if is_one_block(rows.bounds[1]):
        return rows.is_const or bool(form.batch)
    if not rows.is_const and form.batch:
        s.at_least(rows, FEW_ROWS, of_few=True)
    return False


def _blocks(s: Schedule, form: AttentionForm, row: Op, target: Target) -> tuple[dict[Op, Op], list[Nest]]:
    """Blocks of rows, with keys and values packed for all blocks of a head (or of a chunk, where heads are few)."""
    keys = extent_of(form.values.reduce[0])
    most = most_rows(known(keys), target)
    s.reorder(*form.batch, row, form.column)
    groups = [split_group(s, stage, target) for stage in (form.scores, form.values)]
    home = form.batch[-1] if form.batch else None
    chunk = rows_of_chunk(iterations_of(form.batch), known(extent_of(row)), most, target)
    if chunk is not None:
        chunks = s.split(row, chunk, tail=_tail(row))
        home, row = chunks.outer, chunks.inner
    size = rows_of_block(known(extent_of(row)), most)
    tile = tile_of_products(size, known(extent_of(form.column)), known(extent_of(form.values.reduce[0])), target)
    block = s.split(row, size, tail=_tail(row))
    axes = [form.row_axis, form.column_axis]
    if form.scattered:
        values, reader = _values_together(s, form, block.outer, tile, target, groups[1])
        _store_turned(s, [block.inner, form.column], target)
    else:
        values, reader = _tiles(s, form.values, [block.inner, form.column], axes, tile, groups[1])
    copies = _fuse_rows(s, form, block.outer)
    scores, scores_reader = _scores(s, form, size, block.outer, copies, target, groups[0])
    for sums in (scores, values):
        pack_all_columns(s, sums.add, home or block.outer, target)
    skip_masked_keys(s, block.outer, [*scores_reader.outer, *scores_reader.tile][0], MAX_LANES)
    _join_rows(s, form, copies)
    return copies, [*scores.nests, scores_reader, *values.nests, reader]


def skip_masked_keys(s: Schedule, block: Op, scores: Op, multiple: int) -> None:
    """Leave out the keys that no row of a block sees, where conditions on positions mask the scores that the nest
    `scores` stores. A `multiple` of keys is left; on CPUs whole vectors of the sums of weights, so that bits do not
    depend on it."""
    for store in stores_in(scores):
        if _selects_by_position(store.operands[0]):
            with s.noting("keys that are masked in all rows of a block are multiplied, too"):
                s.skip_masked(block, store.operands[1], multiple)


def _selects_by_position(value: Value) -> bool:
    """Whether a scalar is selected by a condition on positions, or selected of what is."""
    op = value.op
    if op is None or not scalar_operation(op).conditions:
        return False
    return _is_of_positions(op.operands[0]) or any(map(_selects_by_position, op.operands[1:]))


def _is_of_positions(value: Value) -> bool:
    """Whether a scalar follows from the variables of loops and dims alone."""
    op = value.op
    return op is not None and op.name != "load" and all(map(_is_of_positions, op.operands))


def _one_block(s: Schedule, form: AttentionForm, target: Target) -> tuple[dict[Op, Op], list[Nest]]:
    """All rows of a head at once, with keys and values read where they lie, as few rows do not repay a copy."""
    loops = [form.column] if form.row is None else [form.row, form.column]
    s.reorder(*form.batch, *loops)
    if form.batch:
        home = form.batch[-1]
    else:
        whole = s.split(loops[0], _constant(extent_of(loops[0])))
        home, loops[0] = whole.outer, whole.inner
    rows = 1 if form.row is None else known(extent_of(form.row)) or 1
    depth = known(extent_of(form.values.reduce[0]))
    tile = tile_of_products(rows, known(extent_of(form.column)), depth, target)
    row_axes = [] if form.row is None else [form.row_axis]
    values, reader = _tiles(s, form.values, loops, [*row_axes, form.column_axis], tile)
    copies = _fuse_rows(s, form, home)
    nests = [*values.nests, reader]
    if _keys_are_contiguous(form.scores):
        copies |= _single_scores(s, form, home, copies)
    else:
        scores, scores_reader = _scores(s, form, rows, home, copies, target)
        nests += [*scores.nests, scores_reader]
    return copies, nests


def _heads_that_share(form: AttentionForm) -> int | None:
    """The axis of heads that read the same keys and values, where rows are few: the only one of some that neither
    depends on."""
    alone = []
    for stage in (form.scores, form.values):
        others = {loop_var(o) for o in stage.reduce} | {loop_var(stage.axes[-1])}
        reads = [op for op in loads_in(stage.axes[0]) if op.operands[0] is not stage.buffer]
        columns = [op for op in reads if others & {v for i in op.attrs["idx"] for v in i.vars} == others]
        used = {v for op in columns for i in op.attrs["idx"] for v in i.vars}
        alone.append([k for k, o in enumerate(stage.axes[:-2]) if loop_var(o) not in used and extent_of(o) != 1])
    if len(form.values.axes) != len(form.scores.axes) or alone[0] != alone[1] or len(alone[0]) != 1:
        return None
    (axis,) = alone[0]
    heads = extent_of(form.scores.axes[axis])
    return axis if heads.is_const and heads.value <= MOST_SHARING and _keys_are_contiguous(form.scores) else None


def _of_shared_keys(
    s: Schedule, form: AttentionForm, axis: int, target: Target
) -> tuple[dict[Op, Op], list[Nest], _Shares]:
    """Few rows of several heads that read the same keys and values, each of which is read once for all heads: first all
    scores, then the rows, and then the results, so that threads share keys and columns where groups of heads are
    few."""
    loops = {k: o for o, k in reduction_of(form.values, [*form.batch, *_those(form.row), form.column]).axis_of.items()}
    heads = loops[axis]
    outer = [o for o in form.batch if o is not heads]
    depth = known(extent_of(form.values.reduce[0]))
    tile = tile_of_products(extent_of(heads).value, known(extent_of(form.column)), depth, target)
    size = columns_of_piece(iterations_of(outer), known(extent_of(form.column)), tile, target)
    tile = replace(tile, columns=size // tile.lanes)
    pieces, columns = tile_loop(s, form.column, size)
    s.reorder(*outer, *pieces, *_those(form.row), heads, columns)
    values, reader = _tiles(s, form.values, [heads, columns], [axis, form.column_axis], tile)
    copies = {o: o for stage in form.rows for o in (*stage.axes, *stage.reduce)}
    first = _axes_of_scores(form)
    *around, row, key = (o for k, o in enumerate(first) if k != axis)
    keys = s.split(key, KEYS_OF_A_PIECE, tail="short")
    s.reorder(*around, keys.outer, row, keys.inner, first[axis])
    if form.epilogue is not None:
        copies |= s.compute_at(form.scores.buffer, first[axis], space="reg", guard="loads").copies
    return copies, [*values.nests, reader], _Shares([keys.inner, columns], [row], [first[axis]])


def _axes_of_scores(form: AttentionForm) -> list[Op]:
    """The loops around a score that is read once, or else stored."""
    return (form.epilogue or form.scores).axes


def _those(*loops: Op | None) -> list[Op]:
    return [o for o in loops if o is not None]


def _single_scores(s: Schedule, form: AttentionForm, block: Op, copies: dict[Op, Op]) -> dict[Op, Op]:
    """Compute one score after the other."""
    place = block if form.epilogue is None else copies[form.epilogue.axes[-1]]
    space = "scratch" if form.epilogue is None else "reg"
    return s.compute_at(form.scores.buffer, place, space=space, guard="loads").copies


def _keys_are_contiguous(scores: Stage) -> bool:
    """Whether the elements of a key, over which the products are summed, are contiguous."""
    moving = [op for op in loads_in(scores.axes[-1]) if stride_in(op, loop_var(scores.axes[-1])) != 0]
    keys = [op for op in moving if op.operands[0] is not scores.buffer]
    return all(stride_in(op, loop_var(scores.reduce[-1])) == 1 for op in keys)


def _fuse_rows(s: Schedule, form: AttentionForm, block: Op) -> dict[Op, Op]:
    """Compute the rows of a block at its start; the copies of their loops."""
    copies: dict[Op, Op] = {}
    for stage in reversed(form.rows):
        copies |= s.compute_at(stage.buffer, block, guard="loads").copies
    return copies


# The form


def form_of(s: Schedule, lowered: Lowered) -> AttentionForm:
    stages = lowered.stages
    sums = [k for k, st in enumerate(stages) if st.kind == "reduce" and st.combine == "add"]
    if len(sums) < 2 or sums[0] != 0:
        raise ScheduleError("it is not a product of the rows of another product")
    scores, values = stages[0], stages[sums[-1]]
    if not scores.reduce or len(scores.axes) < 2 or not values.axes:
        raise ScheduleError("it is not two products of matrices")
    if len(values.reduce) != 1:
        raise ScheduleError("the second product is not over one axis")
    last = reading_nest(s, values, stages[sums[-1] + 1 :])
    rows = stages[1 : sums[-1]]
    if not all(st.axes for st in rows):
        raise ScheduleError("what lies between the products is a single element")
    weights = _load_of({st.buffer for st in rows}, values)
    row = weights.attrs["idx"][-2]
    row_axis = -1 if row.is_const else _axis(values, row)
    moving = {v for i in weights.attrs["idx"] for v in i.vars}
    columns = [k for k, o in enumerate(values.axes) if loop_var(o) not in moving and extent_of(o) != 1]
    if len(columns) != 1:
        raise ScheduleError("the second product has not one axis of columns")
    for axis in (row_axis, columns[0]) if row_axis >= 0 else columns:
        last = with_loop_of(s, values, last, axis)
    loops = {axis: o for o, axis in reduction_of(values, last).axis_of.items()}
    row_loop, column = loops.get(row_axis), loops.get(columns[0])
    if column is None:
        raise ScheduleError("the columns of the second product are no loop of the result")
    batch = [o for o in last if o not in (row_loop, column)]
    scattered = any(stride_in(store, loop_var(column)) != 1 for store in stores_in(last[0]))
    epilogue = _epilogue_of(scores, rows)
    return AttentionForm(scores, epilogue, rows, values, batch, row_loop, column, row_axis, columns[0], scattered)


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


def _epilogue_of(scores: Stage, rows: list[Stage]) -> Stage | None:
    """The stage of elementwise work on the scores, where it alone reads them."""
    own = {*scores.axes[0].walk(), *rows[0].axes[0].walk()}
    alone = all(u in own for u in scores.buffer.users)
    return rows[0] if alone and rows[0].kind == "map" and len(rows[0].axes) == len(scores.axes) else None


# Sizes


def _constant(extent: Sym) -> int:
    if not extent.is_const:
        raise ScheduleError(f"a block of rows has a constant size, not {extent}")
    return int(extent.value)


# Tiles


def _tiles(
    s: Schedule, stage: Stage, loops: Sequence[Op], axes: Sequence[int], tile: Tile, group: Op | None = None
) -> tuple[TileSums, Nest]:
    """Split the nest of rows (if there are several) and columns that reads the sums of a stage into register tiles, and
    compute the sums in it: a tile over `axes` of the sums, of a `group` of products a step. The sums, and the
    nest that reads them."""
    *rows, column = loops
    around, columns = column_tiles(s, column, None, tile.columns, tile.lanes)
    inner: list[Op] = []
    for row in rows:
        over, within = tile_loop(s, row, tile.rows, _tail(row))
        around += over
        inner.append(within)
    inner += columns
    around = loop_around(s, around, inner)
    s.reorder(*around, *inner)
    return tile_sums(s, stage, around[-1], axes, tile.lanes, group=group), Nest(around, inner)


def _tail(row: Op) -> str:
    """What becomes of the rows that fill no tile or block."""
    return "overlap" if extent_of(row).is_const else "guard"


def _scores(
    s: Schedule,
    form: AttentionForm,
    rows: int,
    block: Op,
    copies: dict[Op, Op],
    target: Target,
    group: Op | None = None,
) -> tuple[TileSums, Nest]:
    """Compute the scores of a block in register tiles: the sums, and the nest that reads and stores them."""
    stage = form.scores
    if form.epilogue is None:
        whole = s.compute_at(stage.buffer, block, guard="loads")
        copies |= whole.copies
        made = s.cache(whole.buffer, whole.nests[0], space="scratch")
        stage, loops = copied(stage, whole.copies, made.buffer), made.drain
        group = None if group is None else whole.copies[group]
    else:
        loops = [copies[o] for o in form.epilogue.axes]
    depth = known(extent_of(form.scores.reduce[0]))
    tile = tile_of_products(rows, known(extent_of(loops[-1])), depth, target)
    rank = len(stage.axes)
    return _tiles(s, stage, loops[-2:], [rank - 2, rank - 1], tile, group)


def _values_together(
    s: Schedule, form: AttentionForm, block: Op, tile: Tile, target: Target, group: Op | None
) -> tuple[TileSums, Nest]:
    """Compute the results of a block in register tiles before any of them is stored: the sums, and the nest that reads
    them and keeps them together."""
    whole = s.compute_at(form.values.buffer, block, guard="loads")
    made = s.cache(whole.buffer, whole.nests[0], space="scratch")
    stage = copied(form.values, whole.copies, made.buffer)
    axes = [form.row_axis, form.column_axis]
    group = None if group is None else whole.copies[group]
    return _tiles(s, stage, [made.drain[k] for k in axes], axes, tile, group)


def _store_turned(s: Schedule, loops: list[Op], target: Target) -> None:
    """Results of a block are stored as they lie in memory: in squares through registers where their rows lie along."""
    found = transposing(loops)
    if found is None or not (side := side_of(*found, target)):
        return
    with s.noting("not transposed through registers"):
        schedule_squares(s, loops, *found, side, target)


# Rows


def _join_rows(s: Schedule, form: AttentionForm, copies: dict[Op, Op]) -> None:
    """All stages of a row one after the other, while the row is in L1."""
    nests = [st for st in form.rows if st is not form.epilogue]
    for second in nests[1:]:
        a, b = ([copies[o] for o in st.axes[:-1]] for st in (nests[0], second))
        try:
            for outer, inner in zip(a, b, strict=True):
                s.fuse(outer, inner)
        except ScheduleError as e:
            s.missed.append(f"rows pass several times through L1: {reason_of(e)}")
            return


def _sum_weights_as_computed(s: Schedule, form: AttentionForm, copies: dict[Op, Op]) -> None:
    """Weights are summed as they are computed."""
    for row in dict.fromkeys(copies.get(st.axes[-2]) for st in form.rows if len(st.axes) > 1):
        if row is not None and row.parent is not None:
            share_iterations(s, body_of(row))


def _holds_loops(loop: Op) -> bool:
    return any(is_loop(op) for op in body_of(loop).walk())
