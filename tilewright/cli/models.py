"""What commands share about models: their options, and getting one from a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

import tilewright
from tilewright.cli.progress import working
from tilewright.runtime import Model

ARTEFACT_SUFFIX = ".tw"

F = TypeVar("F", bound=Callable[..., Any])

model_argument = click.argument("model", type=click.Path(path_type=Path))
threads_option = click.option(
    "--threads", type=click.IntRange(min=1), help="Threads that run the model  [default: all it may use]"
)


def compile_options(command: F) -> F:
    """The options that say how to compile."""
    for decorate in (
        click.option("--no-cache", is_flag=True, help="Neither use nor fill the cache of compiled models."),
        click.option("--shape", "shapes", multiple=True, metavar="NAME=DIMS", help="Fix dims of an input: x=1,3,n,n."),
        click.option("--numerics", type=click.Choice(["default", "strict"]), default="default", show_default=True,
                     help="strict folds no factors, uses no Winograd convolutions, and keeps denormals."),
        click.option("--target", metavar="NAME", help="Machine to compile for, such as zen3  [default: this one]"),
    ):  # fmt: skip
        command = decorate(command)
    return command


def compile_fields(
    target: str | None, numerics: str, shapes: tuple[str, ...], no_cache: bool
) -> dict[str, Any]:
    """The keywords of `tilewright.compile` for those options."""
    return {
        "target": target,
        "numerics": numerics,
        "cache": not no_cache,
        "shapes": dict(map(_shape, shapes)),
    }


def is_artefact(path: Path) -> bool:
    return path.suffix == ARTEFACT_SUFFIX


def open_model(path: Path, threads: int | None, **fields: Any) -> Model:
    """A model from an artefact, or compiled from any other file."""
    if is_artefact(path):
        if fields.get("target") or fields.get("shapes") or fields.get("numerics") == "strict":
            raise click.UsageError(
                f"{path} is compiled already: --target, --numerics and --shape need the model it came from"
            )
        return tilewright.load(path, threads)
    with working(f"compiling {path.name}"):
        return tilewright.compile(path, threads=threads, **fields)


def need_source(path: Path, why: str) -> None:
    """Refuse an artefact where the model itself is needed."""
    if is_artefact(path):
        raise click.UsageError(f"{path} is compiled code: {why} needs the model it came from")


def _shape(text: str) -> tuple[str, list[int | str]]:
    name, equals, dims = text.rpartition("=")
    sizes = [int(d) if d.isdecimal() else d for d in map(str.strip, dims.split(",")) if d]
    if not equals or not name or not all(isinstance(d, int) or d.isidentifier() for d in sizes):
        raise click.UsageError(
            f"--shape {text}: write NAME=DIMS, the dims numbers or names, such as x=1,3,n,n"
        )
    return name, sizes
