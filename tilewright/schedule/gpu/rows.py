"""Rows by groups: the threads of a group share a row, and what they have summed each is added in a tree.

    for row group {
      for each stage {
        parts of the threads = 0                               (shared)
        for thread { part += what is a thread's of the row }
        barrier; half as many parts; barrier; ...              (shared)
      }
    }

All stages of a row are in one dispatch; what is kept of a row lies in shared memory or in the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.graph.fusion.strategy import Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.analysis.deps import accesses, accumulators, written_buffers
from tilewright.loops.edit import body_of, buffer_type, extent_of, is_inside, is_loop, kind_of, loop_var
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.stages import Lowered
from tilewright.schedule.rows.row_reduction import (
    RowReduction,
    compute_in_outputs,
    share_iterations,
    share_rows,
)
from tilewright.schedule.steps.access import perfect_nest
from tilewright.schedule.strategy import FusedRegion, Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.webgpu import GROUP, REGISTERS, SHARED, THREAD, Gpu


class GpuRows(Strategy):
    """The kernels of `GpuRowReduction` with a group for each row, where rows are as long as a group."""

    name = "gpu_rows"
    kind = "gpu"

    def match(self, region: FusedRegion) -> Match | NoMatch:
        return Match() if isinstance(region.strategy, RowReduction) else NoMatch("it is no reduction of rows")

    def schedule(self, s: Schedule, lowered: Lowered, target: Gpu) -> None:
        if not share_rows(s, lowered):
            raise ScheduleError("a whole tensor is one row")
        row = _row(s)
        s.simplify()
        for block in [body_of(row), *(body_of(op) for op in row.walk() if is_loop(op) and op is not row)]:
            share_iterations(s, block)
        compute_in_outputs(s)
        _share_memory(s, row)
        nests = [op for op in body_of(row).ops if is_loop(op)]
        longest = _longest(nests)
        if longest is not None and longest < target.alone:
            raise ScheduleError(f"rows of {longest} elements are shorter than a group")
        count = target.alone if longest is None or longest < target.long_row else target.threads
        for nest in nests:
            _threads(s, nest, count)
        s.parallel(row, GROUP)
        s.simplify()
        _barriers(s, row)
        if isinstance(wrong := slots_of(s.func, target), tuple):
            raise ScheduleError(wrong[0])


def _row(s: Schedule) -> Op:
    """The loop over rows."""
    loops = [op for op in s.func.body.ops if is_loop(op)]
    if len(loops) != 1:
        raise ScheduleError("its stages are no single nest")
    row, *inner = perfect_nest(loops[0])
    for loop in inner:
        row = s.collapse(row, loop)
    if extent_of(row) == 0:
        raise ScheduleError("it has no element")
    return row


def _share_memory(s: Schedule, row: Op) -> None:
    """What is kept of a row is for all threads of its group."""
    for op in [op for op in s.func.body.walk() if op.name == "alloc"]:
        if not is_inside(op, row) or not buffer_type(op.result).size.is_const:
            raise ScheduleError("what it keeps of a row has no known size")
        s.set_space(op.result, SHARED)


def _longest(nests: Sequence[Op]) -> int | None:
    """Elements of the longest nest; None where that is unknown."""
    found = 0
    for nest in nests:
        elements = 1
        for loop in perfect_nest(nest):
            if not extent_of(loop).is_const:
                return None
            elements *= extent_of(loop).value
        found = max(found, elements)
    return found


def _threads(s: Schedule, nest: Op, count: int) -> None:
    """Share the elements of a nest among threads, each of which takes every `count`-th one."""
    outer, *inner = perfect_nest(nest)
    for loop in inner:
        outer = s.collapse(outer, loop)
    sums = list(_sums(outer))
    parts = s.split(outer, count)
    s.reorder(parts.inner, parts.outer)
    trees = [s.tree_reduce(buffer, parts.inner, SHARED) for buffer in sums]
    for tree in trees:
        s.cache(tree.parts, parts.outer, space=REGISTERS)
    s.parallel(parts.inner, THREAD)
    for tree in trees:
        for step in tree.steps[:-1]:  # of the last one the only iteration is the first thread's
            s.parallel(step, THREAD)


def _sums(loop: Op) -> Iterator[Value]:
    """What a loop accumulates in one place."""
    found = accesses(loop)
    for buffer in accumulators(found):
        at = next(a.idx for a in found if a.buffer is buffer)
        if not any(loop_var(loop) in i.vars for i in at):
            yield buffer


def _barriers(s: Schedule, row: Op) -> None:
    """A barrier before each piece that touches what others have written since the last one, or writes what they
    touched; not where the first thread does all of it."""
    touched: dict[Value, bool] = {}
    shared = False
    for op in list(body_of(row).ops):
        if op.name == "alloc":
            continue
        found = [a for a in accesses(op) if a.buffer.op is None or is_inside(a.buffer.op, row)]
        written = written_buffers(found)
        is_shared = any(is_loop(o) and kind_of(o) == "parallel" for o in op.walk())
        meets = any(a.buffer in touched and (touched[a.buffer] or a.buffer in written) for a in found)
        if meets and (shared or is_shared):
            s.barrier(op, THREAD, "before")
            touched, shared = {}, False
        shared |= is_shared
        for a in found:
            touched[a.buffer] = touched.get(a.buffer, False) or a.buffer in written
