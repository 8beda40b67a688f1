"""`tilewright export`: a model becomes a library in C."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tilewright.cli.models import (
    compile_fields,
    compile_options,
    force_option,
    model_argument,
    multi_option,
    need_source,
    with_levels,
)
from tilewright.cli.output import json_option
from tilewright.cli.progress import compiling
from tilewright.cli.writing.written import print_written
from tilewright.exporters.library.export import export

HELP = """Write MODEL as a library with a C interface, which needs neither Python nor tilewright.

The suffix says what is made: a shared library (.so), a static one (.a), one object file (.o), or the model itself as
C11 (.c); its header is beside it. A module of JavaScript (.mjs) runs the model on the GPUs of browsers.

\b
Examples:
  tilewright export model.onnx -o libmodel.so
  tilewright export model.onnx -o libmodel.so --weights beside
  tilewright export model.onnx -o libmodel.a --target x86-64-v3
  tilewright export model.onnx -o libmodel.so --multi
  tilewright export model.onnx -o model.o --freestanding
  tilewright export model.onnx -o model.c
  tilewright export model.onnx -o model.mjs
"""


@click.command("export", help=HELP, short_help="Write a model as a library in C.")
@model_argument
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write  [default: libMODEL.so]")
@click.option("--name", help="What the names of the functions begin with  [default: that of the file]")
@click.option("--weights", type=click.Choice(["inside", "beside"]),
              help="Where the weights are: in the library, or in a file that processes share  "
                   "[default: inside, up to 1 GB]")  # fmt: skip
@click.option("--freestanding", is_flag=True, help="Need no C library: one thread, memory of the caller.")
@multi_option
@click.option("--cc", envvar="CC", help="The command of a C compiler  [default: what CC says, cc, or zig's]")
@json_option
@force_option
@compile_options
def command(
    model: Path, output: Path | None, name: str | None, weights: str | None, freestanding: bool, multi: str | None,
    cc: str | None, as_json: bool, force: bool, **options: Any,
) -> None:  # fmt: skip
    need_source(model, "export")
    with compiling(model.name) as progress:
        written = export(
            model, output or model.with_name(f"lib{model.stem}.so"), name=name, weights=weights,
            freestanding=freestanding, cc=cc, force=force, progress=progress,
            **compile_fields(**with_levels(options, multi)),
        )  # fmt: skip
    print_written(written, as_json)
