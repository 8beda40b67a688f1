"""`tilewright compile`: a model becomes one file that loads without compiling."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from tilewright.cli.artifacts import open_artifact
from tilewright.cli.models import (
    ARTEFACT_SUFFIX,
    compile_fields,
    compile_options,
    force_option,
    model_argument,
    need_source,
)
from tilewright.cli.output import SafeConsole, json_option, print_json
from tilewright.runtime.artifact import sizes_text
from tilewright.runtime.report.records import AddedProgram
from tilewright.runtime.storage.container import is_container
from tilewright.runtime.storage.files import check_file, check_replaced

HELP = """Compile MODEL into one file that loads in milliseconds.

\b
Examples:
  tilewright compile model.onnx
  tilewright compile model.onnx -o server.tw --target neoverse-n1
  tilewright compile model.onnx --shape image=1,3,224,224
  tilewright compile model.onnx --frequent batch=1,height=224 --frequent batch=8

MODEL may be the text of a stage (.txt), edited or not; elements that it leaves out are those of the model that it was
made of, with the same options, or --constant:

  tilewright show model.onnx --stage fused > stage.txt
  tilewright compile stage.txt --of model.onnx -o model.tw
"""


@click.command("compile", help=HELP, short_help="Compile a model into one file.")
@model_argument
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File to write  [default: MODEL with .tw]"
)
@click.option(
    "--of", "source", type=click.Path(path_type=Path), metavar="MODEL",
    help="The model that a text of a stage was made of, for the elements of its constants.",
)
@click.option("--report", "full", is_flag=True, help="Print all that was compiled, kernel by kernel.")
@json_option
@force_option
@compile_options
def command(
    model: Path, output: Path | None, source: Path | None, full: bool, as_json: bool, force: bool, **options: Any
) -> None:
    need_source(model, "compile")
    start = time.perf_counter()
    fields = compile_fields(**options) | ({} if source is None else {"of": source})
    output = output or model.with_suffix(ARTEFACT_SUFFIX)
    if model.exists():  # whether it can be read is said first
        check_replaced(output, "a compiled model", is_container, sources=[model], force=force)
        check_file(output)
    compiled = open_artifact(model, **fields)
    compiled.save(output, force=force)
    seconds = time.perf_counter() - start
    report = compiled.summary()
    if as_json:
        print_json({"output": str(output), "bytes": output.stat().st_size, "seconds": seconds, **report.as_dict()})
        return
    console = SafeConsole(soft_wrap=True)
    size = output.stat().st_size / 1e6
    what = f"{report.nodes} operators in {report.kernels} kernels"
    console.print(f"{output}: {what}, {size:.1f} MB, {seconds:.1f} s", markup=False)
    for variant in report.variants:
        console.print(f"  for {sizes_text(variant.sizes)}: {_more(variant)}", markup=False)
    if report.broadcasting is not None:
        console.print(f"  for dims that are 1 where others are not: {_more(report.broadcasting)}", markup=False)
    if full:
        console.print(str(report), markup=False)
        for of_sizes in compiled.variants:
            console.print(f"\n\nfor {of_sizes.text}\n\n{of_sizes.artifact.summary()}", markup=False)


def _more(program: AddedProgram) -> str:
    """What a program beside the general one adds."""
    return f"{program.kernels} kernels, {(program.code_bytes + program.constant_bytes) / 1e6:.1f} MB more"
