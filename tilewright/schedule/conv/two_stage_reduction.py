"""Sums of lines, in the kernel that writes the lines.

    for ... {                                 the loops around the lines of the kernel
      for tiles of the line { ... y = ... }   as the kernel's own schedule makes them
      acc: reg[lanes] = 0
      for columns { acc[:] += y[.., column, :] }
      sums[..] = acc
    }

The line is read again from L1.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.algorithms.two_stage_reduction import writes_lines
from tilewright.graph.fusion.refusals import not_worth
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.loops.edit import block_of, buffer_type, is_loop, reason_of
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.steps.access import loads_in
from tilewright.schedule.steps.blocked_summation import is_deep, sum_in_parts
from tilewright.schedule.trace import Schedule


def joins_line_sums(join: Join) -> Match | NoMatch | None:
    """Whether lines are summed as soon as the producer, a kernel of windows, has written them; a kernel that does so
    takes nothing else. None where it is about no such sum."""
    producer, info = join.producer, join.facts.info
    if join.has(lambda i: i.sums_lines, producer):
        return not_worth("the kernel ends with sums of its lines, and takes no work after them")
    if not join.info.sums_lines:
        return None
    if len(join.consumer.ops) > 1 or not info(join.source).is_pointwise or not writes_lines(join.value):
        return NoMatch("what it sums is not written line by line")
    if join.source is not producer.ops[-1]:
        return NoMatch("the kernel computes something else after these lines")
    return Match(producer.domain)


def take_line_sums(lowered: Lowered) -> tuple[Lowered, Stage | None]:
    """The kernel without its last stage, and that stage, where it sums lines of what another one writes: both are then
    results of the kernel."""
    *others, last = lowered.stages
    is_output = buffer_type(last.buffer).space == "global"
    beside = any(buffer_type(st.buffer).space == "global" for st in others)
    if last.kind != "reduce" or not is_output or not beside or len(last.reduce) != 1 or not last.axes:
        return lowered, None
    return Lowered(lowered.func, others), last


def sum_lines(s: Schedule, stage: Stage, cut: Callable[[list[Op]], list[Op]] = lambda around: around) -> None:
    """Sum lines where the kernel's only other nest writes them. `cut` splits and orders the loops around a line as
    those of that nest are. ScheduleError where the sums can be in no loop of that nest."""
    (columns,) = stage.reduce
    assert stage.init is not None
    deep = is_deep(stage.reduce)
    lane = stage.axes[-1]
    line = next((op for op in loads_in(columns) if op.operands[0] is not stage.buffer), None)
    around = [] if line is None else stage.axes[: len(line.attrs["idx"]) - 2]
    if not around:
        raise ScheduleError("there is no loop around the lines")
    order = cut(around)
    if order[0].parent is not None:
        s.simplify(order[0])
    _into_lines(s, [o for o in order if o.parent is not None])
    sums = s.cache(stage.buffer, lane)
    clear, add = s.fission(stage.init, 1)
    s.reorder(columns, *add)
    vectors = [*clear, *add, sums.drain[-1]]
    if deep:
        vectors += [
            o for part in sum_in_parts(s, sums.buffer, [columns]) for o in (part.clear[-1], part.add[-1])
        ]
    for vector in vectors:
        s.vectorize(vector)


def _into_lines(s: Schedule, loops: list[Op]) -> None:
    """Join the loops, from the outermost on, with those before them as far as these agree."""
    for depth, loop in enumerate(loops):
        ops = block_of(loop).ops
        written = [o for o in ops[: ops.index(loop)] if is_loop(o)]
        try:
            if not written:
                raise ScheduleError("a single tile of it is written there")
            s.fuse(written[-1], loop)
        except ScheduleError as e:
            if not depth:
                raise
            s.missed.append(f"lines are summed outside of the loop that writes them: {reason_of(e)}")
            return
