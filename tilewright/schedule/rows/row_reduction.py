"""The default schedule of row kernels: reductions over trailing axes, and elementwise work on the same rows.

    for row parallel { for each stage { for j vector { ... } } }

Every intermediate lives for one row only, so it stays in the first-level cache. Short rows run several side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Block, Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.types import product
from tilewright.loops.edit import body_of, buffer_type, extent_of, is_loop, loop_var
from tilewright.loops.kernel_info import constants_of, results_of
from tilewright.loops.lanes.vectorize import MAX_LANES
from tilewright.loops.lower import Lowered, Stage
from tilewright.schedule.rows.interleave_rows import row_loop, rows_side_by_side, run_side_by_side
from tilewright.schedule.steps.access import loads_in, perfect_nest, stores_in, stride_in, variables
from tilewright.schedule.steps.blocked_summation import LONGEST_PART
from tilewright.schedule.steps.flatten import flatten, merge_flat_axes
from tilewright.schedule.steps.parallelize import parallelize_outer
from tilewright.schedule.steps.vectorize import innermost_loops, vectorize_inner
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def schedule_rows(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Run all stages on one row at a time. ScheduleError when they do not share their row axes."""
    for stage in [st for st in lowered.stages if st.kind == "reduce"]:
        if buffer_type(stage.buffer).space == "global":
            _through_scratch(s, lowered, stage)
    shared = _shared_axes(lowered)
    if shared:
        _share_rows(s, lowered.stages, shared)
    s.simplify()
    for block in [s.func.body, *(body_of(op) for op in s.func.body.walk() if is_loop(op))]:
        share_rounds(s, block)
    _compute_in_outputs(s)
    _flatten_sums(s)
    parallelize_outer(s, target)  # before vectors: indices are still simple to reason about
    rows = row_loop(s)
    count = rows_side_by_side(s, rows, target)
    for loop in innermost_loops(s):
        vectorize_inner(s, loop, target, count)
    s.simplify()
    if rows is not None:
        run_side_by_side(s, rows, count, target)


def schedule_sums(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Sums over what is contiguous in memory, and other axes besides, as rows: lanes run along the sum. ScheduleError
    where the elements of the result lie side by side instead, or operands are multiplied."""
    for stage in lowered.stages:
        if stage.kind != "reduce":
            continue
        if not stage.reduce:
            raise ScheduleError("it sums over no axis")
        v = loop_var(stage.reduce[-1])
        moving = [op for op in loads_in(stage.reduce[-1]) if stride_in(op, v) != 0]
        if not moving or any(stride_in(op, v) != 1 for op in moving):
            raise ScheduleError("the sum does not run along contiguous memory")
        if len({op.operands[0] for op in loads_in(stage.reduce[-1])} - {stage.buffer}) > 1:
            raise ScheduleError("the sum is of more than one operand")
    schedule_rows(s, lowered, target)


def schedule_dot_products(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Products of a matrix, or a vector, and a vector as rows, also of many such pairs: lanes run along the sum, which
    reads the matrix as it lies in memory. ScheduleError for other contractions, and where the matrix is a constant,
    which is packed for lanes along rows."""
    stage = lowered.stages[0]
    summed = [o for o in stage.reduce if extent_of(o) != 1]
    if [st.kind for st in lowered.stages].count("reduce") != 1 or stage.kind != "reduce" or len(summed) != 1:
        raise ScheduleError("it is not one sum over one axis")
    if (extent_of(summed[0]).bounds[0] or 0) < target.lanes(buffer_type(stage.buffer).dtype):
        raise ScheduleError("a sum may be shorter than a vector")
    loads = [op for op in loads_in(stage.reduce[-1]) if op.operands[0] is not stage.buffer]
    rows = {loop_var(o) for o in stage.axes if extent_of(o) != 1}
    matrices = [op for op in loads if rows <= variables(op.attrs["idx"])] if rows else []
    vectors = [op for op in loads if op not in matrices]
    if rows and not matrices:
        raise ScheduleError("it is not the product of a matrix and a vector")
    if any(rows & variables(op.attrs["idx"]) for op in vectors) and any(map(_is_window, matrices)):
        raise ScheduleError("rows of the matrix overlap")
    constants = constants_of(s.func)
    if any(op.operands[0] in constants for op in matrices):
        raise ScheduleError("the matrix is packed when compiling")
    if len(loads) == 1 or any(stride_in(op, loop_var(summed[0])) != 1 for op in loads):
        raise ScheduleError("the sum does not run along contiguous memory")
    schedule_rows(s, lowered, target)


def _is_window(load: Op) -> bool:
    """Whether an index moves with several loops, as that of a convolution, so that elements are read again."""
    return any(len(i.vars) > 1 for i in load.attrs["idx"])


def _through_scratch(s: Schedule, lowered: Lowered, stage: Stage) -> None:
    """Sum in a buffer of its own, so that the row nest can hold the sum."""
    output = stage.buffer
    made = s.cache_write(output)
    stage.buffer = made.buffer
    lowered.stages.append(Stage(output.name, "map", "", output, axes=made.drain))


def _shared_axes(lowered: Lowered) -> int:
    """How many leading axes all stages have in common; none are needed where all reductions are of a whole tensor, one
    row, and the other stages work on what comes out of it."""
    rows = [[extent_of(o) for o in st.axes] for st in lowered.stages]
    reduced = [len(st.axes) for st in lowered.stages if st.kind == "reduce"]
    shared = 0
    while shared < min(map(len, rows)) and all(r[shared] == rows[0][shared] for r in rows):
        shared += 1
    shared = min([shared, *reduced])
    one_row = all(extent_of(o) == 1 for st in lowered.stages if st.kind == "reduce" for o in st.axes)
    if not shared and any(rows) and not one_row:
        raise ScheduleError("the stages share no leading axis")
    return shared


def _share_rows(s: Schedule, stages: Sequence[Stage], shared: int) -> None:
    """One nest of `shared` loops over rows with all stages in it; what is no result is kept for one row only."""
    final = [k for k, st in enumerate(stages) if buffer_type(st.buffer).space == "global"]
    first, last = final[0], final[-1]
    following = last
    for k in range(last, first, -1):  # what lies between results first joins the one that follows it
        if k in final:
            following = k
        else:
            s.compute_at(stages[k].buffer, stages[following].axes[shared - 1])
    for k in range(shared):
        for other in final[1:]:
            s.fuse(stages[first].axes[k], stages[other].axes[k])
    for stage in reversed(stages[:first]):
        s.compute_at(stage.buffer, stages[first].axes[shared - 1])


def share_rounds(s: Schedule, block: Block) -> None:
    """One pass for neighbouring stages where the later reads just the element that the one before has computed."""
    nests = [op for op in block.ops if is_loop(op)]
    for k, nest in enumerate(nests[:-1]):
        loops = perfect_nest(nest)
        following = _loops_down(nests[k + 1], len(loops))
        written = {store.operands[1] for store in stores_in(loops[-1])}
        if len(stores_in(nest)) != 1 or len(following) != len(loops):
            continue
        if not any(load.operands[0] in written for load in loads_in(following[-1])):
            continue
        try:
            for first, second in zip(loops, following, strict=True):
                s.fuse(first, second)
        except ScheduleError:
            continue
        nests[k + 1] = nest


def _loops_down(loop: Op, depth: int) -> list[Op]:
    """`loop` and up to `depth` loops inside of it, each the only loop of the one before."""
    loops = [loop]
    while len(loops) < depth:
        inner = [op for op in body_of(loops[-1]).ops if is_loop(op)]
        if len(inner) != 1:
            break
        loops.append(inner[0])
    return loops


def _flatten_sums(s: Schedule) -> None:
    """One loop for sums over several axes that lie one after the other: the rounds of the inner ones may be short.

    Longer sums stay in two loops, as a sum of sums is more exact."""
    for row in [op for op in s.func.body.ops if is_loop(op)]:
        for nest in map(perfect_nest, _innermost_rows(row)):
            flatten(s, _short_sum(nest))
    merge_flat_axes(s)
    s.simplify()


def _short_sum(nest: list[Op]) -> list[Op]:
    """The innermost loops of a nest that together run for no longer than one sum should."""
    for k in range(len(nest)):
        terms = product(extent_of(o) for o in nest[k:])
        if terms.is_const and terms.value <= LONGEST_PART * MAX_LANES:
            return nest[k:]
    return []


def _innermost_rows(row: Op) -> list[Op]:
    """The loops inside of the last loop that all stages share."""
    inner = [op for op in body_of(row).ops if is_loop(op)]
    while len(inner) == 1 and len(body_of(row).ops) == 1:
        row = inner[0]
        inner = [op for op in body_of(row).ops if is_loop(op)]
    return inner


def _compute_in_outputs(s: Schedule) -> None:
    """Rows that the last stage only rescales are kept in the output, so that the output's memory is fetched while
    there is still something to compute."""
    for scratch in [op.result for op in s.func.body.walk() if op.name == "alloc"]:
        for output in results_of(s.func):
            try:
                s.compute_in(scratch, output)
                break
            except ScheduleError:
                continue
