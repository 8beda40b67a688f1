"""`tilewright show`: the programs that a model becomes, as text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tilewright.cli.models import (
    compile_fields,
    compile_options,
    model_argument,
    need_source,
    warn_of_failures,
)
from tilewright.cli.output import say, say_program
from tilewright.cli.progress import compiling
from tilewright.options import Options
from tilewright.session import Session
from tilewright.stages import LEVELS, TEXT_STAGES, programs, stage_text

HELP = """Print the program that MODEL becomes at a level.

\b
  import  the graph as the file says it
  graph   after all passes: fused regions, each of which becomes a kernel
  program what a call does: kernels, branches, loops, functions of the host
          and states, and where values lie
  schedule  the steps that make each kernel, to be edited and given to
          `tilewright compile MODEL --schedule FILE`
  loops   the scheduled loops of each kernel, and the steps that made them
  llvm    the LLVM IR of each kernel, before LLVM's own passes
  asm     the machine code of each kernel, as assembler text, with what its
          loops do in one iteration: multiply-adds, loads, spills, cycles

\b
Examples:
  tilewright show model.onnx --level graph
  tilewright show model.onnx --level loops --kernel k0
  tilewright show model.onnx --level asm --kernel k0 --target zen3
  tilewright show model.onnx --constant sr=16000 --shape input=1,512

With --stage the whole program is printed as it is behind a stage, for `tilewright compile` to go on from, edited or
not:

  tilewright show model.onnx --stage fused > stage.txt
  tilewright compile stage.txt --of model.onnx -o model.tw
"""


@click.command("show", help=HELP, short_help="Print the graph, loops, LLVM IR or machine code.")
@model_argument
@click.option("--level", type=click.Choice(LEVELS), default="graph", show_default=True)
@click.option("--stage", type=click.Choice(TEXT_STAGES), help="The whole program behind a stage, to go on from.")
@click.option("--kernel", metavar="NAME", help="Only the kernels whose names begin so.")
@compile_options
def command(model: Path, level: str, stage: str | None, kernel: str | None, **options: Any) -> None:
    need_source(model, "show")
    if stage is not None:
        if kernel is not None or click.get_current_context().get_parameter_source("level") != ParameterSource.DEFAULT:
            raise click.UsageError("--stage prints the whole program: give no --level and no --kernel beside it")
        fields = compile_fields(**options)
        shapes, constants = fields.pop("shapes"), fields.pop("constants")
        chosen = Options.of(None, **fields)
        say(stage_text(model, stage, options=chosen, constants=constants, shapes=shapes).removesuffix("\n"))
        return
    if kernel is not None and level in ("import", "graph", "program"):
        raise click.UsageError(f"--kernel {kernel}: the level {level} has no kernels; give another --level")
    fields = compile_fields(**options)
    shapes, constants = fields.pop("shapes"), fields.pop("constants")
    session = Session()
    with compiling(model.name) as progress:
        texts = programs(
            model, level, kernel=kernel, options=Options.of(None, **fields), constants=constants, shapes=shapes,
            session=session, progress=progress,
        )  # fmt: skip
    warn_of_failures(session.loaded_plugins.refused)
    say_program("\n".join(text.rstrip() + "\n" for text in texts.values()))
