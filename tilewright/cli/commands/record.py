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
from tilewright.runtime.errors import InputError
from tilewright.runtime.kept.recorder import BYTES, CALLS, Recorder, recorder
from tilewright.runtime.storage.files import check_folder

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
    check_folder(output)
    missing = next((file for file in files if not file.exists()), None)
    if missing is not None:
        raise InputError(f"cannot read {missing}: there is no such file", hint="nothing was recorded")
    loaded = open_model(model, threads, **compile_fields(**options))
    kept: Recorder | None = None
    for file in files:
        given = read_specs(loaded.inputs, [str(file)], read_dims(()))
        try:
            inputs, _, _ = given.first_call(loaded.run, loaded.artifact.assumed)
        except InputError as error:
            raise InputError(error.what, where=error.where or str(file), hint=error.hint) from error
        # Begins when a call has succeeded, as it removes an earlier recording.
        kept = kept or recorder(output, loaded.inputs, calls, BYTES if max_bytes is None else max_bytes)
        kept.add([inputs[info.name] for info in loaded.inputs])
    if kept is not None:
        kept.leave()
    say(f"{output}: {len(list(output.glob('call-*.npz')))} of {len(files)} calls")
