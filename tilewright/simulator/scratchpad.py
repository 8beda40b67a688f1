"""What a scratchpad of an accelerator has to hold for a program, and how long that takes, from the machine's facts."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.ir.core import Module, Op
from tilewright.ir.diag import InputError
from tilewright.program.memory.scratchpad.of_program import problem_of
from tilewright.program.memory.scratchpad.problem import ScratchpadProblem, Transfer
from tilewright.simulator.clock import Timed, time_kernel
from tilewright.target.machine import GLOBAL, Accelerator, Memory, Route


def scratchpad_problem(
    module: Module, machine: Accelerator, memory: str, sizes: Mapping[str, int]
) -> ScratchpadProblem:
    """The calls of a program with their tensors in a memory of the machine. A call takes as long as the busiest of the
    units that no copy from or to the large memory runs on. InputError where the machine has no such memory, or no way
    into it from the large one."""
    place = _memory(machine, memory)
    load, store = _transfer(machine, GLOBAL.name, memory), _back(machine, memory)
    outside = {r.queue for r in machine.routes if GLOBAL.name in (r.source, r.target)}
    times: dict[str, int] = {}

    def cycles(call: Op) -> int:
        name = call.attrs["kernel"]
        if name not in times:
            func = module.funcs[name]
            dims = {d.name: sizes.get(d.name, 1) for d in func.dims}
            times[name] = _inside(time_kernel(func, machine, dims), outside)
        return times[name]

    return problem_of(module.main, cycles, sizes, place.bytes or 0, place.align, load, store)


def _inside(timed: Timed, outside: set[str]) -> int:
    return math.ceil(max((n for queue, n in timed.busy.items() if queue not in outside), default=0))


def _memory(machine: Accelerator, name: str) -> Memory:
    found = machine.memory(name)
    if found is None or found.bytes is None:
        known = ", ".join(f"'{m.name}'" for m in machine.memories if m.bytes is not None) or "none"
        raise InputError(f"machine '{machine.name}' has no scratchpad '{name}'", hint=f"its scratchpads: {known}")
    return found


def _transfer(machine: Accelerator, source: str, target: str) -> Transfer:
    route = machine.route(source, target)
    if route is None:
        raise InputError(f"machine '{machine.name}' has no route from memory '{source}' to memory '{target}'")
    return _of_route(route)


def _back(machine: Accelerator, memory: str) -> Transfer:
    """The way to the large memory: where there is none of its own, through the memories between, the slowest of which
    counts."""
    if (route := machine.route(memory, GLOBAL.name)) is not None:
        return _of_route(route)
    ways = [
        (first, last)
        for first in machine.routes
        for last in machine.routes
        if first.source == memory and first.target == last.source and last.target == GLOBAL.name
    ]
    if not ways:
        raise InputError(f"machine '{machine.name}' has no route from memory '{memory}' back to memory '{GLOBAL.name}'")
    return min((max(map(_of_route, way), key=_megabyte) for way in ways), key=_megabyte)


def _megabyte(transfer: Transfer) -> int:
    return transfer.cycles(1 << 20)


def _of_route(route: Route) -> Transfer:
    return Transfer(route.unit, math.ceil(route.cycles), math.ceil(route.start))
