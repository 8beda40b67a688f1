"""`tilewright diff`: two forms of one model, layer by layer, or the steps of the compilation of one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewright.cli.interrupt import leaving
from tilewright.cli.models import compile_fields, model_options, threads_option
from tilewright.cli.output import SafeConsole, print_json, say
from tilewright.cli.progress import compiling
from tilewright.comparison.compiled import diff_compiled
from tilewright.comparison.diff import RANDOM, diff
from tilewright.comparison.errors import Difference, LayerDifference
from tilewright.options import Options, Request
from tilewright.runtime.errors import short_name
from tilewright.runtime.storage.files import check_folder
from tilewright.session import Session
from tilewright.validation.recorded import feeds_of
from tilewright.validation.search.bisect import bisect

SHOWN = 12
"""Layers in the table without --all."""

PATH = 6
"""Layers before the first one beyond its bound that are shown."""

WIDTH = 200
"""Of lines that no terminal limits."""

BISECTED = "bisected"
"""The folder for what `--bisect` finds, if no other is given."""

HELP = """Compare MODEL (a quantised one, say) with REFERENCE, what it was made of, on the same inputs. Both are
files of any format that `compile` takes.

Of one MODEL the compiled program is compared with its graph in float64, kernel by kernel: the first one whose
own error is beyond the bound of its type is named, how the error grew up to it, and what probably makes it.

With --bisect one model is compared with itself: each rule, pass and kernel of its compilation with what it was made of.
The first that changes the meaning is named, and a program of a few operators that shows it is written to a folder, run
again in a process of its own, with a test that is ready to paste. Inputs are noise, values at the edges of types, and
those of --data.

Prints the error of each layer's result, relative to the result (root mean square) and in decibels; of what the layer
reads; the growth in between; and the error that the layer makes by itself, of exact inputs. The layer in which the
error grows most by what it does itself is named.

\b
Examples:
  tilewright diff model.onnx small.onnx --data samples.npz
  tilewright diff model.pt2 model.onnx --random 2 --all
  tilewright diff model.onnx small.onnx --data calls/ --json
  tilewright diff model.onnx --data calls/ --state h=hn
  tilewright diff model.onnx --bisect --data calls/
"""


@click.command("diff", help=HELP, short_help="Compare two forms of a model, layer by layer.")
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path), required=False)
@click.option("--bisect", "is_bisected", is_flag=True, help="Find the step of the compiler that makes answers wrong.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FOLDER",
              help=f"Where --bisect writes what it finds  [default: {BISECTED}]")  # fmt: skip
@click.option(
    "--data", type=click.Path(path_type=Path), help="Samples: a .npz file, or a folder of them."
)
@click.option(
    "--random", type=click.IntRange(min=1), metavar="N", help=f"So many samples of noise  [default: {RANDOM}]"
)
@click.option(
    "--samples", type=click.IntRange(min=1), default=16, show_default=True, help="Take at most so many."
)
@click.option("--all", "everything", is_flag=True, help="All layers, in the order of the model.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON data (docs/quantize.md describes it).")
@click.option(
    "--batch", type=click.IntRange(min=1), help="Samples in a call, where the first dim is symbolic."
)
@threads_option
@model_options
def command(
    reference: Path, model: Path | None, data: Path | None, random: int | None, samples: int, everything: bool,
    as_json: bool, batch: int | None, threads: int | None, is_bisected: bool, output: Path | None, **given: Any,
) -> None:  # fmt: skip
    asked, options = _asked(reference, threads, given)
    if is_bisected:
        if model is not None or random is not None or batch is not None:
            raise click.UsageError("--bisect looks at one model: give no second one, no --random and no --batch")
        bisected(reference.name, asked, options, data, output or Path(BISECTED), as_json)
        return
    if output is not None:
        raise click.UsageError("--output is for --bisect")
    if model is None:
        if random is not None or batch is not None:
            raise click.UsageError("--random and --batch are for two models")
        beside_interpreter(reference.name, asked, options, data, samples, everything, as_json)
        return
    if chosen := _options_given(given):
        raise click.UsageError(f"--{chosen[0]} is for one model, which is compiled with it")
    if data is not None and random is not None:
        raise click.UsageError("--data and --random: give one of them")
    with compiling(model.name, "comparing") as progress:
        found = diff(
            reference, model, data, random=random or RANDOM, samples=samples, batch=batch, threads=threads,
            progress=progress,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(found.record(), indent=1))
    else:
        console = SafeConsole(soft_wrap=True)
        if not console.is_terminal:
            console.width = WIDTH
        show(found, everything, console)


def _asked(model: Path, threads: int | None, given: Mapping[str, Any]) -> tuple[Request, Options]:
    """What is to be compiled, and how."""
    fields = compile_fields(**given)
    constants, shapes = fields.pop("constants"), fields.pop("shapes")
    options = Options.of(None, threads=threads, **{**fields, "cache": False})
    return Request.of(model, constants, shapes).with_states_of(options), options


def _options_given(names: Iterable[str]) -> list[str]:
    """Which of some options stand on the command line, as they are written there."""
    context = click.get_current_context()
    written = {p.name: p.opts[0].strip("-") for p in context.command.params}
    return [written[n] for n in names if context.get_parameter_source(n) is not ParameterSource.DEFAULT]


def beside_interpreter(
    model: str, asked: Request, options: Options, data: Path | None, samples: int, everything: bool, as_json: bool
) -> None:
    """The compiled model beside the interpreter of its graph."""
    feeds = () if data is None else feeds_of(data)[:samples]
    with compiling(model, "comparing") as progress:
        found = diff_compiled(asked, replace(options, validate=True), Session(), feeds, progress)
    if as_json:
        first = found.first and found.first.record()
        rounded = list(found.rounded)
        print_json({**found.difference.record(), "first": first, "cause": found.cause, "rounded": rounded})
        return
    console = SafeConsole(soft_wrap=True)
    if not console.is_terminal:
        console.width = WIDTH
    show(found.difference, everything, console)
    if found.rounded:
        say(f"the reference, in float64, computes in their own types: {', '.join(found.rounded)}")
    if found.first is None:
        say("no kernel makes an error beyond the bound of its type")
        return
    own = "" if found.first.own is None else f": {_share(found.first.own)} by itself"
    say(f"the first kernel beyond its bound is that of {found.first.layer}{own}; likely: {found.cause}")
    path = [f"{layer.layer} {_share(layer.error)}" for layer in (*found.path[-PATH:], found.first)]
    say(f"how the error grew: {' -> '.join(path)}")


def bisected(
    model: str, asked: Request, options: Options, data: Path | None, folder: Path, as_json: bool
) -> None:
    """Look for the step that changes the meaning, and tell; exit code 1 where there is one."""
    check_folder(folder)
    feeds = () if data is None else feeds_of(data)
    nothing = f"nothing was found yet, and nothing was written to {folder}"
    with leaving(nothing) as keep, compiling(model, "looking at each step") as progress:
        found = bisect(
            asked, options, Session(), feeds=feeds, folder=folder, progress=progress,
            on_found=lambda fault: keep(f"{fault}; it was not made smaller, and nothing was written to {folder}"),
            on_written=lambda place: keep(f"{place} has a program that shows the fault, which was not run again"),
        )  # fmt: skip
    fault = found.fault
    if as_json:
        names = ("culprit", "subject", "deviation", "case")
        told = {name: getattr(fault, name, None) for name in names}
        again = {"folder": found.folder, "confirmed": found.is_confirmed, "said": found.said}
        print_json({**told, **again, "calls": found.calls, "seconds": found.seconds})
    elif fault is None:
        say(f"no step of the compiler changes what {model} means, in {found.calls} calls ({found.seconds:.1f} s)")
    else:
        say(str(fault))
        if found.folder:
            ops = fault.before.main.body.ops if fault.before else ()
            count = sum(op.name not in ("return", "constant") for op in ops)
            again_said = "a fresh process gives it, too" if found.is_confirmed else "a fresh process does not give it"
            say(f"{found.folder}: {count} operators that show it, and a test; {again_said}: {found.said}")
        else:
            say(found.said)
        say(f"to go on without it: tilewright compile {model} --validate")
    if fault is not None:
        raise click.exceptions.Exit(1)


def show(found: Difference, everything: bool, console: Console) -> None:
    """The table, and in words what it says."""
    layers: Sequence[LayerDifference] = found.layers if everything else found.telling()[:SHOWN]
    table = Table(box=None, header_style="bold")
    for column in ("layer", "operator", "error", "SQNR", "before", "growth", "by itself", "largest"):
        is_name = column in ("layer", "operator")
        table.add_column(column, justify="left" if is_name else "right", overflow="fold", no_wrap=not is_name)
    for layer in layers:
        own = "" if layer.own is None else _share(layer.own)
        numbers = (_share(layer.error), _decibels(layer.sqnr), _share(layer.before), _share(layer.growth), own)
        table.add_row(*map(escape, (layer.layer, layer.operator, *numbers, f"{layer.largest:.3g}")))
    if everything or found.worst is not None:
        console.print(table)
    if not everything and layers and (more := len(found.layers) - len(layers)):
        less = "add less" if len(layers) == SHOWN else "add no error of their own"
        console.print(f"[dim]{more} more layer{'s' if more > 1 else ''} {less} (--all shows them)")
    samples = "1 sample" if found.samples == 1 else f"{found.samples} samples"
    console.print(f"{len(found.layers)} layers, {samples} of {found.data}", markup=False)
    if found.unpaired:
        console.print(f"{len(found.unpaired)} tensors have no partner", markup=False)
    for name, output in found.outputs.items():
        decibels = f", {_decibels(output.sqnr)} dB" if math.isfinite(output.sqnr) else ""
        console.print(f"output {short_name(name)}: error {_share(output.error)}{decibels}", markup=False)
    for name, reason in found.uncompared.items():
        console.print(f"output {short_name(name)}: not compared: {reason}", markup=False)
    console.print(f"[bold]{escape(verdict(found))}")
    if len(found.unpaired) > len(found.layers):
        console.print("[yellow]most tensors have no partner, so that the difference may come from one of these: is "
                      "REFERENCE what MODEL was made of?")  # fmt: skip


def verdict(found: Difference) -> str:
    """Which layer it is."""
    worst = found.worst
    if worst is None:
        return "no layer differs"
    own = "" if worst.own is None else f", {_share(worst.own)} by itself"
    return (
        f"the error grows most in {worst.layer} ({worst.operator}): "
        f"from {_share(worst.before)} to {_share(worst.error)}{own}"
    )


def _share(value: float) -> str:
    return f"{100 * value:.3g} %" if math.isfinite(value) else "infinite"


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "exact" if value > 0 else "-inf"
