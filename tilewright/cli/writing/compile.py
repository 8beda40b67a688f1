"""`tilewright compile`: a model becomes one file that loads without compiling, several become a folder."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
    guarded_option,
    multi_option,
    need_source,
    unique,
    validate_options,
    with_levels,
)
from tilewright.cli.output import SafeConsole, json_option, print_json
from tilewright.cli.writing.fleets import compile_to_folder, is_fleet
from tilewright.frontends.decoders import DecoderFrontEnd
from tilewright.frontends.decoders.source import STORED, DecoderSource
from tilewright.quantization.decoders.certificate import KEY
from tilewright.runtime import Artifact
from tilewright.runtime.artifact import sizes_text
from tilewright.runtime.report.records import AddedProgram
from tilewright.runtime.storage.container import is_container
from tilewright.runtime.storage.files import check_file, check_replaced

HELP = """Compile a MODEL into one file that loads in milliseconds, or several into a folder.

\b
Examples:
  tilewright compile model.onnx --dump stages
  tilewright compile model.onnx --override k3=stages/kernels/k3_matmul.loops
  tilewright compile model.onnx
  tilewright compile model.onnx -o server.tw --target neoverse-n1
  tilewright compile model.onnx --shape image=1,3,224,224
  tilewright compile model.onnx --frequent batch=1,height=224 --frequent batch=8
  tilewright compile model.onnx -o anywhere.tw --multi
  tilewright compile model.gguf --weights auto --max-drop 2% -o small.tw

MODEL may be the text of a stage (.txt), edited or not; elements that it leaves out are those of the model that it was
made of, with the same options, or --constant:

  tilewright show model.onnx --stage fused > stage.txt
  tilewright compile stage.txt --of model.onnx -o model.tw

Several models, or a list of them (.toml), become a fleet: a folder that `tilewright.load_fleet` opens, whose models
share code and weights that are the same. What is there already, made of the same files with the same options, is left
as it is; what fails stops no other model, and makes the exit code 1.

\b
  tilewright compile models/*.onnx -o fleet/
  tilewright compile fleet.toml -o fleet/ --jobs 4 --prune
"""


@click.command("compile", help=HELP, short_help="Compile a model into one file, or several into a folder.")
@click.argument("models", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="MODEL...")
@click.option(
    "-o", "--output", "given", type=click.Path(), metavar="PATH",
    help="File to write  [default: MODEL with .tw], or folder of several models.",
)  # fmt: skip
@multi_option
@click.option("--jobs", type=click.IntRange(min=1), metavar="N",
              help="Models of a folder that are compiled at once  [default: one for each core]")  # fmt: skip
@click.option("--prune", is_flag=True, help="Remove from a folder models that are not given, and what none needs.")
@click.option(
    "--of", "source", type=click.Path(path_type=Path), metavar="MODEL",
    help="The model that a text of a stage was made of, for the elements of its constants.",
)
@click.option("--dump", type=click.Path(path_type=Path), metavar="DIR",
              help="Write the program after each pass and stage, with remarks, and each kernel as loops and LLVM IR.")
@click.option("--override", "overrides", multiple=True, metavar="KERNEL=FILE",
              help="Take a kernel (k3, or its name) from FILE: loops, or LLVM IR (*.ll), as --dump writes them.")
@click.option("--profile", "timed", is_flag=True, help="Add what `tilewright profile` needs to time kernels (x86-64).")
@click.option("--report", "full", is_flag=True, help="Print all that was compiled, kernel by kernel.")
@json_option
@force_option
@weights_options
@caches_option
@validate_options
@guarded_option
@compile_options
def command(
    models: tuple[Path, ...], given: str | None, source: Path | None, full: bool, timed: bool, dump: Path | None,
    overrides: Sequence[str], as_json: bool, force: bool, weights: str | None, max_drop: float | None,
    text: Path | None, caches: str | None, jobs: int | None, prune: bool, multi: str | None, **options: Any,
) -> None:  # fmt: skip
    for path in models:
        need_source(path, "compile")
    asked = {"weights": weights, "max_drop": max_drop, "text": text, "caches": caches}
    check_weights_options(asked)
    fields = compile_fields(**with_levels(options, multi)) | ({"profile": True} if timed else {})
    fields |= {"dump": dump} if dump is not None else {}
    fields |= {"override": unique("--override", map(_override, overrides))} if overrides else {}
    if is_fleet(models, given):
        single = {**asked, "of": source, "report": full or None, "dump": dump, "override": overrides or None}
        if wrong := next((name for name, value in single.items() if value is not None), None):
            raise click.UsageError(f"--{wrong.replace('_', '-')} is for one model, which becomes one file")
        compile_to_folder(models, given, fields, jobs=jobs, prune=prune, force=force, as_json=as_json)
        return
    if jobs is not None or prune:
        raise click.UsageError(f"{'--jobs' if jobs else '--prune'} is for models that go to a folder: -o FOLDER/")
    start, model = time.perf_counter(), models[0]
    fields |= {} if source is None else {"of": source}
    output = model.with_suffix(ARTEFACT_SUFFIX) if given is None else Path(given)
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


def _override(text: str) -> tuple[str, Path]:
    """Kernel and file of `k3=FILE`."""
    kernel, equals, path = text.partition("=")
    if not kernel or not equals or not path:
        raise click.UsageError(f"--override {text}: write KERNEL=FILE, such as k3=kernels/k3_matmul.loops")
    return kernel, Path(path)


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
