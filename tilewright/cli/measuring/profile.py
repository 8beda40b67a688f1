"""`tilewright profile`: how long each kernel and layer of a model takes, and how near that is to the machine's best."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.markup import escape
from rich.table import Table

from tilewright.cli.inputs.first_calls import tried_call
from tilewright.cli.inputs.specs import dim_option, input_option, read_dims
from tilewright.cli.measuring.simulated import (
    MOST_SHOWN,
    show_simulated,
    simulated_machine,
    simulated_profile,
)
from tilewright.cli.models import (
    compile_fields,
    compile_options,
    force_option,
    is_artefact,
    model_argument,
    open_model,
    threads_option,
)
from tilewright.cli.output import console as output_console
from tilewright.cli.output import json_option, print_json
from tilewright.cli.progress import working
from tilewright.profiling.records import (
    BlockProfile,
    KernelProfile,
    LayerProfile,
    MachineRates,
    ModelProfile,
    Scaling,
)
from tilewright.profiling.run import layer_profiles, profile
from tilewright.profiling.scaling import speedup
from tilewright.profiling.trace import trace_events
from tilewright.runtime.errors import short_name
from tilewright.runtime.storage.files import check_file, check_replaced, replacing
from tilewright.viewer.plots import check_plot, plot_profile

HELP = """Time the kernels of MODEL (of a known format, or compiled with `tilewright compile --profile`), one by one.

Each kernel is told with its time, its share, what it computes and moves, how much of the best speed of this machine it
reaches (its roofline; the machine is measured once, see `tilewright info --measure`), how evenly its work is divided
among the threads, and which nodes of the model it computes.

\b
Examples:
  tilewright profile model.onnx
  tilewright profile model.tw --layers 2
  tilewright profile model.onnx --dim batch=4 --scaling
  tilewright profile model.onnx --trace model.json     (for ui.perfetto.dev)
  tilewright profile model.onnx --json
  tilewright profile model.onnx --target npu16

For a machine that is simulated (--target npu16) nothing is run: each kernel is told with its cycles, how busy each unit
is, and what moves along each route; a trace is the time line of its queues.
"""

T = TypeVar("T", KernelProfile, LayerProfile)

UNDISTURBED = 0.9
"""Share of their time that threads have on an idle machine, at least."""

DISTURBED = 0.95
"""Where the medians of the kernels come to a smaller share of what they take in a median call, this is said."""


@click.command("profile", help=HELP, short_help="Time kernels and layers beside the machine's best.")
@model_argument
@input_option
@dim_option
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, help="Runs that are timed.")
@click.option("--layers", "depth", type=click.IntRange(min=1), metavar="N",
              help="Group kernels by the first N parts of the paths of their modules  [default: whole paths]")
@click.option("--scaling", is_flag=True,
              help="Also time calls on fewer threads, and with a symbolic dim that grows with the threads.")
@click.option("--batch", metavar="DIM", help="The symbolic dim that grows (with --scaling)  [default: the first]")
@click.option("--counters", is_flag=True, help="Also count events of the hardware, where that is allowed (Linux).")
@click.option("--trace", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.json",
              help="Write a trace for ui.perfetto.dev and chrome://tracing.")
@click.option("--plot", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Plot the roofline, and with --scaling the speed-ups, as .png or .svg.")
@click.option("--all", "everything", is_flag=True, help=f"All kernels, and not the {MOST_SHOWN} that take longest.")
@json_option
@force_option
@threads_option
@compile_options
def command(
    model: Path, specs: Sequence[str], dims: Sequence[str], runs: int, depth: int | None, scaling: bool,
    batch: str | None, counters: bool, trace: Path | None, plot: Path | None, everything: bool, as_json: bool,
    force: bool, threads: int | None, **options: Any,
) -> None:  # fmt: skip
    if batch is not None and not scaling:
        raise click.UsageError("--batch is for --scaling")
    sizes = read_dims(dims)
    if trace is not None and model.exists():
        check_replaced(trace, "a trace", _may_be_trace, sources=[model], force=force)
        check_file(trace)
    if plot is not None:
        check_plot(plot, sources=[model], force=force)
    fields = compile_fields(**options)
    if (machine := simulated_machine(model, fields)) is not None:
        asked = {"--input": specs, "--scaling": scaling, "--counters": counters, "--plot": plot, "--layers": depth}
        if given := [name for name, value in asked.items() if value]:
            raise click.UsageError(f"{given[0]} is for kernels that run, and those for {machine.name} are simulated")
        show_simulated(simulated_profile(model, machine, fields, sizes, trace), machine, everything, as_json)
        return
    opened = open_model(model, threads, **({} if is_artefact(model) else {"profile": True}), **fields)
    call = tried_call(opened, specs or ["random"], sizes)
    with working("timing kernels"):
        found = profile(opened, call.inputs, runs=runs, scaling=scaling, counters=counters, batch=batch)
    found = replace(found, notes=(*call.notes, *found.notes))
    _show(found, depth, everything, as_json)
    # behind what was measured, which a full disk must not lose
    if trace is not None:
        with replacing(trace) as file:
            file.write(json.dumps(trace_events(found)).encode())
    if plot is not None:
        plot_profile(plot, found)


def _show(found: ModelProfile, depth: int | None, everything: bool, as_json: bool) -> None:
    if as_json:
        print_json(found.as_dict())
        return
    console = output_console()
    for line in summary(found):
        console.print(line, markup=False)
    console.print(kernel_table(found, None if everything else MOST_SHOWN))
    layers = found.layers if depth is None else grouped(found, depth)
    if len(layers) > 1:
        console.print(layer_table(layers, None if everything else MOST_SHOWN))
    for block in found.blocks:
        console.print(block_line(block), markup=False)
    if found.scaling is not None:
        for line in scaling_lines(found.scaling):
            console.print(line, markup=False)
    for name, count in found.counters.items():
        console.print(f"{name}: {count:,.0f} in a call", markup=False)
    for note in found.notes:
        console.print(note, markup=False)


def _may_be_trace(head: bytes) -> bool:
    return head.lstrip().startswith(b"{")


def summary(found: ModelProfile) -> list[str]:
    """What was run, what it takes, and what the machine could do."""
    sizes = "".join(f", {short_name(name)}={size}" for name, size in found.sizes.items())
    variant = f", the variant for {found.variant}" if found.variant else ""
    lines = [
        f"{short_name(found.model, 1000)}: {found.threads} threads{sizes}{variant}",
        f"a call takes {found.latency_ms:.3f} ms (median; {found.least_ms:.3f} at least), its kernels "
        f"{found.kernels_ms:.3f} ms",
    ]
    medians = sum(k.median_ms for k in found.kernels)
    if medians < DISTURBED * found.kernels_ms:
        lines.append(f"other programs disturbed the calls: the medians of the kernels come to {medians:.3f} ms")
    bounds = [k.bound_ms for k in found.kernels]
    if found.machine is not None and all(b is not None for b in bounds):
        least = sum(b for b in bounds if b is not None)
        lines.append(f"{100 * least / max(found.kernels_ms, 1e-9):.0f} % of the roofline: {least:.3f} ms at best")
    return lines + ([] if found.machine is None else machine_lines(found.machine))


def machine_lines(machine: MachineRates) -> list[str]:
    """What the machine was measured to do."""
    names = [f"{p.dtype}{f' by {p.instruction}' if p.instruction else ''}" for p in machine.peaks]
    rates = zip(names, machine.peaks, strict=True)
    peaks = "; ".join(f"{name} {p.one:.0f} and {p.every:.0f}" for name, p in rates)
    reads = "; ".join(f"{r.level} {r.one:.0f} and {r.every:.0f}" for r in machine.reads)
    lines = [
        f"{machine.facts.get('cpu', 'this machine')}, measured {machine.measured}: one thread, and {machine.threads}",
        f"  multiply-adds in billions of operations a second: {peaks}",
        f"  reading in GB/s: {reads}",
    ]
    if machine.share < UNDISTURBED:
        lines.append(f"  other programs ran meanwhile: threads had a core for {100 * machine.share:.0f} % of the "
                     "time, so that it may do more (`tilewright info --measure` measures it again)")  # fmt: skip
    return lines


def kernel_table(found: ModelProfile, most: int | None) -> Table:
    """The kernels by the time they take."""
    made = _table("kernel", "nodes")
    made.add_column("balance", justify="right", no_wrap=True)
    shown = _longest(found.kernels, most)
    if len(shown) < len(found.kernels):
        made.caption = f"the {len(shown)} of {len(found.kernels)} kernels that take longest (--all shows all)"
    for kernel in shown:
        times = f" ({kernel.count} times)" if kernel.count != 1 else ""
        balance = "" if kernel.balance is None else f"{100 * kernel.balance:.0f} %"
        made.add_row(escape(kernel.kernel + times), escape(nodes_text(kernel.nodes)), *_numbers(kernel), balance)
    return made


def nodes_text(nodes: Sequence[str]) -> str:
    """The main node, and how many others."""
    if not nodes:
        return ""
    more = f" and {len(nodes) - 1} more" if len(nodes) > 1 else ""
    return f"{short_name(nodes[0], 80)}{more}"


def layer_table(layers: Sequence[LayerProfile], most: int | None) -> Table:
    """Modules by the time that their kernels take."""
    made = _table("layer", "kernels")
    shown = _longest(layers, most)
    if len(shown) < len(layers):
        made.caption = f"the {len(shown)} of {len(layers)} layers that take longest (--all shows all)"
    for layer in shown:
        made.add_row(escape(short_name(layer.path) or "(the model itself)"), str(len(layer.kernels)), *_numbers(layer))
    return made


def block_line(block: BlockProfile) -> str:
    """Such as `12 x encoder/layer.*: 7.900 ms each, 94.8 % of the time`."""
    times = sorted(block.median_ms)
    each = f"{times[0]:.3f} to {times[-1]:.3f} ms each" if times[-1] > 1.1 * times[0] else f"{times[0]:.3f} ms each"
    return f"{block.copies} x {short_name(block.block)}: {each}, {100 * block.share:.1f} % of the time"


def grouped(found: ModelProfile, depth: int) -> tuple[LayerProfile, ...]:
    """Layers by the first parts of their paths."""
    return layer_profiles([replace(k, path="/".join(k.path.split("/")[:depth])) for k in found.kernels])


def _longest(records: Sequence[T], most: int | None) -> list[T]:
    return sorted(records, key=lambda each: -each.median_ms)[:most]


def _table(*names: str) -> Table:
    made = Table(box=None, header_style="bold", caption_justify="left")
    for name in names:
        made.add_column(name)
    for name in ("least ms", "median ms", "share", "MFLOP", "MB", "GFLOP/s", "GB/s", "roofline"):
        made.add_column(name, justify="right", no_wrap=True)
    return made


def _numbers(found: KernelProfile | LayerProfile) -> Iterable[str]:
    bound = f" {found.bound}" if isinstance(found, KernelProfile) and found.bound else ""
    return (
        f"{found.least_ms:.3f}", f"{found.median_ms:.3f}", f"{100 * found.share:.1f} %",
        _cell(found.flops, 1e6, 2), _cell(found.bytes, 1e6, 2), _cell(found.gflops), _cell(found.gbytes),
        "" if found.percent is None else f"{found.percent:.0f} %{bound}",
    )  # fmt: skip


def _cell(amount: float | None, unit: float = 1, digits: int = 1) -> str:
    return "" if amount is None else f"{amount / unit:.{digits}f}"


def scaling_lines(found: Scaling) -> list[str]:
    """What threads gain, and what they could gain at most."""
    one = found.points[0].median_ms
    times = (f"{p.threads}: {p.median_ms:.3f} ms ({one / p.median_ms:.2f} x)" for p in found.points)
    lines = [f"threads: {'; '.join(times)}"]
    if len(found.points) > 1:
        limit = "no limit" if found.limit is None else f"{found.limit:.1f} x at most with any number of threads"
        eight = speedup(found.serial, 8)
        lines.append(f"serial share {100 * found.serial:.1f} % (Amdahl's law): {limit}, {eight:.1f} x with 8")
    if found.growing:
        told = (
            f"{p.threads}: {found.batch}={p.size} {p.median_ms:.3f} ms ({gain:.2f} x the work in a time)"
            for p, gain in zip(found.growing, found.scaled, strict=True)
        )
        lines.append(f"with {found.batch} growing with the threads (Gustafson's law): {'; '.join(told)}")
    return lines
