"""The texts of intrinsics as programs, and whether the facts of a machine fit together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tilewright.ir.core import Func
from tilewright.ir.diag import TextError
from tilewright.ir.sym import Sym, parse_sym, sym, var
from tilewright.ir.types import BufferType
from tilewright.loops.kernel_info import parse_kernel
from tilewright.target.machine import COPY, GLOBAL, Intrinsic, Machine, TargetError


def kernel_of(intrinsic: Intrinsic) -> Func:
    """What it computes, as a kernel over its operands."""
    return parse_kernel(intrinsic.body)


def conditions_of(intrinsic: Intrinsic, kernel: Func) -> tuple[Sym, ...]:
    """Its limits as expressions over the dims of its kernel, not 0 where they hold."""
    return tuple(_expression(text, kernel) for text in intrinsic.limits)


def _expression(text: str, kernel: Func) -> Sym:
    dims: dict[str, Sym] = {d.name: d for d in kernel.dims}
    return parse_sym(text, lambda name: dims[name] if name in dims else var(name))


def check_machine(machine: Machine) -> None:
    """TargetError when facts of a machine contradict each other: a name twice, or one that it does not declare."""
    spaces = [m.name for m in machine.memories]
    _check_unique(machine, "memory", spaces)
    _check_unique(machine, "level", [level.name for level in machine.levels])
    _check_unique(machine, "intrinsic", [i.name for i in machine.intrinsics])
    if GLOBAL.name not in spaces:
        _wrong(machine, f"has no memory '{GLOBAL.name}', in which the arguments of kernels lie")
    for memory in machine.memories:
        if memory.level and machine.level(memory.level) is None:
            _wrong(machine, f"memory '{memory.name}' belongs to the level '{memory.level}', which it does not have")
    _check_amounts(machine)
    for route in machine.routes:
        _check_spaces(machine, f"the route on queue '{route.queue}'", (route.source, route.target), spaces)
    for intrinsic in machine.intrinsics:
        _check_intrinsic(machine, intrinsic, spaces)
    named = [*(i.name for i in machine.intrinsics), *(u.name for u in machine.units)]
    _check_unique(machine, "intrinsic or vector unit", named)
    for unit in machine.units:
        what = f"vector unit '{unit.name}'"
        _check_spaces(machine, what, unit.memories, spaces)
        for name, lanes in unit.lanes.items():
            if lanes < 1:
                _wrong(machine, f"{what} has {lanes} lanes for {name}")


def _check_amounts(machine: Machine) -> None:
    """Sizes and times that nothing could have."""
    for memory in machine.memories:
        if (memory.bytes is not None and memory.bytes < 1) or memory.align < 1:
            _wrong(machine, f"memory '{memory.name}' has {memory.bytes} bytes, aligned to {memory.align}")
    for level in machine.levels:
        if level.count < 1:
            _wrong(machine, f"there are {level.count} of the level '{level.name}'")
    for route in machine.routes:
        what = f"the route from '{route.source}' to '{route.target}'"
        if not route.queue:
            _wrong(machine, f"{what} has no queue")
        if route.unit < 1 or route.cycles < 0 or route.start < 0:
            _wrong(machine, f"{what} takes {route.start} and {route.cycles} cycles for each {route.unit} bytes")


def _check_intrinsic(machine: Machine, intrinsic: Intrinsic, spaces: Collection[str]) -> None:
    what = f"intrinsic '{intrinsic.name}'"
    if intrinsic.name == COPY:
        _wrong(machine, f"{what} has the name of what moves data along routes")
    try:
        kernel = kernel_of(intrinsic)
        used = {v for c in conditions_of(intrinsic, kernel) for v in c.vars}
    except (TextError, ValueError) as error:
        raise TargetError(f"machine '{machine.name}': the text of {what} cannot be read: {error}") from error
    dims = {d.name for d in kernel.dims}
    unknown = sorted({*intrinsic.sizes, *(v.name for v in used)} - dims)
    if unknown:
        _wrong(machine, f"{what} has no dim '{unknown[0]}'")
    types = [a.type for a in kernel.args if isinstance(a.type, BufferType)]
    _check_spaces(machine, what, [t.space for t in types], spaces)
    _check_room(machine, what, types, {d: sym(least) for d, (least, _) in intrinsic.sizes.items()})
    try:
        cycles = parse_sym(intrinsic.cycles, var)
    except (TextError, ValueError) as error:
        raise TargetError(f"machine '{machine.name}': the cycles of {what} cannot be read: {error}") from error
    unknown = sorted({v.name for v in cycles.vars} - dims)
    if unknown:
        _wrong(machine, f"{what} has no dim '{unknown[0]}', of which its cycles speak")


def _check_room(machine: Machine, what: str, types: Iterable[BufferType], least: Mapping[str, Sym]) -> None:
    """The smallest operands that an intrinsic takes must fit into their memories, together."""
    needed: dict[str, int] = {}
    for type in types:
        size = type.size.subs({v: least[v.name] for v in type.size.vars if v.name in least})
        if size.is_const:
            needed[type.space] = needed.get(type.space, 0) + size.value * type.dtype.bytes
    for name, total in needed.items():
        memory = machine.memory(name)
        if memory is not None and memory.bytes is not None and total > memory.bytes:
            _wrong(machine, f"{what} takes operands of {total} bytes in memory '{name}', which has {memory.bytes}")


def _check_unique(machine: Machine, what: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            _wrong(machine, f"has two of the {what} '{name}'")


def _check_spaces(machine: Machine, what: str, names: Iterable[str], spaces: Collection[str]) -> None:
    for name in names:
        if name not in spaces:
            known = ", ".join(sorted(spaces))
            _wrong(machine, f"{what} names the memory '{name}', which it does not have; its memories are {known}")


def _wrong(machine: Machine, problem: str) -> None:
    raise TargetError(f"machine '{machine.name}': {problem}")
