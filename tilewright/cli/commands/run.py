"""`tilewright run`: one call of a model on files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.markup import escape
from rich.table import Table

from tilewright.cli.frequent import add_sizes_seen, read_sizes_seen
from tilewright.cli.inputs.first_calls import first_call
from tilewright.cli.inputs.specs import (
    check_outputs,
    dim_option,
    files_of,
    input_option,
    read_dims,
    write_outputs,
)
from tilewright.cli.models import (
    compile_fields,
    compile_options,
    force_option,
    guarded_option,
    model_argument,
    open_model,
    threads_option,
    validate_options,
)
from tilewright.cli.output import console, json_option, print_json, say
from tilewright.runtime import Model, TensorInfo
from tilewright.runtime.errors import short_name
from tilewright.runtime.storage.files import check_folder

HELP = """Run MODEL (of a known format, or compiled) once and show, or write, its outputs.

An image is resized to what the input says, floats from 0 to 1; of sound (PCM) the channels are averaged, floats from
-1 to 1. Where a model wants other numbers, give them as .npy. Of random inputs, dims of unknown size have usual ones
that the model takes.

\b
Examples:
  tilewright run model.tw --input x=image.npy --output results
  tilewright run model.onnx --input random --dim batch=4
  tilewright run vad.onnx --input input=speech.wav --input sr=16000 --input random
  tilewright run model.onnx --input inputs.npz
  tilewright run model.onnx --input ids=ids.npy --input random
  tilewright run model.onnx --input random --dim batch=4 --sizes-seen sizes.json
  tilewright run model.onnx --input random --guarded
  tilewright run vad.onnx --state h=hn --states vad.npz --input x=speech.wav
"""


@click.command("run", help=HELP, short_help="Run a model on .npy files or random inputs.")
@model_argument
@input_option
@dim_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the outputs, one .npy each.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="End a loop whose end is computed after so long.",
)
@click.option(
    "--sizes-seen",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.json",
    help="Add the sizes of symbolic dims to those that FILE counts (see --frequent).",
)
@click.option(
    "--states",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.npz",
    help="What states (see --state) hold before the call, where the file is there, and after it.",
)
@json_option
@force_option
@threads_option
@validate_options
@guarded_option
@compile_options
def command(
    model: Path,
    specs: Sequence[str],
    dims: Sequence[str],
    output: Path | None,
    max_seconds: float | None,
    sizes_seen: Path | None,
    state_file: Path | None,
    as_json: bool,
    force: bool,
    threads: int | None,
    **options: Any,
) -> None:
    sizes = read_dims(dims)
    if output is not None and model.exists():  # whether it can be read is said first
        check_folder(output)
    if sizes_seen is not None and sizes_seen.exists():
        read_sizes_seen(sizes_seen)  # a file of another kind is refused before the run
    loaded = open_model(model, threads, **compile_fields(**options))
    if output is not None:
        check_outputs(output, loaded.outputs, [model, *files_of(specs)], force)
    if state_file is not None and not loaded.states:
        raise click.UsageError(f"--states {state_file}: the model keeps no states (see --state)")
    if state_file is not None and state_file.exists():
        loaded.load_states(state_file)
    loaded.max_seconds = max_seconds
    if sizes_seen is not None:
        loaded.count_sizes()
    call = first_call(loaded, specs, sizes, or_zeros=False)
    inputs, results, chosen = call.inputs, call.results, call.sizes
    if as_json:
        print_json(record(loaded, inputs, results, chosen))
    else:
        for note in call.notes:
            say(note)
        console().print(_table(loaded.outputs, results))
    if sizes_seen is not None:
        add_sizes_seen(sizes_seen, loaded.sizes_seen())
    if state_file is not None:
        loaded.save_states(state_file, force=force)
    if output is not None:
        for path in write_outputs(output, loaded.outputs, results):
            say(path, err=as_json)


def record(
    model: Model, inputs: Mapping[str, Any], results: Sequence[Any], chosen: Mapping[str, int]
) -> dict[str, Any]:
    """What was run, as JSON data: shapes and types of inputs, and of outputs also their least, mean and greatest."""
    outputs = []
    for info, array in zip(model.outputs, results, strict=True):
        numbers = zip(("least", "mean", "greatest"), _statistics(array), strict=True)
        outputs.append(
            {"name": info.name, "dtype": info.dtype, "shape": list(getattr(array, "shape", ())),
             **{name: float(text) if text else None for name, text in numbers}}
        )  # fmt: skip
    made = [{"name": name, "dtype": str(np.asarray(a).dtype), "shape": list(np.shape(a))} for name, a in inputs.items()]
    return {"inputs": made, "outputs": outputs, "sizes": dict(chosen), "threads": model.threads}


def _table(infos: Sequence[TensorInfo], arrays: Sequence[np.ndarray]) -> Table:
    table = Table("output", "type", "least", "mean", "greatest", box=None, header_style="bold")
    for info, array in zip(infos, arrays, strict=True):
        dims = ", ".join(map(str, getattr(array, "shape", ())))
        is_tensor = info.kind in ("tensor", "unranked")
        type = f"{info.dtype}[{dims}]" if is_tensor else info.type
        table.add_row(escape(short_name(info.name)), escape(type), *_statistics(array))
    return table


def _statistics(array: np.ndarray) -> tuple[str, ...]:
    if not isinstance(array, np.ndarray) or array.dtype == np.object_ or not array.size:
        return ("", "", "")
    wide = array.astype(np.float64)
    return tuple(f"{value:.6g}" for value in (wide.min(), wide.mean(), wide.max()))
