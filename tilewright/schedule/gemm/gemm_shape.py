"""What decides the schedule of a contraction, read from its loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from tilewright.cost.core import line_elements
from tilewright.cost.gemm.panels import WINDOWS, rows_lie_apart, why_lines_are_not_written
from tilewright.cost.gemm.register_tile import GemmShape
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, ceildiv
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type, extent_of, loop_var
from tilewright.schedule.gemm.gemm_axes import GemmAxes
from tilewright.schedule.steps.access import (
    element_bytes,
    elements_read,
    iterations_of,
    known,
    stores_in,
    stride_in,
)
from tilewright.schedule.trace import Schedule
from tilewright.target.target import VECTOR_BYTES, Target


def gemm_shape(axes: GemmAxes, constants: Sequence[Value] = (), group: int = 1) -> GemmShape:
    """The extents of a contraction, and how its operands lie in memory; `constants` can be packed when compiling. A
    step of the depth is a `group` of products that one instruction adds up, which is as long as a sum."""
    stage = axes.sums.stage
    element = element_bytes(stage.buffer)
    lanes = max(1, VECTOR_BYTES // element)
    width = extent_of(axes.vector)
    while width.is_const and lanes > 1 and lanes // 2 >= width.value:
        lanes //= 2
    around = [o for o in axes.outer if o is not axes.line]
    shape = GemmShape(
        rows=1 if axes.row is None else known(extent_of(axes.row)),
        columns=known(ceildiv(width, lanes) if axes.block is None else extent_of(axes.block)),
        depth=iterations_of(stage.reduce),
        lanes=lanes,
        element=element,
        lines=1 if axes.line is None else extent_of(axes.line).value,
        around=iterations_of(around) or 1,
        repeats=iterations_of(o for o in around if axes.sums.moving(o) & axes.columns) or 1,
        outer_depth=next((known(extent_of(o)) or 1 for o in stage.reduce if extent_of(o) != 1), 1),
        exact_columns=axes.block is not None,
        packed=all(o.operands[0] in constants for o in axes.columns),
        along_depth=_lie_along_depth(axes, constants),
    )
    is_part = shape.packed and any(_reads_part(o, shape) or _shares_axis(o, axes) for o in axes.columns)
    shape = replace(shape, part=is_part)
    if not shape.packed:  # kernels for few rows and for many read constants in one order
        shape = replace(shape, few_rows=few_rows_of(axes))
    if axes.row is None:
        return replace(shape, uncut="it has no rows")
    if shape.rows is None or shape.depth is None:
        return replace(shape, uncut="the number of rows or the depth is not known")
    rows = axes.sums.moving(axes.row) - axes.columns
    if len(rows) != 1 or shape.columns is None:
        return replace(shape, uncut="it is not one operand's rows with a known number of columns")
    (load,) = rows
    row = loop_var(stage.axes[axes.axis(axes.row)])
    return replace(
        shape,
        windows=_windows(load, shape),
        stride=_stride(load, row),
        run=_run_of(load, row, stage.reduce[-1], group) if stage.reduce else 0,
    )


def few_rows_of(axes: GemmAxes) -> int | None:
    """How many rows there are at most, where their number is not known but small."""
    rows = None if axes.row is None else extent_of(axes.row)
    return None if rows is None or rows.is_const else rows.bounds[1]


def transposed_shape(axes: GemmAxes, constants: Sequence[Value]) -> GemmShape:
    """As `gemm_shape`, of the axes that `transposed_axes` found."""
    return replace(gemm_shape(axes, constants), exact_columns=True, transposed=True)


def _lie_along_depth(axes: GemmAxes, constants: Sequence[Value]) -> bool:
    """Whether a sum over one axis reads rows and columns of the call that lie in memory along it."""
    summed = [o for o in axes.sums.stage.reduce if extent_of(o) != 1]
    loads = axes.sums.loads
    if len(summed) != 1 or len(loads) != 2 or len(axes.columns) != 1 or axes.block is not None:
        return False
    return all(
        o.operands[0] not in constants
        and "guard" not in o.attrs
        and buffer_type(o.operands[0]).space == "global"
        and stride_in(o, loop_var(summed[0])) == 1
        for o in loads
    )


def _reads_part(load: Op, shape: GemmShape) -> bool:
    """Whether the columns are a part of an operand that has more of them."""
    if shape.columns is None or shape.depth is None:
        return False
    elements = product(buffer_type(load.operands[0]).shape)
    return elements.is_const and elements.value > shape.repeats * shape.columns * shape.lanes * shape.depth


def _shares_axis(load: Op, axes: GemmAxes) -> bool:
    """Whether the columns are a part of an axis whose others are for other iterations, as a head's are: a tile with
    more than are left of them would reach into the next."""
    loop_of = axes.sums.stage.axes
    v = loop_var(loop_of[axes.axis(axes.vector)])
    others = {loop_var(loop_of[axes.axis(o)]) for o in axes.outer if o in axes.sums.axis_of and extent_of(o) != 1}
    return any(v in i.vars and others & i.vars for i in load.attrs["idx"])


def _windows(load: Op, shape: GemmShape) -> float:
    """How many steps and rows use an element of the rows' operand, on average."""
    read = product(buffer_type(load.operands[0]).shape)
    assert shape.rows is not None and shape.depth is not None
    used = shape.around * shape.lines * shape.rows * shape.depth
    return max(1.0, used / read.value) if read.is_const and read.value else 1.0


def _stride(load: Op, row: Sym) -> int:
    step = stride_in(load, row)
    return abs(step.value) * element_bytes(load.operands[0]) if step is not None and step.is_const else 0


def _run_of(load: Op, row: Sym, depth: Op, group: int) -> int:
    """Steps of the depth whose elements lie together in a row, up to a cache line, where rows lie further apart than
    that; 0 where they do not, or where too few lie together."""
    line = line_elements(group * element_bytes(load.operands[0]))
    step, within = stride_in(load, row), stride_in(load, loop_var(depth))
    if step is None or not step.is_const or abs(step.value) <= line * group or within != group:
        return 0
    if any(row in i.vars and loop_var(depth) in i.vars for i in load.attrs["idx"]):
        return 0
    extent = extent_of(depth)
    run = gcd(line, extent.value) if extent.is_const else 0
    return run if 4 * run >= line else 0


# Whole lines of a contraction's result at a time: the order of row tiles and column tiles where rows lie apart.
#
#     for row tile { for column tile { y[rows, columns] = .. } }
#
# The other way round, pieces of a few cache lines would be written to all rows one after the other, each on a page of
# its own: memory takes them two or three times as slowly as long runs.


def writes_lines(s: Schedule, axes: GemmAxes, target: Target) -> bool:
    """Whether row tiles go outside of column tiles: rows of the result lie apart, and what all columns read stays near
    for the next row tile."""
    if axes.row is None or axes.block is not None:
        return False
    row = loop_var(axes.row)
    steps = [_step(store, row) for store in stores_in(axes.sums.loops[0])]
    if None in steps or not rows_lie_apart(step for step in steps if step is not None):
        return False
    stage = axes.sums.stage
    within = [stage.axes[axes.axis(axes.vector)], *stage.reduce]
    found = [elements_read(load, within) for load in axes.columns]
    elements = [n for n in found if n is not None]
    if len(elements) < len(found):
        s.missed.append("whole lines: how much their columns read is not known")
        return False
    size = sum(elements) * element_bytes(stage.buffer)
    reads = product(extent_of(o) for o in within)
    rereads = reads.is_const and reads.value >= WINDOWS * sum(elements)
    reason = why_lines_are_not_written(size, rereads, target)
    if reason:
        s.missed.append(f"whole lines: {reason}")
    return not reason


def _step(store: Op, row: Sym) -> int | None:
    """Bytes between the rows that a store writes; None where that is not known."""
    step = stride_in(store, row)
    return step.value * element_bytes(store.operands[-1]) if step is not None and step.is_const else None
