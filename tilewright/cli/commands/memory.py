"""`tilewright memory`: a picture of where intermediate results lie, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tilewright.cli.inputs.specs import read_dims
from tilewright.cli.models import compile_fields, force_option, model_argument, model_options, need_source
from tilewright.cli.output import say
from tilewright.cli.progress import compiling
from tilewright.options import Options
from tilewright.program.memory.picture import dims_of, picture
from tilewright.program.memory.places import arena_of
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.files import check_replaced, replacing
from tilewright.stages import planned_programs

HELP = """Draw the plan of memory of MODEL: time to the right, bytes of the arena upwards, a rectangle for each tensor.

\b
Examples:
  tilewright memory model.onnx -o plan.svg
  tilewright memory model.onnx --dim batch=8 --memory-effort search -o plan.svg
"""


@click.command("memory", help=HELP, short_help="Draw where intermediate results lie, and when.")
@model_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE.svg", help="The picture.")
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="Size of a symbolic dim  [default: 1]")
@force_option
@model_options
def command(model: Path, output: Path, dims: Sequence[str], force: bool, **options: Any) -> None:
    need_source(model, "memory")
    fields, sizes = compile_fields(**options), read_dims(dims)
    check_replaced(output, "a picture", lambda begins: begins.startswith(b"<svg"), sources=[model], force=force)
    shapes, constants = fields.pop("shapes"), fields.pop("constants")
    with compiling(model.name):
        found = planned_programs(model, options=Options.of(None, **fields), constants=constants, shapes=shapes)
    known = {name for _, main in found for name in dims_of(main)}
    if unknown := sizes.keys() - known:
        listed = ", ".join(sorted(known)) or "none"
        raise InputError(f"the model has no symbolic dim '{min(unknown)}'", hint=f"its symbolic dims: {listed}")
    drawn = picture(found, sizes)
    with replacing(output) as file:
        file.write(drawn.encode())
    for name, main in found:
        say(f"{name}: {arena_of(main)} bytes")
