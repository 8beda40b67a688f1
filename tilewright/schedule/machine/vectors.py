"""Elementwise work, and reductions of rows, on a vector unit of the machine.

    for block { what it reads comes into the unit's memory; the unit computes; the result goes out }

Copies for the next block and the way out of the last one run beside the work on this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod
from typing import Any

from tilewright.cost.machine.vector_blocks import block_elements
from tilewright.cost.machine.ways import instances, room, way
from tilewright.graph.fusion.classify import OpClass, OpInfo
from tilewright.graph.fusion.strategy import Join, Match
from tilewright.ir.core import Op, Value
from tilewright.ir.diag import ScheduleError
from tilewright.ir.rewrite import NoMatch
from tilewright.ir.sym import ZERO, Sym, affine_in, sym
from tilewright.loops.analysis.bounds import box
from tilewright.loops.analysis.deps import Access, accesses
from tilewright.loops.edit import body_of, buffer_type, extent_of, is_loop, loop_var
from tilewright.loops.machine.copies import Copy, copy_in
from tilewright.loops.machine.vector_unit import why_not_computed
from tilewright.loops.stages import Lowered
from tilewright.schedule.machine.cores import run_on_instances, shared
from tilewright.schedule.strategy import Strategy
from tilewright.schedule.trace import Schedule
from tilewright.target.machine import GLOBAL, Accelerator, Route, VectorUnit

WIDE = (OpClass.ELEMENTWISE, OpClass.ROW_REDUCTION)


class MachineVectors(Strategy):
    """One nest of elementwise work or of sums along rows. What a unit does not do is left to others, with the
    reason."""

    name = "vector_unit"
    kind = Accelerator.kind

    def claims(self, op: Op, info: OpInfo) -> bool:
        return info.kind in WIDE

    def join(self, join: Join) -> Match | NoMatch | None:
        if not isinstance(join.producer.strategy, MachineVectors) or join.info.kind is not OpClass.ELEMENTWISE:
            return None
        if not isinstance(join.consumer.strategy, MachineVectors):
            return None
        if not join.info.is_pointwise or not all(
            _is_part_of_lines(o) or (join.facts.info(o).kind is OpClass.ELEMENTWISE and join.facts.info(o).is_pointwise)
            for o in (*join.producer.ops, *join.consumer.ops)
        ):
            return NoMatch("it moves elements, or adds them up")
        if join.producer.domain != join.consumer.domain:
            return NoMatch("they have other shapes")
        return Match(join.consumer.domain) if join.is_only_reader() else NoMatch("it is needed elsewhere too")

    def schedule(self, s: Schedule, lowered: Lowered, target: Any) -> None:
        if len(lowered.stages) != 1 or not lowered.stages[0].axes:
            raise ScheduleError("it is not one nest of loops")
        (stage,) = lowered.stages
        if len(s.func.body.ops) != 2 or not all(extent_of(o).is_const for o in (*stage.axes, *stage.reduce)):
            raise ScheduleError("something stands beside its loops, or its sizes are not known")
        if stage.reduce:
            _nest(s, stage.axes, stage.reduce, target)
            return
        pieces = _pieces(s, stage.axes)
        for root in pieces:
            _nest(s, _axes_of(root), [], target, len(pieces))


def _pieces(s: Schedule, axes: Sequence[Op]) -> list[Op]:
    """The nests between the positions of an axis at which another operand is read, as where several follow each
    other."""
    places: dict[Op, set[int]] = {}
    for op in axes[0].walk():
        if op.name == "index" and (turn := _turns_at(op.attrs["expr"], axes)) is not None:
            places.setdefault(turn[0], set()).add(turn[1])
    if len(places) != 1:
        return [axes[0]]
    ((axis, positions),) = places.items()
    s.reorder(axis, *(o for o in axes if o is not axis))
    rest, before = axis, 0
    for at in sorted(positions):
        _, rest = s.split_range(rest, at - before)
        before = at
    s.simplify()
    return [op for op in s.func.body.ops if is_loop(op)]


def _turns_at(condition: Sym, axes: Sequence[Op]) -> tuple[Op, int] | None:
    """The axis, and the first position or the first one beyond, where a condition on positions holds."""
    for axis in axes:
        v = loop_var(axis)
        found = affine_in(condition.args[0], v) if condition.kind == "ge0" and condition.vars == {v} else None
        if found is not None and found[0].is_const and found[1].is_const and abs(found[0].value) == 1:
            at = -found[1].value if found[0].value == 1 else found[1].value + 1
            return (axis, at) if 0 < at < extent_of(axis).value else None
    return None


def _axes_of(root: Op) -> list[Op]:
    axes = [root]
    while len(body_of(axes[-1]).ops) == 1 and is_loop(body_of(axes[-1]).ops[0]):
        axes.append(body_of(axes[-1]).ops[0])
    return axes


def _nest(s: Schedule, axes: Sequence[Op], sums: Sequence[Op], target: Accelerator, among: int = 1) -> None:
    """One nest in blocks: what it reads comes in, the work, and the result goes out. It is one among some that share
    the memory."""
    moves = not sums and isinstance(copy_in([axes[0]]), Copy)
    unit = target.units[0] if moves else _unit(target, axes[0])
    memory = unit.memories[0]
    if any(o.operands[-1].op is not None for o in axes[0].walk() if o.name in ("load", "store")):
        raise ScheduleError("it keeps something between its loops")
    nest, blocks = _cut(s, axes, [extent_of(o).value for o in sums], target, memory, room(target, memory) // among)
    cores = None
    if blocks is not None and not blocks.attrs.get("overlap"):
        cores, blocks = shared(s, blocks, target, memory)
    if moves:
        _move(s, nest, memory, target)
    else:
        drain = _move_and_compute(s, nest, unit, memory, target)
    if blocks is not None and extent_of(blocks).value > 1:
        with s.noting("blocks follow each other"):
            if moves:
                s.pipeline(blocks)
            else:
                s.overlap(blocks, drain)
    run_on_instances(s, cores, target, memory, among)


def _is_part_of_lines(op: Op) -> bool:
    """Whether an op is a slice whose elements follow each other along the last axis, as its readers ask."""
    return op.attrs.keys() >= {"starts", "sizes", "steps"} and op.attrs["steps"][-1:] == (1,)


def _unit(machine: Accelerator, nest: Op) -> VectorUnit:
    """The vector unit that does what a nest does, once its operands are there."""
    reasons = []
    for unit in machine.units:
        reason = why_not_computed(unit, [nest])
        if reason is None:
            return unit
        reasons.append(reason)
    raise ScheduleError("; ".join(reasons) or f"machine '{machine.name}' has no vector unit")


def _cut(
    s: Schedule, axes: Sequence[Op], sums: Sequence[int], machine: Accelerator, memory: str, bytes: int
) -> tuple[Op, Op | None]:
    """Cut the loops so that what the inner ones touch fits into so many bytes; they, and the loop around them."""
    extents = [extent_of(o).value for o in axes]
    cores = instances(machine, memory)
    most = block_elements(prod(extents) * prod(sums) // cores)
    used = accesses([axes[0]])
    k, length = _block(extents, prod(sums), most)
    while 2 * _touched(used, axes, k, length) > bytes - 1024:  # windows reach beyond the block
        if most == 1:
            raise ScheduleError(f"a row and what it is computed of do not fit into memory '{memory}'")
        most //= 2
        k, length = _block(extents, prod(sums), most)
    if prod(sums) > most:
        raise ScheduleError(f"{prod(sums)} elements of a row do not fit into memory '{memory}'")
    if k == 0:
        return axes[0], None
    if cores > 1:  # which share blocks of one length
        even = [n for n in range(ceil(length / 2), length + 1) if extents[k - 1] % n == 0]
        length = even[-1] if even else length
    parts = s.split(axes[k - 1], length, tail="overlap" if extents[k - 1] % length else "guard")
    around = [*axes[: k - 1], parts.outer]
    while len(around) > 1:
        inner = around.pop()
        around[-1] = s.collapse(around[-1], inner)
    return parts.inner, around[0] if extent_of(around[0]).value > 1 else None


def _block(extents: Sequence[int], inside: int, most: int) -> tuple[int, int]:
    """How a block of at most so many elements is cut: the axes from the k-th on whole, and a length of the one before;
    (0, 0) where all is one block."""
    k = len(extents)
    while k and inside * extents[k - 1] <= most:
        k -= 1
        inside *= extents[k]
    if k == 0:
        return 0, 0
    return k, ceil(extents[k - 1] / ceil(extents[k - 1] / max(1, most // inside)))  # of about the same length


def _touched(used: Sequence[Access], axes: Sequence[Op], k: int, length: int) -> int:
    """Bytes of the boxes of all buffers that a block touches."""
    lengths = {loop_var(o): length if n == k - 1 else 1 for n, o in enumerate(axes[:k])}
    boxes: dict[Value, list[Access]] = {}
    for access in used:
        boxes.setdefault(access.buffer, []).append(access)
    total = 0
    for buffer, found in boxes.items():
        ranges = [
            {loop_var(o): (ZERO, sym(lengths.get(loop_var(o), extent_of(o).value)) - 1) for o in a.loops} for a in found
        ]
        touched = box([a.idx for a in found], ranges)
        sizes = None if touched is None else [d.value for d in touched.sizes if d.is_const]
        whole = buffer_type(buffer)
        total += whole.dtype.bytes * prod(sizes if sizes is not None and len(sizes) == len(whole.shape) else
                                          [d.value for d in whole.shape])  # fmt: skip
    return total


def _move(s: Schedule, nest: Op, memory: str, machine: Accelerator) -> None:
    """What only moves elements goes through the memory as copies do, and needs no unit."""
    made = s.cache(s.func.args[-1], nest, space=memory)
    into = s.async_copy(nest, _route(machine, GLOBAL.name, memory))
    out = s.async_copy(made.drain[0], _route(machine, memory, GLOBAL.name))
    s.wait(into, out)
    s.wait(out, out, "after")


def _move_and_compute(s: Schedule, nest: Op, unit: VectorUnit, memory: str, machine: Accelerator) -> Op:
    """Operands in, work, result out; the run that brings it out."""
    result = s.func.args[-1]
    read = list(dict.fromkeys(o.operands[0] for o in nest.walk() if o.name == "load" and o.operands[0] is not result))
    ready = []
    for value in read:
        route = _route(machine, GLOBAL.name, memory)
        ready.append(s.async_copy(s.cache(value, nest, space=memory).fill[0], route))
    made = s.cache(result, nest, space=memory)
    if made.fill:
        raise ScheduleError("it adds to what its result has been")
    out = s.async_copy(made.drain[0], _route(machine, memory, GLOBAL.name))
    work = s.tensorize(nest, unit)
    for run in ready:
        s.wait(run, work)
    s.wait(work, work, "after")
    s.wait(out, out, "after")
    return out


def _route(machine: Accelerator, source: str, target: str) -> Route:
    path = way(machine, source, target)
    if path is None or len(path) != 1:
        raise ScheduleError(f"machine '{machine.name}' has no route from memory '{source}' to memory '{target}'")
    return path[0]
