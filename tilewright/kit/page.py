"""A page of a machine, in Markdown: its facts as tables, what follows from them, and its conformance suite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewright.cost.machine.ways import MatrixUnit, way
from tilewright.kit.suite import CaseOutcome
from tilewright.schedule.machine.facts import matrix_units
from tilewright.target.machine import ANY, GLOBAL, Accelerator, Events, Intrinsic, Route


def machine_page(machine: Accelerator, outcomes: Sequence[CaseOutcome] = ()) -> str:
    """The page; without outcomes it has no suite."""
    parts = [f"# {machine.name}\n", f"An accelerator at {machine.clock_hz / 1e9:g} GHz.\n"]
    parts += ["## Memories\n", _table(("memory", "bytes", "alignment", "one for each"), _memories(machine))]
    if machine.levels:
        parts += ["## Levels\n", _table(("level", "instances"), ((v.name, v.count) for v in machine.levels))]
    parts += ["## Routes\n", _table(("route", "queue", "bytes a cycle", "start", "parts of units", "fills"),
                                    map(_route, machine.routes))]  # fmt: skip
    if machine.units:
        head = ("unit", "queue", "memories", "lanes", "cycles of a vector", "start", "sum across lanes")
        parts += ["## Vector units\n", _table(head, (
            (u.name, u.queue, ", ".join(u.memories), _pairs(u.lanes), _by_cycles(u.operations), u.start, u.across)
            for u in machine.units
        ))]  # fmt: skip
    if machine.intrinsics:
        parts += ["## Intrinsics\n", *map(_intrinsic, machine.intrinsics)]
    if machine.events:
        parts += ["## Events\n", _table(("from", "to", "events of each pair"), map(_events, machine.events))]
    units = matrix_units(machine)
    if units:
        head = ("unit", "operands into sums", "runs", "multiply-adds a cycle", "ways in", "way out", "zeroed by")
        parts += ["## Products\n", _table(head, (_product(machine, unit) for unit in units))]
    scalar = machine.scalar
    parts.append(
        f"## Scalar unit\n\nCycles: operation {scalar.operation:g}, load {scalar.load:g}, store {scalar.store:g}, "
        f"start of a run, wait or iteration {scalar.issue:g}.\n"
    )
    if outcomes:
        parts += ["## Conformance\n", summary(outcomes) + "\n", suite_table(outcomes)]
    return "\n".join(parts)


def summary(outcomes: Sequence[CaseOutcome]) -> str:
    """How many cases there are, are right, and run on units alone."""
    right, complete = sum(o.right for o in outcomes), sum(o.complete for o in outcomes)
    return f"{len(outcomes)} cases: {right} right, {complete} on units alone."


def suite_table(outcomes: Iterable[CaseOutcome]) -> str:
    """The cases with cycles, queues at work, the pair of queues that needs most events, and what is missing."""
    return _table(
        ("case", "right", "cycles", "queues", "events", "missing"),
        (
            (o.case, "yes" if o.right else "no", f"{o.cycles:,.0f}", ", ".join(o.units), _most(o.events), missing)
            for o in outcomes
            for missing in [o.error or "; ".join(o.missing)]
        ),
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(each) for each in line)} |" for line in lines) + "\n"


def _cell(value: object) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _memories(machine: Accelerator) -> Iterable[Sequence[object]]:
    for memory in machine.memories:
        size = "any" if memory.bytes is None else f"{memory.bytes:,}"
        yield memory.name, size, memory.align, memory.level or "machine"


def _route(route: Route) -> Sequence[object]:
    rate = route.unit / route.cycles if route.cycles else "any number"
    yes = {True: "yes", False: "no"}
    return f"{route.source} -> {route.target}", route.queue, rate, route.start, yes[route.partial], yes[route.fills]


def _events(fact: Events) -> Sequence[object]:
    return *("any queue" if q == ANY else q or "thread" for q in (fact.source, fact.target)), fact.count


def _most(events: Mapping[str, int]) -> str:
    pair = max(events, key=lambda pair: events[pair], default="")
    return f"{pair} {events[pair]}" if pair else ""


def _pairs(table: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in table.items())


def _by_cycles(operations: Mapping[str, float]) -> str:
    groups: dict[float, list[str]] = {}
    for name, cycles in operations.items():
        groups.setdefault(cycles, []).append(name)
    return "; ".join(f"{cycles:g}: {', '.join(names)}" for cycles, names in sorted(groups.items()))


def _intrinsic(found: Intrinsic) -> str:
    told = [f"on queue `{found.queue}`" if found.queue else "in the thread"]
    told += [f"`{name}` from {least} to {most}" for name, (least, most) in found.sizes.items()]
    told += [f"`{limit}`" for limit in found.limits]
    lines = found.body.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    body = "\n".join(line[indent:] for line in lines)
    return f"### {found.name}\n\n{'; '.join(told)}; cycles: `{found.cycles}`\n\n```text\n{body.strip()}\n```\n"


def _product(machine: Accelerator, unit: MatrixUnit) -> Sequence[object]:
    a, b, c = unit.dtypes
    runs = " x ".join(str(d.most) if d.least == d.most else f"{d.least}..{d.most}" for d in unit.dims)
    largest = [d.most for d in unit.dims]
    sizes = unit.run(*largest)
    rate = "?" if sizes is None else f"{sizes[0] * sizes[1] * sizes[2] / max(1, unit.cycles(*sizes)):g}"
    ways = "; ".join(_way(machine, GLOBAL.name, memory) for memory in unit.memories[:2])
    out = _way(machine, unit.memories[2], GLOBAL.name)
    zeroed = unit.clear.name if unit.clear else "a vector unit"
    return unit.multiply.name, f"{a} x {b} -> {c}", runs, rate, ways, out, zeroed


def _way(machine: Accelerator, source: str, target: str) -> str:
    path = way(machine, source, target)
    return "none" if path is None else " -> ".join([source, *(route.target for route in path)])
