"""The time of a whole program: its calls of kernels one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.core import Module, Op
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ir.sym import sym
from tilewright.runtime.report.records import KernelCycles
from tilewright.simulator.clock import Timed, time_kernel
from tilewright.target.machine import Accelerator


def calls_timed(
    module: Module, machine: Accelerator, sizes: Mapping[str, int] | None = None
) -> Iterator[tuple[Op, Timed]]:
    """Each call of a kernel in order, with its time. UnsupportedError for a size that `sizes` of the symbolic dims of
    the program do not say."""
    given = dict(sizes or {})
    known: dict[tuple[str, tuple[int, ...]], Timed] = {}
    for op in module.main.body.ops:
        if op.name == "call":
            name = op.attrs["kernel"]
            dims = tuple(sym(n) for n in op.attrs["dims"])
            if unknown := [v.name for n in dims for v in n.vars if v.name not in given]:
                raise UnsupportedError(
                    f"the time of kernel '{name}' depends on the size '{unknown[0]}'", hint="give it with --dim"
                )
            key = name, tuple(int(n.evaluate(given)) for n in dims)
            if key not in known:
                func = module.funcs[name]
                named = {d.name: n for d, n in zip(func.dims, key[1], strict=True)}
                known[key] = time_kernel(func, machine, named)
            yield op, known[key]


def kernels_timed(
    module: Module, machine: Accelerator, sizes: Mapping[str, int] | None = None
) -> tuple[KernelCycles, ...]:
    """The kernels of a program in the order of their first calls. UnsupportedError as `calls_timed`."""
    found: dict[tuple[str, float], KernelCycles] = {}
    for op, timed in calls_timed(module, machine, sizes):
        key = op.attrs["kernel"], timed.cycles
        if key in found:
            found[key] = replace(found[key], calls=found[key].calls + 1)
        else:
            busy = {name: n for name, n in sorted(timed.busy.items()) if n}
            bound = max(busy, key=lambda name: busy[name], default="")
            bytes = dict(sorted(timed.bytes.items()))
            found[key] = KernelCycles(
                op.attrs["kernel"], op.loc.node, 1, timed.cycles, bound, busy, bytes, dict(timed.used_events)
            )
    return tuple(found.values())


def program_cycles(kernels: Sequence[KernelCycles]) -> KernelCycles:
    """All calls of all kernels together, as one; of events the most that one of them uses."""
    events: dict[str, int] = {}
    busy: dict[str, float] = {}
    moved: dict[str, int] = {}
    for kernel in kernels:
        for name, cycles in kernel.busy.items():
            busy[name] = busy.get(name, 0) + cycles * kernel.calls
        for route, count in kernel.bytes.items():
            moved[route] = moved.get(route, 0) + count * kernel.calls
        for pair, count in kernel.events.items():
            events[pair] = max(events.get(pair, 0), count)
    cycles = sum(k.cycles * k.calls for k in kernels)
    bound = max(busy, key=lambda name: busy[name], default="")
    tables = (dict(sorted(busy.items())), dict(sorted(moved.items())), dict(sorted(events.items())))
    return KernelCycles("", "", 1, cycles, bound, *tables)


def remark_of_time(kernels: Sequence[KernelCycles], machine: Accelerator) -> Remark:
    """What the report says of a program's time."""
    total = program_cycles(kernels)
    shares = [f"{name} {n / total.cycles:.1%}" for name, n in total.busy.items() if total.cycles]
    moved = [f"{route} {n:,} bytes" for route, n in total.bytes.items()]
    milliseconds = total.cycles / machine.clock_hz * 1e3
    time = f"{total.cycles:,.0f} cycles, {milliseconds:.3g} ms at {machine.clock_hz / 1e9:g} GHz"
    told = "; ".join(filter(None, [time, ", ".join(shares), ", ".join(moved)]))
    return Remark("simulator", machine.name, told, "analysis")
