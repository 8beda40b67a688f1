"""A reduction and the nest that reads its sums: what every schedule with register tiles begins from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import sym
from tilewright.loops.edit import body_of, buffer_type, extent_of, loop_var
from tilewright.loops.order.fission import Fission
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.steps.access import known, loads_in, stride_of, variables
from tilewright.schedule.trace import Schedule


@dataclass(frozen=True, eq=False)
class ReductionNest:
    """A reduction stage, the loops of the one nest that reads its sums, and for each of these the axis of the sums that
    it runs over, if any."""

    stage: Stage
    loops: list[Op]
    axis_of: dict[Op, int]

    @property
    def sums(self) -> Value:
        return self.stage.buffer

    @property
    def loads(self) -> list[Op]:
        """The loads of the operands."""
        return [op for op in loads_in(self.stage.axes[0]) if op.operands[0] is not self.sums]

    def moving(self, loop: Op) -> set[Op]:
        """The loads whose address depends on the axis of a loop (one tensor may be both operands)."""
        axis = self.axis_of.get(loop)
        if axis is None or axis >= len(self.stage.axes):
            return set()
        v = loop_var(self.stage.axes[axis])
        return {op for op in self.loads if v in variables(op.attrs["idx"])}


def reduction_of(stage: Stage, loops: list[Op]) -> ReductionNest:
    """`stage` with the nest `loops` that reads its sums. ScheduleError when it does not read them one by one, or loops
    of the stage run over several axes of the sums."""
    if len(stage.axes) + len(stage.tiles) < len(buffer_type(stage.buffer).shape):
        raise ScheduleError("a loop runs over several axes of the sums")
    by_var = {loop_var(o): o for o in loops}
    reads = [op for op in loads_in(loops[0]) if op.operands[0] is stage.buffer]
    if not reads or any(variables(r.attrs["idx"]) - set(by_var) for r in reads):
        raise ScheduleError("the sum is not read element by element")
    return ReductionNest(stage, loops, {by_var[v]: k for k, v in enumerate(reads[0].attrs["idx"]) if v in by_var})


def with_loop_of(s: Schedule, stage: Stage, loops: list[Op], axis: int) -> list[Op]:
    """The nest `loops`, which reads the sums of a stage, with one loop over an axis of the sums where several loops run
    over parts of that axis (rows that are split into lines and columns of an image)."""
    reads = [op for op in loads_in(loops[0]) if op.operands[0] is stage.buffer]
    i = reads[0].attrs["idx"][axis] if reads else sym(0)
    if i.kind in ("var", "const"):
        return loops
    strides = [(stride_of(i, loop_var(o)), o) for o in loops if loop_var(o) in i.vars]
    parts = sorted(((0 if n is None else known(n) or 0, o) for n, o in strides), key=lambda part: -part[0])
    size = sym(1)
    for stride, o in reversed(parts):
        if size is not sym(stride):
            raise ScheduleError(f"{stage.name} is not read in lines one after the other")
        size = size * extent_of(o)
    others = [o for o in loops if loop_var(o) not in i.vars]
    (_, whole), *inner = parts
    s.reorder(*others, *(o for _, o in parts))
    for _, o in inner:
        whole = s.collapse(whole, o)
    return [*others, whole]


def one_reduction(s: Schedule, lowered: Lowered) -> ReductionNest:
    """The reduction of a kernel that has one, and then one nest (of at least one loop). ScheduleError when the kernel
    has not this form."""
    reductions = [st for st in lowered.stages if st.kind == "reduce"]
    if len(reductions) != 1 or lowered.stages[0] is not reductions[0]:
        raise ScheduleError("it is not one reduction with elementwise work after it")
    stage = reductions[0]
    if not stage.axes:
        raise ScheduleError("it gives a single element")
    return reduction_of(stage, reading_nest(s, stage, lowered.stages[1:]))


def reading_nest(s: Schedule, stage: Stage, readers: Sequence[Stage]) -> list[Op]:
    """The loops of the nest that reads a stage's buffer: that of the stages `readers`, or a copy of an output."""
    if buffer_type(stage.buffer).space != "global":
        return joined(s, readers)
    if readers:
        raise ScheduleError("the sum itself is an output beside others")
    made = s.cache_write(stage.buffer)
    stage.buffer = made.buffer
    return made.drain


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


def copied(stage: Stage, copies: Mapping[Op, Op], buffer: Value) -> Stage:
    """The copy of a stage that `compute_at` has made, which fills `buffer`."""
    axes, reduce = ([copies[o] for o in loops] for loops in (stage.axes, stage.reduce))
    return Stage(stage.name, stage.kind, stage.combine, buffer, axes, reduce)


def separate_sums(s: Schedule, stage: Stage, copies: Mapping[Op, Op]) -> Fission:
    """Give clearing and summing of a fused stage nests of their own: the loops over the sum's axes of each."""
    if not stage.reduce:
        raise ScheduleError("it sums over no axis")
    axes = [copies[o] for o in stage.axes]
    innermost = body_of(axes[-1]).ops
    return s.fission(innermost[innermost.index(copies[stage.reduce[0]]) - 1], len(axes))
