"""The time of a whole program: its calls of kernels one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import add

from tilewright.ir.core import Module
from tilewright.ir.diag import Remark, UnsupportedError
from tilewright.ir.sym import sym
from tilewright.simulator.clock import Timed, time_kernel, without_events
from tilewright.target.machine import Accelerator


def calls_timed(module: Module, machine: Accelerator) -> Iterator[tuple[str, Timed]]:
    """Each call of a kernel in order, by the kernel's name, with its time. UnsupportedError for sizes not known."""
    known: dict[tuple[str, tuple[int, ...]], Timed] = {}
    for op in module.main.body.ops:
        if op.name == "call":
            name = op.attrs["kernel"]
            sizes = tuple(sym(n) for n in op.attrs["dims"])
            if unknown := [str(n) for n in sizes if not n.is_const]:
                raise UnsupportedError(f"the time of kernel '{name}' depends on the size '{unknown[0]}'")
            key = name, tuple(n.value for n in sizes)
            if key not in known:
                func = module.funcs[name]
                dims = {d.name: n for d, n in zip(func.dims, key[1], strict=True)}
                known[key] = time_kernel(func, machine, dims)
            yield name, known[key]


def total_of(module: Module, machine: Accelerator) -> Timed:
    """All calls together."""
    return reduce(add, (without_events(timed) for _, timed in calls_timed(module, machine)), Timed())


def remark_of_time(module: Module, machine: Accelerator) -> Remark:
    """What the report says of a program's time."""
    try:
        total = total_of(module, machine)
    except UnsupportedError as error:
        return Remark("simulator", machine.name, f"its time is not known: {error}", "analysis")
    shares = [f"{name} {n / total.cycles:.1%}" for name, n in sorted(total.busy.items()) if total.cycles and n]
    moved = [f"{route} {n:,} bytes" for route, n in sorted(total.bytes.items())]
    milliseconds = total.cycles / machine.clock_hz * 1e3
    time = f"{total.cycles:,.0f} cycles, {milliseconds:.3g} ms at {machine.clock_hz / 1e9:g} GHz"
    told = "; ".join(filter(None, [time, ", ".join(shares), ", ".join(moved)]))
    return Remark("simulator", machine.name, told, "analysis")
