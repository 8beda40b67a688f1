"""Products with lanes along the sum, which reads its operands as they lie in memory, or as constants are laid out for
that: those of a matrix, or a vector, and a vector as rows, also of many such pairs; and those of few rows of the call
with columns that lie along the sum, too."""

from __future__ import annotations

from tilewright.cost.rows import come_from_memory
from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.types import product
from tilewright.loops.edit import buffer_type, extent_of, loop_var
from tilewright.loops.kernel_info import constants_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.loops.storage.packing import Packing
from tilewright.schedule.gemm.contraction import is_contraction
from tilewright.schedule.rows.depth_lanes import schedule_along_depth
from tilewright.schedule.rows.row_reduction import schedule_rows
from tilewright.schedule.steps.access import loads_in, stride_in, variables
from tilewright.schedule.steps.packing import packing_for
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


class DotProduct(Strategy):
    """Another way to schedule contractions: those of vectors, and of few rows."""

    name = "dot_product"
    form = "rows"
    respecialize_remainder = True

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return (
            Match() if is_contraction(region) else NoMatch("it is not one contraction with elementwise work")
        )

    def schedule(self, s: Schedule, lowered: Lowered, target: Target) -> None:
        """ScheduleError for products whose operands do not both lie in memory along the sum, where the matrix is a
        constant that is packed for lanes along rows, and where lanes along the columns are faster."""
        stage = lowered.stages[0]
        summed = [o for o in stage.reduce if extent_of(o) != 1]
        if (
            [st.kind for st in lowered.stages].count("reduce") != 1
            or stage.kind != "reduce"
            or len(summed) != 1
        ):
            raise ScheduleError("it is not one sum over one axis")
        loads = [op for op in loads_in(stage.reduce[-1]) if op.operands[0] is not stage.buffer]
        rows = {loop_var(o) for o in stage.axes if extent_of(o) != 1}
        matrices = [op for op in loads if rows <= variables(op.attrs["idx"])] if rows else []
        is_short = (extent_of(summed[0]).bounds[0] or 0) < target.lanes(buffer_type(stage.buffer).dtype)
        if is_short or (rows and not matrices):
            schedule_along_depth(s, lowered, target)
            return
        vectors = [op for op in loads if op not in matrices]
        if any(rows & variables(op.attrs["idx"]) for op in vectors) and any(map(_is_window, matrices)):
            raise ScheduleError("rows of the matrix overlap")
        constants = [op for op in matrices if op.operands[0] in constants_of(s.func)]
        if not all(_is_read_from_memory(op, stage, target) for op in constants):
            raise ScheduleError("the matrix is packed for lanes along its rows")
        packings = _row_by_row(constants, stage, summed[0])
        in_place = [op for op in loads if op.operands[0] not in packings]
        if len(loads) == 1 or any(stride_in(op, loop_var(summed[0])) != 1 for op in in_place):
            raise ScheduleError("the sum does not run along contiguous memory")
        for operand, packing in packings.items():
            s.pack_argument(operand, packing)
        schedule_rows(s, lowered, target)


def _row_by_row(matrices: list[Op], stage: Stage, summed: Op) -> dict[Value, Packing]:
    """How constant matrices whose sums do not run along contiguous memory are laid out for that."""
    found = {}
    for load in matrices:
        if stride_in(load, loop_var(summed)) == 1:
            continue
        packing = packing_for(load, [*stage.axes, summed])
        if packing is None or load.operands[0] in found:
            raise ScheduleError("the constant matrix is read in several ways, or in none that can be packed")
        found[load.operands[0]] = packing
    return found


def _is_read_from_memory(matrix: Op, stage: Stage, target: Target) -> bool:
    """Whether a constant matrix is read faster row by row than in panels of columns: from memory, where several rows
    that lie far apart are streams that the prefetchers follow."""
    type = buffer_type(matrix.operands[0])
    size = product(type.shape) * type.dtype.bytes
    same = type.dtype is buffer_type(stage.buffer).dtype
    return same and size.is_const and come_from_memory([size.value], target)


def _is_window(load: Op) -> bool:
    """Whether an index moves with several loops, as that of a convolution, so that elements are read again."""
    return any(len(i.vars) > 1 for i in load.attrs["idx"])
