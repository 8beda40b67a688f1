"""`tilewright info`: what tilewright knows of this machine."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import click
from llvmlite import binding
from rich.markup import escape
from rich.table import Table

import tilewright
from tilewright.cli.amounts import bytes_text
from tilewright.cli.measuring.profile import machine_lines
from tilewright.cli.output import console as output_console
from tilewright.cli.output import json_option, print_json
from tilewright.cli.progress import working
from tilewright.frontends.built_in import FRONT_ENDS
from tilewright.machines import PRESETS
from tilewright.options import Options
from tilewright.plugins import NO_PLUGINS, Plugins
from tilewright.profiling.machine import machine_rates
from tilewright.runtime.errors import OptionError
from tilewright.runtime.storage.records import plain
from tilewright.runtime.threads import available_cpus
from tilewright.session import Session
from tilewright.target.cpus import CPUS
from tilewright.target.host import host_target
from tilewright.target.machine import Accelerator, Machine
from tilewright.target.named import OTHER_SYSTEMS

HELP = """Show this machine as the compiler sees it, versions, formats, plugins, and the cache of compiled models.

\b
Example:
  tilewright info
  tilewright info --measure
  tilewright info --target npu16 --conformance    (a page of an accelerator)
"""


@click.command("info", help=HELP, short_help="Show the machine, versions and the cache.")
@json_option
@click.option(
    "--measure", "measured", is_flag=True,
    help="Measure what the machine does at best, and keep it for `tilewright profile` (some seconds).",
)  # fmt: skip
@click.option("--target", metavar="NAME", help="An accelerator: its facts and what follows from them, as a page.")
@click.option("--conformance", is_flag=True, help="With --target: also compile and run small programs for it, and say "
              "which are right, on what they run, and what is missing.")
def command(as_json: bool, measured: bool, target: str | None, conformance: bool) -> None:
    if target is not None:
        show_machine(target, conformance, as_json)
        return
    if conformance:
        raise click.UsageError("--conformance is for a machine: give --target")
    rates = machine_rates(Session(), again=True) if measured else None
    if as_json:
        loaded = Session().loaded_plugins
        print_json({
            **facts(),
            **({} if rates is None else {"measured": plain(rates)}),
            "formats": [front_end.formats for front_end in (*FRONT_ENDS, *loaded.front_ends)],
            "plugins": {candidate.name: plugin.parts() for candidate, plugin in loaded.used},
            "targets": ["host", *CPUS, *(machine.name for machine in loaded.machines)],
        })  # fmt: skip
        return
    table = Table(show_header=False, box=None)
    for name, value in facts().items():
        table.add_row(f"[bold]{name}", value)
    console = output_console()
    console.print(table)
    if rates is not None:
        for line in ("", *machine_lines(rates)):
            console.print(line, markup=False)
    console.print("\n[bold]formats of models")
    session = Session()
    for front_end in (*FRONT_ENDS, *session.loaded_plugins.front_ends):
        console.print(front_end.formats, markup=False)
    if session.loaded_plugins != NO_PLUGINS:
        console.print("\n[bold]plugins")
        console.print(plugins(session.loaded_plugins))
    console.print("\n[bold]machines that code can be made for (--target)")
    console.print(
        "Code for AArch64 and RISC-V has been run under emulation alone, code for Windows under Wine, code for macOS "
        "never."
    )
    console.print(targets(session.loaded_plugins.machines))


def show_machine(name: str, conformance: bool, as_json: bool) -> None:
    """The page of an accelerator."""
    from tilewright.kit.page import machine_page
    from tilewright.kit.suite import conformance as suite
    from tilewright.loops.machine.check_facts import check_machine

    machine = Session().machine(Options.of(None, target=name))
    if not isinstance(machine, Accelerator):
        raise OptionError(f"--target {name}: there are pages of accelerators, and it is no such machine")
    check_machine(machine)
    with working("running the suite"):
        outcomes = tuple(suite(machine)) if conformance else ()
    if as_json:
        print_json({"machine": machine.name, "conformance": [plain(o) | {"complete": o.complete} for o in outcomes]})
        return
    click.echo(machine_page(machine, outcomes), nl=False)


def targets(of_plugins: Sequence[Machine] = ()) -> Table:
    """The machines that have names, with their other names, and those of plugins."""
    table = Table(show_header=False, box=None)
    table.add_row("host", "this machine")
    for name, cpu in CPUS.items():
        also = f"; also {', '.join(cpu.aliases)}" if cpu.aliases else ""
        table.add_row(name, f"{cpu.about}{also}")
    for name, meant in OTHER_SYSTEMS.items():
        table.add_row(name, f"the same as {meant}; `tilewright export` makes libraries for it")
    for name in PRESETS:
        table.add_row(name, "a simulated accelerator; `tilewright info --target` has a page of it")
    for machine in of_plugins:
        table.add_row(escape(machine.name), escape(f"of a plugin, a machine of the kind '{machine.kind}'"))
    return table


def plugins(loaded: Plugins) -> Table:
    """What each plugin brings, or why it is left out."""
    table = Table(show_header=False, box=None)
    for candidate, plugin in loaded.used:
        parts = (f"{kind.replace('_', ' ')}: {', '.join(names)}" for kind, names in plugin.parts().items())
        table.add_row(escape(candidate.name), escape(candidate.distribution), escape("; ".join(parts)))
    for remark in loaded.refused:
        table.add_row(escape(remark.subject), "", escape(remark.message))
    return table


def facts() -> dict[str, str]:
    """Name and value of everything that is shown."""
    target = host_target()
    caches = target.caches
    session = Session()
    files, size = _usage(session.folder)
    return {
        "tilewright": tilewright.__version__,
        "Python": f"{platform.python_version()}, numpy {version('numpy')}, onnx {version('onnx')}",
        "LLVM": f"{'.'.join(map(str, binding.llvm_version_info))} (llvmlite {version('llvmlite')})",
        "CPU": f"{target.cpu} ({target.triple})",
        "vectors": f"{target.vector_registers} registers of {target.vector_bits} bits, "
        f"{'with' if target.has_fma else 'without'} fused multiply-add",
        "features": " ".join(target.features),
        "caches": f"L1d {bytes_text(caches.l1d)}, L2 {bytes_text(caches.l2)}, L3 {bytes_text(caches.l3)}",
        "threads": f"{available_cpus()} (affinity and quota of this process)",
        "compiled models": f"{session.folder}: {files} files, {bytes_text(size)} of at most "
        f"{bytes_text(session.limit)}",
    }


def _usage(folder: Path) -> tuple[int, int]:
    """Files and bytes of a cache folder."""
    try:
        sizes = [path.stat().st_size for path in folder.glob("*.tw")]
    except OSError:
        sizes = []
    return len(sizes), sum(sizes)
