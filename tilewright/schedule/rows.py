"""The default schedule of row kernels: reductions over trailing axes, and elementwise work on the same rows.

    for row parallel { for each stage { for j vector { ... } } }

Every intermediate lives for one row only, so it stays in the first-level cache.
"""

from __future__ import annotations

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.loops.lower import Lowered, Stage
from tilewright.loops.nest import body_of, buffer_type, extent_of, is_loop, kind_of
from tilewright.schedule.maps import lanes_for
from tilewright.schedule.parallelize import parallelize_outer
from tilewright.schedule.trace import Schedule
from tilewright.target.target import Target


def schedule_rows(s: Schedule, lowered: Lowered, target: Target) -> None:
    """Run all stages on one row at a time. ScheduleError when they do not share their row axes."""
    for stage in [st for st in lowered.stages if st.kind == "reduce"]:
        if buffer_type(stage.buffer).space == "global":
            _through_scratch(s, lowered, stage)
    shared = _shared_axes(lowered)
    final = [st for st in lowered.stages if buffer_type(st.buffer).space == "global"]
    for k in range(shared):
        for other in final[1:]:
            s.fuse_siblings(final[0].axes[k], other.axes[k])
    if shared:
        row = final[0].axes[shared - 1]
        for stage in reversed(lowered.stages):
            if stage not in final:
                s.fuse_at(stage.buffer, row)
    s.simplify()
    parallelize_outer(s, target)  # before vectors: indices are still simple to reason about
    for loop in [op for op in s.func.body.walk() if is_loop(op)]:
        if loop.parent is not None and not any(is_loop(op) for op in body_of(loop).walk()):
            vectorize_inner(s, loop, target)
    s.simplify()


def _through_scratch(s: Schedule, lowered: Lowered, stage: Stage) -> None:
    """Sum in a buffer of its own, so that the row nest can hold the sum."""
    output = stage.buffer
    made = s.cache_write(output)
    stage.buffer = made.buffer
    lowered.stages.append(Stage(output.name, "map", "", output, axes=made.drain))


def _shared_axes(lowered: Lowered) -> int:
    """How many leading axes all stages have in common."""
    rows = [[extent_of(o) for o in st.axes] for st in lowered.stages]
    reduced = [len(st.axes) for st in lowered.stages if st.kind == "reduce"]
    shared = 0
    while shared < min(map(len, rows)) and all(r[shared] == rows[0][shared] for r in rows):
        shared += 1
    shared = min([shared, *reduced])
    if not shared and any(rows):
        raise ScheduleError("the stages share no leading axis")
    return shared


def vectorize_inner(s: Schedule, loop: Op, target: Target) -> None:
    """A reduction into lanes, or independent elements; loops that allow neither stay as they are."""
    lanes = lanes_for(loop, target)
    if lanes < 2 or kind_of(loop) != "serial":
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
