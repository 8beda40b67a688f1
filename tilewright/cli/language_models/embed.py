"""`tilewright embed`: vectors that stand for texts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright.cli.language_models.options import model_options, opened, read_text, source_argument
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.files import check_replaced, replacing

HELP = """Give a vector for each TEXT (or each line of --file, or of the standard input) by the language model at PATH:
of what its last norm gives for the tokens the mean, or that of the last or the first one, of length 1.

A line of JSON for each text goes to the standard output, {"text": ..., "embedding": [...]}; with --output a file of
NumPy, float32[texts, width], is written instead.

\b
Examples:
  tilewright embed model.gguf "a cat" "a dog"
  tilewright embed folder --file titles.txt --pooling last -o titles.npy
  grep -h title *.md | tilewright embed model.gguf --raw
"""


@click.command("embed", help=HELP, short_help="Give vectors that stand for texts.")
@source_argument
@click.argument("texts", nargs=-1)
@click.option("--file", "files", multiple=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="A text in each line; empty ones are left out.")
@click.option("--pooling", type=click.Choice(("mean", "last", "cls")), default="mean", show_default=True,
              help="What of a text's tokens is taken: their mean, the last, or the first.")
@click.option("--raw", is_flag=True, help="Leave vectors as long as they are.")
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.npy",
              help="Write float32[texts, width] in NumPy's format.")
@click.option("--force", is_flag=True, help="Replace a file of another kind with --output.")
@model_options
def command(
    path: Path, texts: tuple[str, ...], files: tuple[Path, ...], pooling: str, raw: bool, output: Path | None,
    force: bool, **options: Any,
) -> None:  # fmt: skip
    asked = [*texts, *(line for file in files for line in _lines(read_text(file)))]
    if not texts and not files:
        asked = _lines(_standard_input())
    if not asked:
        raise InputError("there is no text", hint="give texts as arguments, with --file, or in lines of a pipe")
    if output is not None:
        check_replaced(output, "an array of NumPy", _is_array, sources=(path, *files), force=force)
    model = opened(path, options)
    if output is not None:
        found = model.embed(asked, pooling=pooling, normalise=not raw)
        with replacing(output) as out:
            np.save(out, found)
        return
    for text in asked:
        (vector,) = model.embed([text], pooling=pooling, normalise=not raw)
        click.echo(json.dumps({"text": text, "embedding": [float(x) for x in vector]}, ensure_ascii=False))


def _is_array(begins: bytes) -> bool:
    return begins.startswith(b"\x93NUMPY")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _standard_input() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError("give texts as arguments, with --file, or in lines of a pipe")
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"the standard input is no text in UTF-8: byte {error.start}") from None
