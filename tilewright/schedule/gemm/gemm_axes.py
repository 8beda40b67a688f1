"""The parts that the loops of a contraction play: which is the vector, which the rows of a register tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.cost.register_tile import Tile
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.scalar import COSTLY
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.loops.edit import body_of, buffer_type, extent_of, loop_var
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.order.fission import Fission
from tilewright.schedule.steps.access import loads_in, stores_in, stride_in, variables
from tilewright.schedule.trace import Schedule
from tilewright.target.target import VECTOR_BYTES

FEW_TILES = 2
"""Tiles that the most rows make where their number is not known but small: each row too many costs time."""


@dataclass(eq=False)
class GemmAxes:
    """Which loop of the last stage plays which part. `block` is a column axis that the layout itself has; `line`, one
    of the outer loops, moves the same operand as `row`: as the lines of an image do."""

    vector: Op
    row: Op | None
    block: Op | None
    outer: list[Op]
    line: Op | None


def one_nest(s: Schedule, lowered: Lowered) -> tuple[Stage, list[Op], Value]:
    """The reduction stage, the loops of the one nest that follows it (at least one), and the buffer between the two.
    ScheduleError when the kernel has not this form."""
    reductions = [st for st in lowered.stages if st.kind == "reduce"]
    if len(reductions) != 1 or lowered.stages[0] is not reductions[0]:
        raise ScheduleError("it is not one reduction with elementwise work after it")
    stage = reductions[0]
    if not stage.axes:
        raise ScheduleError("it gives a single element")
    rest = lowered.stages[1:]
    if buffer_type(stage.buffer).space == "global":
        if rest:
            raise ScheduleError("the sum itself is an output beside others")
        made = s.cache_write(stage.buffer)
        stage.buffer = made.buffer
        return stage, made.drain, made.buffer
    return stage, joined(s, rest), stage.buffer


def joined(s: Schedule, stages: Sequence[Stage]) -> list[Op]:
    """Make one nest of those of `stages`; its loops, of which there is at least one. ScheduleError when the stages
    have not the same axes, or none."""
    if not stages or not stages[0].axes:
        raise ScheduleError("no loop over elements follows the sum")
    first, *others = stages
    for other in others:
        if len(other.axes) != len(first.axes):
            raise ScheduleError(f"{other.name} has other axes than {first.name}")
        for a, b in zip(first.axes, other.axes, strict=True):
            s.fuse(a, b)
    return list(first.axes)


def axes_read(loops: list[Op], accumulator: Value) -> dict[Op, int]:
    """For each loop of the last nest, the axis of the sum that it runs over."""
    by_var = {loop_var(o): o for o in loops}
    reads = [op for op in loads_in(loops[0]) if op.operands[0] is accumulator]
    if not reads or any(variables(r.attrs["idx"]) - set(by_var) for r in reads):
        raise ScheduleError("the sum is not read element by element")
    return {by_var[v]: k for k, v in enumerate(reads[0].attrs["idx"]) if v in by_var}


def assign_axes(
    stage: Stage, loops: list[Op], accumulator: Value, axis_of: dict[Op, int], vector: Op | None = None
) -> GemmAxes:
    """Vector: the axis in which the result is contiguous, unless another one is given. Row: an axis that only the
    broadcast operand moves in."""
    store = stores_in(loops[0])[0]
    live = [o for o in loops if extent_of(o) != 1]
    if vector is None:
        vector = next((o for o in live if stride_in(store, loop_var(o)) == 1), None)
    if vector is None or vector not in axis_of:
        raise ScheduleError("the result is not contiguous in any axis of the sum")
    moved = {o: operands_moving(stage, axis_of.get(o)) for o in live}
    with_vector = moved[vector]
    block = row = None
    for o in live:
        if o is vector:
            continue
        only_columns = bool(moved[o]) and moved[o] <= with_vector and extent_of(o).is_const
        if only_columns and known(extent_of(vector)) == VECTOR_BYTES / element_bytes(accumulator):
            block = o if len(with_vector) == 1 else block
        if moved[o] - with_vector or (len(with_vector) > 1 and moved[o]):
            row = o
    outer = [o for o in loops if o not in (vector, row, block)]
    line = None
    if row is not None and not moved[row] & with_vector:
        lines = [o for o in outer if o in live and extent_of(o).is_const and moved[o] == moved[row]]
        line = lines[-1] if lines else None
    return GemmAxes(vector, row, block if block is not row else None, outer, line)


def transposed_axes(
    stage: Stage,
    loops: list[Op],
    accumulator: Value,
    axis_of: dict[Op, int],
    axes: GemmAxes,
    constants: Sequence[Value],
) -> GemmAxes | None:
    """GemmAxes with vectors along what are rows in `axes`, where these are whole vectors of constants: packed ahead of
    time they need no copy, and no lane is idle. The result is contiguous in its rows then, and has to be transposed.
    None where the contraction has not this form."""
    if axes.row is None or axes.block is not None or axes.line is not None:
        return None
    lanes = VECTOR_BYTES // element_bytes(accumulator)
    rows, columns = (operands_moving(stage, axis_of.get(o)) for o in (axes.row, axes.vector))
    if (
        rows & columns
        or (known(extent_of(axes.vector)) or 0) < lanes
        or (known(extent_of(axes.row)) or 1) % lanes
    ):
        return None
    if any((o.operands[0] in constants) != (o in rows) for o in rows | columns):
        return None
    stores = stores_in(loops[0])
    if len(stores) != 1 or any(op.name in COSTLY for op in loops[-1].walk()):
        return None
    turned = assign_axes(stage, loops, accumulator, axis_of, axes.row)
    return turned if turned.row is axes.vector and turned.block is None else None


def element_bytes(buffer: Value) -> int:
    return buffer_type(buffer).dtype.bytes


def bytes_of(buffer: Value) -> int:
    """Of a buffer of known size."""
    return int(product(buffer_type(buffer).shape).value) * element_bytes(buffer)


def operands_moving(stage: Stage, axis: int | None) -> set[Op]:
    """Loads of the reduction's operands whose address depends on axis `axis` of the sum (one tensor may be both)."""
    if axis is None or axis >= len(stage.axes):
        return set()
    v = loop_var(stage.axes[axis])
    loads = [op for op in loads_in(stage.axes[0]) if op.operands[0] is not stage.buffer]
    return {op for op in loads if v in variables(op.attrs["idx"])}


def for_its_rows(tile: Tile, axes: GemmAxes) -> Tile:
    """The tile with fewer rows where there may be so few that they would be a tile or two."""
    rows = None if axes.row is None else extent_of(axes.row)
    most = None if rows is None or rows.is_const else rows.bounds[1]
    return tile if most is None else replace(tile, rows=min(tile.rows, -(-most // FEW_TILES)))


def known(extent: Sym) -> int | None:
    return extent.value if extent.is_const else None


def separate_sums(s: Schedule, stage: Stage, copies: dict[Op, Op]) -> Fission:
    """Give clearing and summing of a fused stage nests of their own: the loops over the sum's axes of each."""
    axes = [copies[o] for o in stage.axes]
    innermost = body_of(axes[-1]).ops
    return s.fission(innermost[innermost.index(copies[stage.reduce[0]]) - 1], len(axes))
