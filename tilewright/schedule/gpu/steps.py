"""Schedules that any kernel may have: a thread for each element, where sums are a loop of the thread, or one thread.

Each stage of a kernel is a grid of its own; a barrier of the whole grid between two of them is a new dispatch. A sum
that has a stage of elementwise work behind it is one with that.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.core import Op
from tilewright.ir.diag import ScheduleError
from tilewright.ir.sym import ZERO
from tilewright.loops.edit import (
    body_of,
    buffer_type,
    extent_of,
    is_inside,
    is_loop,
    kind_of,
    loop_var,
    places_of,
)
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.order.parallel import independent_axes
from tilewright.loops.stages import Lowered, Stage
from tilewright.schedule.trace import Schedule
from tilewright.target.gpu.webgpu import DEVICE, GROUP, LAYER, REGISTERS, THREAD, Gpu


def schedule_serial(s: Schedule) -> None:
    """One thread, in order."""
    for loop in [op for op in s.func.body.walk() if is_loop(op) and kind_of(op) == "parallel"]:
        s.serial(loop)
    s.simplify()


def schedule_nests(s: Schedule, machine: Gpu) -> None:
    """For each nest of an operator with loops of its own a thread for each iteration of all its loops that are
    independent, wherever in the nest they stand: updates of which two may meet stay in order, and the elements of each
    are shared. ScheduleError where a nest has no such loop, or threads would need memory that they have not."""
    nests = [op for op in s.func.body.ops if is_loop(op)]
    others = [op for op in s.func.body.ops if op not in nests and op.name != "return"]
    if not nests or any(op.name != "alloc" or op.result.buffer.space != DEVICE for op in others):
        raise ScheduleError("it does more than to go through loops")
    for loop in [op for nest in nests for op in nest.walk() if is_loop(op) and kind_of(op) == "parallel"]:
        s.serial(loop)
    for outer in nests:
        _share_nest(s, _serial_nest(outer), machine)
    s.simplify()
    made = [op for op in s.func.body.ops if is_loop(op)]
    for outer in made[:-1]:
        s.barrier(outer, LAYER)
    if isinstance(wrong := slots_of(s.func, machine), tuple):
        raise ScheduleError(wrong[0])


def _serial_nest(outer: Op) -> list[Op]:
    """The serial loops of a perfect nest, outermost first."""
    nest = [outer]
    while (inner := body_of(nest[-1]).ops) and len(inner) == 1 and is_loop(inner[0]) and kind_of(inner[0]) == "serial":
        nest.append(inner[0])
    return nest


def _share_nest(s: Schedule, nest: Sequence[Op], machine: Gpu) -> None:
    """A thread for each iteration of all independent loops of a nest together, which goes through the others in order.
    Lengths of loops that are shared are the same in all iterations of the others."""
    variables = {loop_var(loop) for loop in nest}
    independent = [loop for loop in independent_axes(nest) if not extent_of(loop).vars & variables]
    axes = [loop for loop in independent if extent_of(loop) != 0] or independent[:1]
    if not axes:
        raise ScheduleError("a nest of its loops has none of which all iterations are independent")
    rest = [loop for loop in nest[0].walk() if is_loop(loop) and loop not in axes]
    if all(extent_of(loop) == 1 for loop in axes) and any(extent_of(loop) != 1 for loop in rest):
        raise ScheduleError("one thread would go through all of a nest of its loops")  # a CPU may do that instead
    for op in [op for op in nest[0].walk() if op.name == "alloc"]:
        if not buffer_type(op.result).size.is_const:
            raise ScheduleError("what a thread keeps has no known size")
        s.set_space(op.result, REGISTERS)
    s.reorder(*axes, *(loop for loop in nest if loop not in axes))
    flat, *inner = axes
    for loop in inner:
        flat = s.collapse(flat, loop)
    parts = s.split(flat, machine.alone if extent_of(flat) != 1 else 1)
    s.parallel(parts.inner, THREAD)
    s.parallel(parts.outer, GROUP)


def schedule_grids(s: Schedule, lowered: Lowered, machine: Gpu) -> None:
    """A thread for each element of each stage. ScheduleError where the elements of one depend on each other."""
    nests = [op for op in s.func.body.ops if is_loop(op)]
    if not nests or {st.axes[0] if st.axes else None for st in lowered.stages} != set(nests):
        raise ScheduleError("its stages are no nests of their own")
    stages = list(lowered.stages)
    if len(stages) == 2 and _is_read_once(*stages):
        with s.noting("the sums are in memory"):
            s.compute_at(stages[0].buffer, stages[1].axes[-1], space=REGISTERS)
            del stages[0]
    flat = [_threads(s, stage, machine) for stage in stages]
    s.simplify()
    for outer in flat[:-1]:
        s.barrier(outer, LAYER)


def _is_read_once(sums: Stage, reader: Stage) -> bool:
    """Whether each element of a sum is for the element of the reader in the same place, and nothing else."""
    if sums.kind != "reduce" or reader.kind != "map" or sums.buffer.op is None or not reader.axes:
        return False
    reads = [op for op in places_of(sums.buffer) if is_inside(op, reader.axes[0])]
    if len(reads) != 1 or buffer_type(sums.buffer).shape != tuple(map(extent_of, reader.axes)):
        return False
    places = zip(reads[0].attrs["idx"], reader.axes, strict=True)
    return all(index == loop_var(axis) or (index is ZERO and extent_of(axis) == 1) for index, axis in places)


def _threads(s: Schedule, stage: Stage, machine: Gpu) -> Op:
    """The loop over groups of a stage."""
    outer, *others = stage.axes
    for inner in others:
        if extent_of(inner) == 0 or body_of(outer).ops != [inner]:
            raise ScheduleError("its axes are no perfect nest")
        outer = s.collapse(outer, inner)
    if extent_of(outer) == 0:
        raise ScheduleError("it has no element")
    parts = s.split(outer, machine.alone)
    if stage.reduce:
        with s.noting("the sums stay in memory"):
            s.cache(stage.buffer, stage.reduce[0], space=REGISTERS)
    s.parallel(parts.inner, THREAD)
    s.parallel(parts.outer, GROUP)
    return parts.outer


def share(s: Schedule, nest: Sequence[Op], count: int) -> Op:
    """Share the iterations of a perfect nest among `count` threads of a group; returns the outermost loop."""
    flat, *inner = nest
    for loop in inner:
        flat = s.collapse(flat, loop)
    extent = extent_of(flat)
    if extent.is_const and extent.value <= count:
        s.parallel(flat, THREAD)
        return flat
    parts = s.split(flat, count)
    s.parallel(parts.inner, THREAD)
    return parts.outer
