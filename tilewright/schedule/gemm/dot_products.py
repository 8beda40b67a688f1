"""Contractions of narrow numbers: which of them the target's instructions for groups of products serve."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import dtype as dt
from tilewright.ir.core import Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type, extent_of, loop_var
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Stage
from tilewright.schedule.gemm.gemm_axes import GemmAxes
from tilewright.schedule.steps.access import known, loads_in, stride_in
from tilewright.schedule.trace import Schedule
from tilewright.target.dots import Dot
from tilewright.target.target import VECTOR_BYTES, Target


def dot_for(left: DType, right: DType, sums: DType, target: Target) -> Dot | None:
    """The instruction that multiplies groups of these dtypes; the right operand may have fewer bytes than it takes."""
    return next((d for d in target.dots_in(sums) if d.left is left and d.takes(left, right)), None)


def split_group(s: Schedule, stage: Stage, target: Target) -> Op | None:
    """Split the loop over a group of products off the reduction of a stage whose operands are copied into panels; None
    where no instruction adds up groups of them."""
    sums, last = buffer_type(stage.buffer).dtype, stage.reduce[-1]
    loads = [o for o in loads_in(stage.axes[0]) if o.operands[0] is not stage.buffer]
    found = [buffer_type(o.operands[0]).dtype for o in loads]
    dot = dot_for(found[0], found[1], sums, target) if len(found) == 2 else None
    if dot is None or extent_of(last) % dot.group != 0:
        return None
    parts = s.split(last, dot.group)
    stage.reduce[-1] = parts.outer
    return parts.inner


def group_of_taps(s: Schedule, stage: Stage, lane: Op, target: Target) -> Op | None:
    """The loop over a group of neighbours along a line that one instruction adds up in each lane, split off a sum of
    windows in the lanes of `lane`: a vector of data for each neighbour, one after the other, and constants that are
    packed by groups. None where no instruction serves."""
    sums, inner = buffer_type(stage.buffer).dtype, stage.reduce[-1]
    loads = [o for o in loads_in(stage.axes[0]) if o.operands[0] is not stage.buffer]
    if len(loads) != 2 or not target.orders_bytes or loads[1].operands[0] not in constants_of(s.func):
        return None
    data, weights = (buffer_type(o.operands[0]).dtype for o in loads)
    dot = dot_for(data, weights, sums, target)
    lanes = VECTOR_BYTES // sums.bytes
    is_vector = known(extent_of(lane)) == lanes and stride_in(loads[0], loop_var(lane)) == 1
    lie_together = is_vector and stride_in(loads[0], loop_var(inner)) == lanes
    if dot is None or dot.left.bits != 8 or not lie_together or extent_of(inner) % dot.group != 0:
        return None
    parts = s.split(inner, dot.group)
    stage.reduce[-1] = parts.outer
    return parts.inner


def group_of_products(s: Schedule, axes: GemmAxes, constants: Sequence[Value], target: Target) -> Op | None:
    """The loop over a group of products that one instruction adds up, split off the innermost reduction of more than
    one element.

    Columns are packed by groups if they are constants, and copied by groups if both operands are of the call. They may
    have fewer bytes than the instruction takes. None where no instruction serves; why is then noted as missed.
    """
    stage, columns = axes.sums.stage, axes.columns
    dtype = buffer_type(stage.buffer).dtype
    if dtype not in (dt.i32, dt.f32) or not stage.reduce:
        return None
    rows = [o for o in axes.sums.loads if o not in columns]
    if len(columns) != 1 or len(rows) != 1:
        return None
    (column,), (row,) = columns, rows
    found = [buffer_type(load.operands[0]).dtype for load in (row, column)]
    if not all(read.bits < dtype.bits and read.is_float == dtype.is_float for read in found):
        return None
    dot = dot_for(found[0], found[1], dtype, target)
    last = max((k for k, o in enumerate(stage.reduce) if extent_of(o) != 1), default=len(stage.reduce) - 1)
    inner = stage.reduce[last]
    reason = ""
    if dot is None:
        reason = f"the target adds no groups of products of {found[0]} and {found[1]}"
    elif column.operands[0] not in constants and row.operands[0] in constants:
        reason = "the columns are not known when compiling, so they are not packed by groups"
    elif column.operands[0] not in constants and "guard" in column.attrs:
        reason = "the columns are not known when compiling, and have conditions"
    elif stride_in(row, loop_var(inner)) != 1:
        reason = "the elements of a group lie apart in a row"
    elif extent_of(inner) % dot.group != 0:
        reason = f"{product(map(extent_of, stage.reduce))} products are no multiple of a group of {dot.group}"
    if dot is None or reason:
        s.missed.append(f"not multiplied in groups: {reason}")
        return None
    parts = s.split(inner, dot.group)
    stage.reduce[last] = parts.outer
    return parts.inner
