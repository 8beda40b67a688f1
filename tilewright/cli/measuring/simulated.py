"""`tilewright profile` for machines that are simulated: cycles from the facts of the machine, without a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

import tilewright
from tilewright.cli.models import is_artefact, need_no_options
from tilewright.cli.output import console as output_console
from tilewright.cli.output import print_json
from tilewright.cli.progress import compiling
from tilewright.ir.diag import UnsupportedError
from tilewright.options import Options
from tilewright.runtime.errors import short_name
from tilewright.runtime.report.records import KernelCycles
from tilewright.runtime.storage.files import replacing
from tilewright.runtime.storage.records import plain
from tilewright.session import Session
from tilewright.simulator.timeline import timeline_events
from tilewright.simulator.totals import kernels_timed, program_cycles
from tilewright.stages import planned_modules
from tilewright.target.machine import Accelerator

MOST_SHOWN = 30
"""Rows of a table, unless all are wanted."""


def simulated_machine(model: Path, fields: Mapping[str, Any]) -> Accelerator | None:
    """The machine that a model is compiled for, where that is a simulated one."""
    target = fields["target"]
    if is_artefact(model):
        info = tilewright.load(model).artifact.target
        target = info.cpu if info.kind == Accelerator.kind else None
    found = None if target is None or ";" in target else Session().machine(Options(target=target))
    return found if isinstance(found, Accelerator) else None


def simulated_profile(
    model: Path, machine: Accelerator, fields: dict[str, Any], sizes: Mapping[str, int], trace: Path | None
) -> tuple[KernelCycles, ...]:
    """The kernels of a model with their cycles; their time line is written to `trace`."""
    if is_artefact(model):
        need_no_options(model, fields)
        if trace is not None:
            raise click.UsageError(f"--trace needs the model that {model} came from")
        report = tilewright.load(model).report()
        if report.kernels and not report.simulated:
            raise UnsupportedError(
                f"{model.name} does not say how many cycles its kernels take: they depend on sizes of the call",
                hint="profile the model itself, with --dim or --shape",
            )
        return report.simulated
    shapes, constants = fields.pop("shapes"), fields.pop("constants")
    with compiling(model.name):
        modules = planned_modules(model, options=Options.of(None, **fields), constants=constants, shapes=shapes)
    found = tuple(kernel for _, module in modules for kernel in kernels_timed(module, machine, sizes))
    if trace is not None:
        events = timeline_events([module for _, module in modules], machine, sizes, model.name)
        with replacing(trace) as file:
            file.write(json.dumps(events).encode())
    return found


def show_simulated(kernels: Sequence[KernelCycles], machine: Accelerator, everything: bool, as_json: bool) -> None:
    """Tables of units and of bytes, the kernels that take longest first; or all as JSON data."""
    total = program_cycles(kernels)
    if as_json:
        print_json({"machine": machine.name, "total": plain(total), "kernels": [plain(k) for k in kernels]})
        return
    console = output_console()
    milliseconds = total.cycles / machine.clock_hz * 1e3
    calls = sum(k.calls for k in kernels)
    told = f"{machine.name}: {total.cycles:,.0f} cycles, {milliseconds:.3g} ms at {machine.clock_hz / 1e9:g} GHz, in "
    console.print(f"{told}{calls} calls of {len(kernels)} kernels", markup=False)
    shown = sorted(kernels, key=lambda k: -k.cycles * k.calls)[: None if everything else MOST_SHOWN]
    console.print(_units(shown, total, len(kernels)))
    console.print(_routes(shown, total))
    if total.events:
        used = ", ".join(f"{pair} {count}" for pair, count in total.events.items())
        console.print(f"events in use, at most: {used}", markup=False)


def _units(kernels: Sequence[KernelCycles], total: KernelCycles, count: int) -> Table:
    """Cycles of kernels, and the share of them in which each unit is busy."""
    made = _table("kernel", "node", "bound")
    for name in ("calls", "cycles", "share", *total.busy):
        made.add_column(escape(name), justify="right", no_wrap=True)
    if len(kernels) < count:
        made.caption = f"the {len(kernels)} of {count} kernels that take longest (--all shows all)"
    for kernel in (*kernels, total):
        cycles = kernel.cycles * kernel.calls
        busy = (_percent(kernel.busy.get(name, 0), kernel.cycles) for name in total.busy)
        made.add_row(*_names(kernel), kernel.bound, str(kernel.calls), f"{cycles:,.0f}",
                     _percent(cycles, total.cycles), *busy)  # fmt: skip
    return made


def _routes(kernels: Sequence[KernelCycles], total: KernelCycles) -> Table:
    """Bytes of kernels along each route, in all their calls."""
    made = _table("kernel", "node")
    for route in total.bytes:
        made.add_column(f"{escape(route)} KB", justify="right", no_wrap=True)
    for kernel in (*kernels, total):
        moved = (kernel.bytes.get(route, 0) * kernel.calls for route in total.bytes)
        made.add_row(*_names(kernel), *(f"{count / 1000:,.1f}" if count else "" for count in moved))
    return made


def _table(*names: str) -> Table:
    made = Table(box=None, header_style="bold", caption_justify="left")
    for name in names:
        made.add_column(name)
    return made


def _names(kernel: KernelCycles) -> tuple[str, str]:
    return escape(kernel.kernel or "all"), escape(short_name(kernel.node, 80))


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""
