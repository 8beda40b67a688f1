"""`tilewright compile`: a model becomes one file that loads without compiling."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tilewright.cli.artifacts import open_artifact
from tilewright.cli.language_models.options import caches_option
from tilewright.cli.language_models.weights import check_weights_options, chosen_weights, weights_options
from tilewright.cli.models import (
    ARTEFACT_SUFFIX,
    compile_fields,
    compile_options,
    force_option,
    model_argument,
    need_source,
)
from tilewright.cli.output import SafeConsole, json_option, print_json
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.source import STORED, DecoderSource
from tilewright.quantization.decoders.certificate import KEY
from tilewright.runtime import Artifact
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
  tilewright compile model.gguf --weights auto --max-drop 2% -o small.tw

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
@weights_options
@caches_option
@compile_options
def command(
    model: Path, output: Path | None, source: Path | None, full: bool, as_json: bool, force: bool,
    weights: str | None, max_drop: float | None, text: Path | None, caches: str | None, **options: Any,
) -> None:  # fmt: skip
    need_source(model, "compile")
    start = time.perf_counter()
    fields = compile_fields(**options) | ({} if source is None else {"of": source})
    asked = {"weights": weights, "max_drop": max_drop, "text": text, "caches": caches}
    check_weights_options(asked)
    output = output or model.with_suffix(ARTEFACT_SUFFIX)
    if model.exists():  # whether it can be read is said first
        check_replaced(output, "a compiled model", is_container, sources=[model], force=force)
        check_file(output)
    of_model = weights is None and caches is None
    compiled = open_artifact(model, **fields) if of_model else _as_asked(model, asked, fields)
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


_AS_JUDGED = ("cache", "numerics", "activations")
"""Options of the model that is judged, which runs on this machine."""


def _as_asked(model: Path, options: dict[str, Any], fields: dict[str, Any]) -> Artifact:
    """Compiled with these weights and caches, and with the certificate of weights that were chosen."""
    weights, importance, attached, room = options["weights"], None, {}, fields.pop("capacity")
    if not DecoderFrontEnd().accepts(model):
        name = "--caches" if weights is None else "--weights"
        raise click.UsageError(f"{name} needs a GGUF file or a folder with config.json, and {model} is neither")
    if weights == "auto":
        how = {name: fields[name] for name in _AS_JUDGED}
        chosen = chosen_weights(model, None, options, context=room, caches=options["caches"], **how)
        weights, importance = chosen.certificate.forms or None, chosen.importance
        attached = {KEY: chosen.certificate.record()}
    caches = options["caches"] or STORED
    source = DecoderSource(model, capacity=room, weights=weights, importance=importance, caches=caches)
    compiled = open_artifact(model, source, capacity=None, **fields)
    return replace(compiled, attached={**compiled.attached, **attached})


def _more(program: AddedProgram) -> str:
    """What a program beside the general one adds."""
    return f"{program.kernels} kernels, {(program.code_bytes + program.constant_bytes) / 1e6:.1f} MB more"
