"""`tilewright diff`: two forms of one model, layer by layer."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewright.cli.models import threads_option
from tilewright.cli.output import SafeConsole
from tilewright.cli.progress import compiling
from tilewright.comparison.diff import RANDOM, diff
from tilewright.comparison.errors import Difference, LayerDifference
from tilewright.runtime.errors import short_name

SHOWN = 12
"""Layers in the table without --all."""

WIDTH = 200
"""Of lines that no terminal limits."""

HELP = """Compare MODEL (a quantised one, say) with REFERENCE, what it was made of, on the same inputs. Both are
files of any format that `compile` takes.

Prints the error of each layer's result, relative to the result (root mean square) and in decibels; of what the layer
reads; the growth in between; and the error that the layer makes by itself, of exact inputs. The layer in which the
error grows most by what it does itself is named.

\b
Examples:
  tilewright diff model.onnx small.onnx --data samples.npz
  tilewright diff model.pt2 model.onnx --random 2 --all
  tilewright diff model.onnx small.onnx --data calls/ --json
"""


@click.command("diff", help=HELP, short_help="Compare two forms of a model, layer by layer.")
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
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
def command(
    reference: Path, model: Path, data: Path | None, random: int | None, samples: int, everything: bool,
    as_json: bool, batch: int | None, threads: int | None,
) -> None:  # fmt: skip
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


def show(found: Difference, everything: bool, console: Console) -> None:
    """The table, and in words what it says."""
    layers: Sequence[LayerDifference] = found.layers if everything else found.ranked()[:SHOWN]
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
    if not everything and found.worst is not None and len(found.layers) > SHOWN:
        console.print(f"[dim]{len(found.layers) - SHOWN} more layers add less (--all shows them)")
    samples = "1 sample" if found.samples == 1 else f"{found.samples} samples"
    console.print(f"{len(found.layers)} layers, {samples} of {found.data}", markup=False)
    if found.unpaired:
        console.print(f"{len(found.unpaired)} tensors have no partner", markup=False)
    for name, output in found.outputs.items():
        decibels = f", {_decibels(output.sqnr)} dB" if math.isfinite(output.sqnr) else ""
        console.print(f"output {short_name(name)}: error {_share(output.error)}{decibels}", markup=False)
    console.print(f"[bold]{escape(verdict(found))}")


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
