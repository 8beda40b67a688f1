"""Several models compiled into one folder, and what such a folder holds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from tilewright.cli.amounts import bytes_text
from tilewright.cli.output import console, print_json, say
from tilewright.cli.progress import working
from tilewright.fleet.build import FAILED, UNCHANGED, FleetResult, MemberResult, compile_fleet
from tilewright.fleet.members import LIST_SUFFIX
from tilewright.runtime.errors import short_name
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.fleet import models_of

SOME_FAILED = 1
"""The exit code where some models were not compiled."""


def is_fleet(models: Sequence[Path], output: str | None) -> bool:
    """Whether models go to a folder: there are several, a list of some, or the output is one."""
    several = len(models) > 1 or any(model.suffix == LIST_SUFFIX for model in models)
    return several or (output is not None and (output.endswith("/") or Path(output).is_dir()))


def compile_to_folder(
    models: Sequence[Path], output: str | None, fields: dict[str, Any], *, jobs: int | None, prune: bool, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Compile models into a folder, and print what became of each; the exit code says whether all are there."""
    if output is None:
        raise click.UsageError("give the folder for these models: -o FOLDER/")
    start = time.perf_counter()

    def tell(result: MemberResult) -> None:
        for warning in result.warnings:
            say(f"warning: {short_name(result.name)}: {warning}", err=True)
        if result.state == FAILED:
            say(f"error: {short_name(result.name)}: {result.error}", err=True)
        elif not as_json and result.state != UNCHANGED:
            say(f"{short_name(result.name)}: {result.state}", err=True)

    with working(f"compiling {len(models)} files") if sys.stderr.isatty() else nullcontext():
        result = compile_fleet(models, output, jobs=jobs, prune=prune, force=force, on_result=tell, **fields)
    seconds = time.perf_counter() - start
    if as_json:
        print_json({"output": output, "seconds": seconds, **asdict(result)})
    else:
        console().print(_table(result))
        say(_summary(result, output, seconds))
    if result.failed:
        click.get_current_context().exit(SOME_FAILED)


def _table(result: FleetResult) -> Table:
    table = Table("model", "state", box=None, header_style="bold")
    for column in ("seconds", "file", "code", "weights"):
        table.add_column(column, justify="right", no_wrap=True)
    for model in result.models:
        sizes = [bytes_text(n) for n in (model.file_bytes, model.code_bytes, model.weight_bytes)]
        seconds = f"{model.seconds:.1f}" if model.seconds else ""
        state = f"[red]{model.state}" if model.state == FAILED else model.state
        table.add_row(escape(model.name), state, seconds, *(sizes if model.file_bytes else ["", "", ""]))
    return table


def _summary(result: FleetResult, output: str, seconds: float) -> str:
    counts: dict[str, int] = {}
    for model in result.models:
        counts[model.state] = counts.get(model.state, 0) + 1
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    apart = sum(model.code_bytes + model.weight_bytes for model in result.models if model.file_bytes)
    shared = apart - (result.store_bytes - result.unused_bytes)
    text = f"{short_name(output)}: {states}; {bytes_text(result.store_bytes)} of code and weights"
    if shared > 0 and not result.failed:
        text += f", {bytes_text(shared)} of them shared"
    text += f"; {seconds:.1f} s"
    if result.unused_bytes:
        text += f"\n{bytes_text(result.unused_bytes)} belong to no model any more: --prune removes them"
    return text


def inspect_folder(folder: Path, as_json: bool) -> None:
    """Print the models of a fleet. Nothing of them is run."""
    files = {name: ArtifactFile.of(path) for name, path in models_of(folder).items()}
    if as_json:
        print_json({"fleet": str(folder), "models": {name: asdict(file) for name, file in files.items()}})
        return
    table = Table("model", "made for", "signed by", box=None, header_style="bold")
    for column in ("code", "weights"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("digest", no_wrap=True)
    used: dict[str, int] = {}
    for name, file in files.items():
        used |= {section.digest: section.size for section in file.sections if section.depth >= 0}
        sizes = {kind: sum(s.size for s in file.sections if (s.kind == "weights") is kind) for kind in (False, True)}
        cells = (short_name(name), short_name(file.cpu), file.signed_by[:16] or "nobody")
        table.add_row(*map(escape, cells), *(bytes_text(sizes[kind]) for kind in (False, True)), file.digest[:16])
    console().print(table)
    say(f"{short_name(str(folder))}: {len(files)} models, {bytes_text(sum(used.values()))} of code and weights")
