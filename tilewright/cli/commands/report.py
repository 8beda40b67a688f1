"""`tilewright report`: what became of a model, as one HTML file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tilewright.cli.inputs.first_calls import tried_call
from tilewright.cli.inputs.specs import dim_option, input_option, read_dims
from tilewright.cli.interrupt import leaving
from tilewright.cli.models import (
    compile_fields,
    compile_options,
    force_option,
    model_argument,
    threads_option,
)
from tilewright.cli.output import say
from tilewright.cli.progress import compiling, working
from tilewright.comparison.compiled import diff_compiled
from tilewright.comparison.diff import RANDOM, diff
from tilewright.comparison.errors import Difference
from tilewright.options import Options, Request
from tilewright.runtime.errors import TilewrightError
from tilewright.session import Session
from tilewright.validation.recorded import feeds_of
from tilewright.viewer.collect import ViewRequest
from tilewright.viewer.records import ModelView
from tilewright.viewer.write import RUNS, Subject, check_output, profile_of, with_names, write_page

HELP = """Write one HTML file that shows what became of MODEL. It opens in a browser, and needs no network.

\b
It has the graph before and after fusion by modules, with repeated blocks put
together; for each kernel its nodes, loop program, schedule, LLVM IR and
assembler text, times and reasons; the time line, the memory of intermediate
results, the roofline, and how long compiling took.

With OTHER both are shown beside each other, in step: a model and a quantised one, or two versions.
--other-options says how OTHER is compiled, or MODEL again, where this differs.

--error also measures how far the nodes of OTHER are from those of MODEL; without OTHER, how far each kernel of MODEL is
from the interpreter of its graph, as `tilewright diff MODEL` does. Of a compiled model (.tw) there is what its file
holds.

Kernels are timed in calls with random inputs, or those of --input; --estimate takes the cost model's estimates.

\b
Examples:
  tilewright report model.onnx -o report.html
  tilewright report model.onnx --dim batch=8 --threads 1 -o report.html
  tilewright report model.onnx small.onnx --error --data samples.npz -o both.html
  tilewright report model.onnx --other-options "--numerics fast" -o versions.html
  tilewright report model.onnx --target neoverse-n1 -o arm.html
"""


MOST_SAMPLES = 16
"""Recorded calls that are replayed for --error."""


@click.command("report", help=HELP, short_help="Show a model, its kernels and why they are so, in one HTML file.")
@model_argument
@click.argument("other", type=click.Path(path_type=Path), required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE.html", help="The file.")
@click.option("--estimate", is_flag=True, help="Run nothing: times are the cost model's estimates.")
@input_option
@dim_option
@click.option("--runs", type=click.IntRange(min=1), default=RUNS, show_default=True, help="Calls that are timed.")
@click.option("--error", "errors", is_flag=True, help="Measure the errors of the nodes, as `diff` does.")
@click.option("--data", type=click.Path(path_type=Path), help="Samples for --error: a .npz file, or a folder of them.")
@click.option("--other-options", metavar="OPTIONS", help="Options that OTHER, or MODEL again, is compiled with.")
@force_option
@threads_option
@compile_options
def command(
    model: Path,
    other: Path | None,
    output: Path,
    estimate: bool,
    specs: Sequence[str],
    dims: Sequence[str],
    runs: int,
    errors: bool,
    data: Path | None,
    other_options: str | None,
    force: bool,
    threads: int | None,
    **options: Any,
) -> None:
    if data is not None and not errors:
        raise click.UsageError("--data has samples for --error")
    sizes, given = read_dims(dims), {**options, "threads": threads}
    subjects = [_subject(model, given)]
    if other is not None or other_options is not None:
        subjects.append(_subject(other or model, {**given, **_parsed(other_options or "")}))
    check_output(output, subjects, force)
    if errors and any(subject.is_artefact for subject in subjects):
        raise click.UsageError("--error is measured of models: a compiled one (.tw) has no graph")
    with leaving(f"{output} is as it was" if output.exists() else f"nothing was written to {output}"):
        views = _views(subjects, are_two=other is not None, estimate=estimate, errors=errors, data=data, specs=specs,
                       sizes=sizes, runs=runs)  # fmt: skip
        write_page(output, views)
    for view in views:
        for note in view.notes:
            say(f"{view.name}: {note}", err=True)
    say(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


def _views(
    subjects: Sequence[Subject], *, are_two: bool, estimate: bool, errors: bool, data: Path | None,
    specs: Sequence[str], sizes: dict[str, int], runs: int,
) -> list[ModelView]:  # fmt: skip
    """What the page shows of each."""
    session = Session()
    found = _differences(subjects, are_two, data, session) if errors else [None] * len(subjects)
    views: list[ModelView] = []
    for subject, difference in zip(subjects, found, strict=True):
        asked = ViewRequest(sizes) if estimate else _measured(subject, session, specs, sizes, runs)
        if difference is not None:
            asked = replace(asked, errors={layer.layer: layer.error for layer in difference.layers})
        with compiling(subject.model.name) as progress:
            views.append(subject.view(session, asked, progress))
    return with_names(views, subjects)


@click.command(add_help_option=False)
@threads_option
@compile_options
def _compiling(**options: Any) -> None:
    """Not run: what --other-options is read by."""


def _parsed(text: str) -> Mapping[str, Any]:
    """The options of compiling that a text has."""
    try:
        context = _compiling.make_context("--other-options", shlex.split(text))
    except (ValueError, click.UsageError) as error:
        reason = error.message if isinstance(error, click.UsageError) else str(error)
        raise click.UsageError(f"--other-options {text}: {reason}") from error
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }


def _subject(model: Path, options: Mapping[str, Any]) -> Subject:
    """A model, and the options of compiling it."""
    fields = compile_fields(**{name: value for name, value in options.items() if name != "threads"})
    shapes, constants = fields.pop("shapes"), fields.pop("constants")
    return Subject(model, Options.of(None, threads=options["threads"], **fields), constants, shapes)


def _differences(
    subjects: Sequence[Subject], are_two: bool, data: Path | None, session: Session
) -> list[Difference | None]:
    """For each subject: of the second of two models and the first, or of each version of one, compiled, and the
    interpreter of its graph."""
    if are_two:
        one, two = (subject.model for subject in subjects)
        with compiling(two.name, "comparing") as progress:
            return [None, diff(one, two, data, random=RANDOM, threads=subjects[1].options.threads, progress=progress)]
    feeds = () if data is None else feeds_of(data)[:MOST_SAMPLES]
    found: list[Difference | None] = []
    for subject in subjects:
        options = replace(subject.options, cache=False, validate=True)
        request = Request.of(subject.model, subject.constants, subject.shapes).with_states_of(options)
        with compiling(subject.model.name, "comparing") as progress:
            found.append(diff_compiled(request, options, session, feeds, progress).difference)
    return found


def _measured(
    subject: Subject, session: Session, specs: Sequence[str], sizes: dict[str, int], runs: int
) -> ViewRequest:
    """The times of kernels in calls of the compiled model; a note says why there are none where that is so."""
    if subject.options.target is not None:
        return ViewRequest(sizes, notes=("times are estimates of the cost model: --target names a machine",))
    try:
        with compiling(subject.model.name) as progress:
            compiled = subject.compiled(session, progress)
        call = tried_call(compiled, specs or ["random"], sizes)
    except TilewrightError as error:
        if specs:
            raise
        return ViewRequest(sizes, notes=(f"times are estimates of the cost model: {error.what}",))
    with working("timing kernels"):
        profile, notes = profile_of(compiled, call.inputs, session, runs)
    return ViewRequest({**sizes, **call.sizes}, profile, notes=(*call.notes, *notes))

