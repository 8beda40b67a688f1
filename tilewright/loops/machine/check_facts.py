"""Whether the facts of a machine fit together, and which of them do not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from math import isfinite
from numbers import Real
from typing import Any

from tilewright.ir.diag import TextError
from tilewright.ir.dtype import BY_NAME
from tilewright.ir.scalar import COMPUTING
from tilewright.ir.sym import parse_sym, sym, var
from tilewright.ir.types import BufferType
from tilewright.loops.machine.intrinsics import conditions_of, kernel_of
from tilewright.target.machine import (
    ANY,
    COPY,
    GLOBAL,
    Accelerator,
    Events,
    Fact,
    Intrinsic,
    Level,
    Machine,
    Memory,
    Route,
    ScalarUnit,
    TargetError,
    VectorUnit,
)

MOST_BYTES = 1 << 62
"""Of a memory, and of a unit of a route: addresses are 64-bit numbers."""

MOST_EVENTS = 1 << 16
"""Of a pair of queues: their numbers stand in programs."""

MOST_CYCLES = 1e18
"""Of one operation, start or unit of a route: totals stay numbers that a float has."""

Found = Iterator[tuple[Fact | None, str]]
"""Facts, None for the machine as a whole, and what is wrong with them."""


def check_machine(machine: Machine) -> None:
    """TargetError when facts of a machine contradict each other, with the first such fact as it would be written, the
    line in which it is, and how many more there are."""
    found = list(contradictions(machine))
    if not found:
        return
    fact, problem = found[0]
    more = f"; there are {len(found) - 1} more" if len(found) > 1 else ""
    told = [] if fact is None else [written(fact)]
    place = fact.place if fact is not None else machine.place if isinstance(machine, Accelerator) else ("", ())
    where = ", ".join([*told, *_line(*place)])
    raise TargetError(f"machine '{machine.name}': {problem}{more}", where=where or None)


def _line(file: str, lines: tuple[int, ...]) -> list[str]:
    """A place in a file, with the lines that called the one in it where a function of the file wrote the fact."""
    if not lines:
        return []
    first, *callers = lines
    return [f"{file}:{first}" + (f" (from {' and '.join(f'line {n}' for n in callers)})" if callers else "")]


def contradictions(machine: Machine) -> Found:
    """Each fact that contradicts another or itself, with why. Where facts are of the wrong type, only those."""
    wrong = [*_types(machine)]
    yield from wrong
    if wrong:
        return
    yield from _names(machine)
    yield from _amounts(machine)
    spaces = [m.name for m in machine.memories]
    for route in machine.routes:
        yield from _route(route, spaces)
    if isinstance(machine, Accelerator):
        yield from _nowhere(machine)
    for intrinsic in machine.intrinsics:
        yield from ((intrinsic, problem) for problem in _intrinsic(machine, intrinsic, spaces))
    for unit in machine.units:
        yield from ((unit, problem) for problem in _unit(unit, spaces))
    yield from _events(machine)


def written(fact: Fact) -> str:
    """A fact as a program would write it, without what is there by default; long texts are cut."""
    told: list[str] = []
    for position, field in enumerate(_parts_of(fact)):
        value = getattr(fact, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if value != default:
            text = repr(dict(value)) if isinstance(value, Mapping) else repr(value)
            text = text if len(text) <= 60 else f"{text[:40]}...{text[-10:]}"
            told.append(text if position == len(told) and position < 3 else f"{field.name}={text}")
    return f"{type(fact).__name__}({', '.join(told)})"


def _parts_of(fact: Fact) -> list[Field[Any]]:
    """What a program gives to make it."""
    return [part for part in fields(fact) if part.init]


# Types


def _types(machine: Machine) -> Found:
    """Facts whose parts are of another type than they are declared with; annotations are texts that say it."""
    if not isinstance(machine.name, str) or not machine.name or set(machine.name) & set(", \n"):
        yield None, f"its name {machine.name!r} is no word without commas, as `target=` takes"
    kinds: tuple[tuple[str, type[Fact]], ...] = (
        ("memories", Memory), ("levels", Level), ("routes", Route), ("intrinsics", Intrinsic), ("units", VectorUnit),
        ("events", Events),
    )  # fmt: skip
    for name, kind in kinds:
        group = getattr(machine, name)
        if not isinstance(group, tuple):
            yield None, f"its {name} are a {type(group).__name__}, and no tuple"
            continue
        for fact in group:
            if isinstance(fact, kind):
                yield from _parts(fact)
            else:
                yield None, f"one of its {name} is a {type(fact).__name__}, and no {kind.__name__}"
    if isinstance(machine, Accelerator):
        yield from _parts(machine.scalar)
        if not _is_amount(machine.clock_hz) or machine.clock_hz <= 0:
            yield None, f"its clock has {machine.clock_hz!r} cycles a second"


def _parts(fact: Fact) -> Found:
    what = f"{_what(fact)}: {{}} is {{!r}}, and no {{}}"
    for field in _parts_of(fact):
        value = getattr(fact, field.name)
        problem = _why_not(str(field.type), value)
        if problem is not None:
            yield fact, what.format(field.name, value, problem)


def _why_not(declared: str, value: Any) -> str | None:
    """What a value of a declared type would be; None where it is that."""
    match declared:
        case "str":
            return None if isinstance(value, str) else "text"
        case "int" | "int | None":
            return None if _is_whole(value) or (value is None and "None" in declared) else "whole number"
        case "bool":
            return None if isinstance(value, bool) else "bool"
        case "float":
            return None if _is_amount(value) else "finite number"
        case "tuple[str, ...]":
            return None if isinstance(value, tuple) and all(isinstance(v, str) for v in value) else "tuple of texts"
        case "Mapping[str, int]":
            return None if _is_table(value) and all(map(_is_whole, value.values())) else "table of whole numbers"
        case "Mapping[str, float]":
            return None if _is_table(value) and all(map(_is_amount, value.values())) else "table of finite numbers"
        case _:
            pairs = isinstance(value, Mapping) and all(
                isinstance(v, tuple) and len(v) == 2 and all(map(_is_whole, v)) for v in value.values()
            )
            return None if pairs and _is_table(value) else "table of least and most"


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_amount(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)


def _is_table(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


# Names and amounts


def _names(machine: Machine) -> Found:
    groups: tuple[tuple[str, tuple[Memory | Level | Intrinsic | VectorUnit, ...]], ...] = (
        ("memory", machine.memories),
        ("level", machine.levels),
        ("intrinsic", machine.intrinsics),
        ("vector unit", machine.units),
        ("intrinsic or vector unit", (*machine.intrinsics, *machine.units)),
    )
    for what, facts in groups:
        names = [fact.name for fact in facts]
        for k, fact in enumerate(facts):
            if not fact.name:
                yield fact, f"a {what} has no name"
            elif fact.name in names[:k]:
                yield fact, f"has two of the {what} '{fact.name}'"
    if GLOBAL.name not in [m.name for m in machine.memories]:
        yield None, f"has no memory '{GLOBAL.name}', in which the arguments of kernels lie"
    ways = [(r.source, r.target) for r in machine.routes]
    for k, route in enumerate(machine.routes):
        if ways[k] in ways[:k]:
            yield route, f"has two routes from '{route.source}' to '{route.target}', of which programs would take one"


def _amounts(machine: Machine) -> Found:
    """Sizes and times that nothing could have."""
    for memory in machine.memories:
        if memory.level and machine.level(memory.level) is None:
            yield memory, f"memory '{memory.name}' belongs to the level '{memory.level}', which it does not have"
        align = memory.align
        if (memory.bytes is not None and not 1 <= memory.bytes <= MOST_BYTES) or not 1 <= align <= MOST_BYTES:
            yield memory, f"memory '{memory.name}' has {memory.bytes} bytes, aligned to {align}"
        elif memory.bytes is not None and align > memory.bytes:
            yield memory, f"memory '{memory.name}' has {memory.bytes} bytes, fewer than the {align} it is aligned to"
    for level in machine.levels:
        if level.count < 1:
            yield level, f"there are {level.count} of the level '{level.name}'"
    if isinstance(machine, Accelerator):
        unit = machine.scalar
        for field in _parts_of(unit):
            if not 0 <= getattr(unit, field.name) <= MOST_CYCLES:
                yield unit, f"the scalar unit takes {getattr(unit, field.name)} cycles for each {field.name}"


def _route(route: Route, spaces: Collection[str]) -> Found:
    what = f"the route from '{route.source}' to '{route.target}'"
    ends = (route.source, route.target)
    yield from ((route, problem) for problem in _spaces(f"the route on queue '{route.queue}'", ends, spaces))
    if not route.queue:
        yield route, f"{what} has no queue"
    if route.source == route.target:
        yield route, f"{what} leads to where it begins"
    times = (route.cycles, route.start)
    if not 1 <= route.unit <= MOST_BYTES or not all(0 <= n <= MOST_CYCLES for n in times):
        yield route, f"{what} takes {route.start} and {route.cycles} cycles for each {route.unit} bytes"


def _nowhere(machine: Accelerator) -> Found:
    """Routes into memories that nothing reads."""
    read = {GLOBAL.name, *(r.source for r in machine.routes), *(m for unit in machine.units for m in unit.memories)}
    for intrinsic in machine.intrinsics:
        read |= set(_spaces_of(intrinsic))
    for route in machine.routes:
        if route.target not in read and machine.memory(route.target) is not None:
            yield route, f"the route to memory '{route.target}' leads nowhere: no unit, intrinsic or route reads it"


def _spaces_of(intrinsic: Intrinsic) -> list[str]:
    try:
        return [a.type.space for a in kernel_of(intrinsic).args if isinstance(a.type, BufferType)]
    except (TextError, ValueError):
        return []  # told where the intrinsic is looked at


def _events(machine: Machine) -> Found:
    """Events of queues that are none, of no pair, or too few for what programs cannot do without: the thread that
    starts runs has to learn that they have ended."""
    queues = machine.queues()
    for k, fact in enumerate(machine.events):
        what = f"events from {fact.source!r} to {fact.target!r}"
        unknown = [q for q, more in ((fact.source, ()), (fact.target, ("",))) if q not in (ANY, *queues, *more)]
        if unknown:
            yield fact, f"{what}: there is no queue '{unknown[0]}'; its queues are {', '.join(queues) or 'none'}"
        elif fact.source == fact.target != ANY:
            yield fact, f"{what}: runs on one queue follow each other without events"
        if not 0 <= fact.count <= MOST_EVENTS:
            yield fact, f"{what}: there are {fact.count}"
        if any(_includes(before, fact) for before in machine.events[:k]):
            yield fact, f"{what}: facts before it speak of all these pairs"
    for queue in queues if machine.events else ():
        if not machine.event_count(queue, ""):
            named = next((e for e in machine.events if e.names(queue, "")), None)
            yield named or _first_on(machine, queue), f"queue '{queue}' has no event for the thread, which has to wait"


def _includes(first: Events, second: Events) -> bool:
    pairs = ((first.source, second.source), (first.target, second.target))
    return all(a in (b, ANY) for a, b in pairs)


def _first_on(machine: Machine, queue: str) -> Fact | None:
    facts: tuple[Route | Intrinsic | VectorUnit, ...] = (*machine.routes, *machine.intrinsics, *machine.units)
    return next((fact for fact in facts if fact.queue == queue), None)


# Units


def _unit(unit: VectorUnit, spaces: Collection[str]) -> Iterator[str]:
    what = f"vector unit '{unit.name}'"
    yield from _spaces(what, unit.memories, spaces)
    if not unit.memories:
        yield f"{what} works in no memory"
    if not unit.lanes:
        yield f"{what} has no lanes"
    for name, lanes in unit.lanes.items():
        if name not in BY_NAME:
            yield f"{what} has lanes for '{name}', which is no dtype; dtypes are {', '.join(sorted(BY_NAME))}"
        if lanes < 1:
            yield f"{what} has {lanes} lanes for {name}"
    for name, cycles in {**unit.operations, "a move": unit.move, "a start": unit.start, "across": unit.across}.items():
        if not 0 <= cycles <= MOST_CYCLES:
            yield f"{what} takes {cycles} cycles for {name}"
    for name in unit.operations:
        if name not in COMPUTING:
            yield f"{what} does '{name}', which is no scalar operation; these are {', '.join(sorted(COMPUTING))}"


def _intrinsic(machine: Machine, intrinsic: Intrinsic, spaces: Collection[str]) -> Iterator[str]:
    what = f"intrinsic '{intrinsic.name}'"
    if intrinsic.name == COPY:
        yield f"{what} has the name of what moves data along routes"
    try:
        kernel = kernel_of(intrinsic)
        used = {v for c in conditions_of(intrinsic, kernel) for v in c.vars}
    except (TextError, ValueError) as error:
        yield f"the text of {what} cannot be read: {getattr(error, 'what', error)}"
        return
    dims = {d.name for d in kernel.dims}
    unknown = sorted({*intrinsic.sizes, *(v.name for v in used)} - dims)
    if unknown:
        yield f"{what} has no dim '{unknown[0]}'"
    for dim, (least, most) in intrinsic.sizes.items():
        if not 1 <= least <= most:
            yield f"{what} takes sizes from {least} to {most} along dim '{dim}'"
    types = [a.type for a in kernel.args if isinstance(a.type, BufferType)]
    yield from _spaces(what, [t.space for t in types], spaces)
    smallest = {d: least for d, (least, _) in intrinsic.sizes.items()}
    yield from _room(machine, what, types, smallest)
    yield from _cycles(intrinsic, what, dims)


def _cycles(intrinsic: Intrinsic, what: str, dims: Collection[str]) -> Iterator[str]:
    try:
        cycles = parse_sym(intrinsic.cycles, var)
    except (TextError, ValueError) as error:
        yield f"the cycles of {what} cannot be read: {getattr(error, 'what', error)}"
        return
    unknown = sorted({v.name for v in cycles.vars} - set(dims))
    if unknown:
        yield f"{what} has no dim '{unknown[0]}', of which its cycles speak"
        return
    for k in (0, 1):
        sizes = {d: intrinsic.sizes.get(d, (1, 1))[k] for d in dims}
        taken = cycles.evaluate(sizes)
        if not 0 <= taken <= MOST_CYCLES:
            told = ", ".join(f"{d}={n}" for d, n in sorted(sizes.items()) if var(d) in cycles.vars)
            yield f"{what} takes {taken} cycles{f' for {told}' if told else ''}"
            return


def _room(machine: Machine, what: str, types: Iterable[BufferType], least: Mapping[str, int]) -> Iterator[str]:
    """The smallest operands that an intrinsic takes must fit into their memories, together."""
    needed: dict[str, int] = {}
    for type in types:
        size = type.size.subs({v: sym(least[v.name]) for v in type.size.vars if v.name in least})
        if size.is_const:
            needed[type.space] = needed.get(type.space, 0) + size.value * type.dtype.bytes
    for name, total in needed.items():
        memory = machine.memory(name)
        if memory is not None and memory.bytes is not None and total > memory.bytes:
            yield f"{what} takes operands of {total} bytes in memory '{name}', which has {memory.bytes}"


def _spaces(what: str, names: Iterable[str], spaces: Collection[str]) -> Iterator[str]:
    for name in names:
        if name not in spaces:
            known = ", ".join(sorted(spaces))
            yield f"{what} names the memory '{name}', which it does not have; its memories are {known}"


def _what(fact: Fact) -> str:
    if isinstance(fact, Route | Events):
        what = "the route" if isinstance(fact, Route) else "events"
        return f"{what} from {fact.source!r} to {fact.target!r}"
    names: dict[type[Fact], str] = {
        Memory: "memory", Level: "level", Intrinsic: "intrinsic", VectorUnit: "vector unit"
    }  # fmt: skip
    return "the scalar unit" if isinstance(fact, ScalarUnit) else f"{names[type(fact)]} {getattr(fact, 'name', '')!r}"
