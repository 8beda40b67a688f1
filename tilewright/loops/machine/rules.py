"""What a machine demands of kernels: names that it declares, operands that its intrinsics take, room in its memories,
an order between all that meets, and events for it."""

from __future__ import annotations

from functools import partial

from tilewright.ir.core import Func, Op, Value
from tilewright.ir.diag import NoRoomError, VerifyError
from tilewright.ir.types import BufferType
from tilewright.ir.verify import OpRule, Spec
from tilewright.loops.analysis.happens_before import Order
from tilewright.loops.edit import body_of, buffer_type, enclosing_loops, is_loop, kind_of, loop_var
from tilewright.loops.machine.capacity import slots_of
from tilewright.loops.machine.copies import copy_in, route_of, why_not_on
from tilewright.loops.machine.match_intrinsic import match_intrinsic
from tilewright.loops.machine.vector_unit import why_not_in_lanes
from tilewright.loops.queues.events import why_no_events
from tilewright.loops.spec import LOOPS_SPEC, alloc_rule
from tilewright.target.machine import COPY, Machine, Memory
from tilewright.target.target import Target


def spec_of(machine: Machine) -> Spec:
    """The rules of kernels for a machine; CPUs add none to those of the loops level."""
    return LOOPS_SPEC if isinstance(machine, Target) else machine_spec(machine)


def machine_spec(machine: Machine) -> Spec:
    """The loops level with the rules of a machine."""
    added: dict[str, OpRule] = {
        "alloc": alloc_rule(machine.buffer_memories),
        "for": partial(_level_rule, machine),
        "run": partial(_run_rule, machine),
        "barrier": partial(_barrier_rule, machine),
        "load": partial(_access_rule, machine),
        "store": partial(_access_rule, machine),
    }
    rules = {name: _both(LOOPS_SPEC.ops[name], rule) for name, rule in added.items() if name != "alloc"}
    return Spec(
        "loops",
        {**LOOPS_SPEC.ops, **rules, "alloc": added["alloc"]},
        partial(_kernel_rule, machine),
        declared_dims=True,
    )


def _both(first: OpRule, second: OpRule) -> OpRule:
    return lambda op: first(op) or second(op)


def _kernel_rule(machine: Machine, func: Func) -> str | tuple[str, Op] | tuple[str, Op, type[VerifyError]] | None:
    assert LOOPS_SPEC.func_rule is not None
    wrong = LOOPS_SPEC.func_rule(func)
    if wrong:
        return wrong
    slots = slots_of(func, machine)
    if isinstance(slots, tuple):
        return *slots, NoRoomError
    order = Order(func, [level.name for level in machine.levels])
    return order.why_not() or why_no_events(func, machine, order.running_at)


def _level_rule(machine: Machine, loop: Op) -> str | None:
    """Parallel loops name a level, and stand only in loops of levels around theirs."""
    if kind_of(loop) == "vector":
        return f"machine '{machine.name}' has no vector lanes"
    if kind_of(loop) != "parallel":
        return None
    level = loop.attrs.get("level")
    wrong = _unknown_level(machine, level)
    if wrong:
        return wrong
    depth = machine.level(str(level))
    assert depth is not None
    for outer in enclosing_loops(loop):
        other = machine.level(outer.attrs.get("level", ""))
        if other is not None and other >= depth:
            return f"level '{level}' is not within level '{outer.attrs['level']}' of the loop '{loop_var(outer)}'"
    return None


def _barrier_rule(machine: Machine, op: Op) -> str | None:
    return _unknown_level(machine, op.attrs["level"])


def _unknown_level(machine: Machine, level: object) -> str | None:
    if isinstance(level, str) and machine.level(level) is not None:
        return None
    known = ", ".join(f"'{found.name}'" for found in machine.levels) or "none"
    named = f"there is no level '{level}'" if level else "a parallel loop needs a level"
    return f"{named}; the levels of machine '{machine.name}' are {known}"


def _run_rule(machine: Machine, op: Op) -> str | None:
    name, queue = op.attrs["intrinsic"], op.attrs["queue"]
    if queue and queue not in machine.queues():
        known = ", ".join(machine.queues()) or "none"
        return f"there is no queue '{queue}'; the queues of machine '{machine.name}' are {known}"
    if name == COPY:
        return _copy_rule(machine, op, queue)
    unit = machine.unit(name)
    if unit is not None:
        if queue != unit.queue:
            return f"unit '{name}' runs {_where(unit.queue)}, not {_where(queue)}"
        wrong = why_not_in_lanes(unit, body_of(op).ops)
        return f"it is no work of unit '{name}': {wrong}" if wrong else None
    intrinsic = machine.intrinsic(name)
    if intrinsic is None:
        known = ", ".join([COPY, *(i.name for i in machine.intrinsics), *(u.name for u in machine.units)])
        return f"there is no intrinsic '{name}'; the intrinsics of machine '{machine.name}' are {known}"
    if queue != intrinsic.queue:
        return f"intrinsic '{name}' runs {_where(intrinsic.queue)}, not {_where(queue)}"
    found = match_intrinsic(intrinsic, body_of(op))
    return f"its body is not intrinsic '{name}': {found}" if isinstance(found, str) else None


def _copy_rule(machine: Machine, op: Op, queue: str) -> str | None:
    copy = copy_in(body_of(op).ops)
    if isinstance(copy, str):
        return f"its body is no copy: {copy}"
    route = route_of(copy, machine)
    if route is None:
        source, target = (buffer_type(v).space for v in (copy.source, copy.target))
        return f"machine '{machine.name}' has no route from memory '{source}' to memory '{target}'"
    if queue != route.queue:
        return f"the route runs {_where(route.queue)}, not {_where(queue)}"
    return why_not_on(copy, route)


def _where(queue: str) -> str:
    return f"on queue '{queue}'" if queue else "in the thread itself"


def _access_rule(machine: Machine, op: Op) -> str | None:
    """Threads see no memory of other threads: a buffer lies outside of no loop of the level whose memory it is in."""
    buffer = op.operands[-1]
    memory = _memory_of(machine, buffer)
    if memory is None or not memory.level or buffer.op is None:
        return None
    around = set(enclosing_loops(buffer.op))
    for loop in enclosing_loops(op):
        depth = machine.level(loop.attrs.get("level", "")) if is_loop(loop) else None
        if loop not in around and depth is not None and depth <= (machine.level(memory.level) or 0):
            return (
                f"each {memory.level} has a memory '{memory.name}' of its own, and '{buffer.name}' is allocated "
                f"outside of the loop '{loop_var(loop)}' of level '{loop.attrs['level']}'; allocate it inside"
            )
    return None


def _memory_of(machine: Machine, buffer: Value) -> Memory | None:
    return machine.memory(buffer.type.space) if isinstance(buffer.type, BufferType) else None
