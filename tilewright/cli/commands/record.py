"""`tilewright record`: the inputs of real calls become a folder that other commands read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tilewright.cli.amounts import Bytes
from tilewright.cli.inputs.specs import read_dims, read_specs
from tilewright.cli.models import compile_fields, compile_options, model_argument, open_model, threads_option
from tilewright.cli.output import say
from tilewright.runtime.kept.recorder import BYTES, CALLS

HELP = """Run MODEL on FILES, each one call, and keep what it is given as .npz files in a folder, which `diff --data`,
`quantize --data` and `compile --validate --recorded` read.

A file is a .npz with an array for each input, or for a model of one input a .npy, an image or sound, as `tilewright
run` takes them. Programs keep their own calls: `model.record("calls")`.

\b
Examples:
  tilewright record model.onnx photos/*.png -o calls
  tilewright compile model.onnx --validate --recorded calls
  tilewright diff model.onnx --data calls
"""


@click.command("record", help=HELP, short_help="Keep the inputs of real calls for other commands.")
@model_argument
@click.argument("files", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="FILES...")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER",
              help="Folder for the calls; those of an earlier recording in it are removed.")  # fmt: skip
@click.option("--calls", type=click.IntRange(min=1), default=CALLS, show_default=True,
              help="Keep at most so many; of more each with the same chance.")  # fmt: skip
@click.option("--max-bytes", type=Bytes(), default=None, metavar="SIZE",
              help="Of all files together, such as 64MB  [default: 256 MiB]")  # fmt: skip
@threads_option
@compile_options
def command(
    model: Path, files: Sequence[Path], output: Path, calls: int, max_bytes: int | None, threads: int | None,
    **options: Any,
) -> None:  # fmt: skip
    loaded = open_model(model, threads, **compile_fields(**options))
    loaded.record(output, calls=calls, max_bytes=BYTES if max_bytes is None else max_bytes)
    for file in files:
        read_specs(loaded.inputs, [str(file)], read_dims(())).first_call(loaded.run, loaded.artifact.assumed)
    loaded.stop_recording()
    kept = len(list(output.glob("call-*.npz")))
    say(f"{output}: {kept} of {len(files)} calls")
