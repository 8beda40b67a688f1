"""Compiled models that are looked at or written, and not run: they may be for another machine than this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilewright.api import compile_artifact
from tilewright.cli.models import TEXT_SUFFIX, is_artefact, need_no_options, read_text, warn_of_failures
from tilewright.cli.progress import compiling
from tilewright.compiler import compile_text
from tilewright.options import Options
from tilewright.runtime import Artifact
from tilewright.session import Session


def open_artifact(path: Path, source: Any = None, **fields: Any) -> Artifact:
    """From a file of compiled code, or compiled from any other file, of which a `source` says more."""
    if is_artefact(path):
        need_no_options(path, fields)
        return Artifact.load(path)
    given = {name: fields.pop(name) for name in ("shapes", "constants")}
    if path.suffix == TEXT_SUFFIX:
        return _from_text(path, fields, **given)
    if fields.pop("of", None) is not None:
        raise click.UsageError(f"--of: {path} is no text of a stage ({TEXT_SUFFIX})")
    with compiling(path.name) as progress:
        artifact = compile_artifact(
            path if source is None else source, options=Options.of(None, **fields), progress=progress, **given)
    warn_of_failures(artifact.urgent)
    return artifact


def _from_text(path: Path, fields: dict[str, Any], shapes: Any, constants: Mapping[str, Any]) -> Artifact:
    """From the text of a stage; constants are those that it leaves out."""
    if shapes:
        raise click.UsageError(f"--shape: {path} is the text of a program, which says what shapes it takes")
    model, options = fields.pop("of", None), Options.of(None, **fields)
    given = {name: np.asarray(value) for name, value in constants.items()}
    with compiling(path.name) as progress:
        text = read_text(path)
        artifact = compile_text(
            text, options, Session(), file=str(path), model=model, constants=given, progress=progress
        )
    warn_of_failures(artifact.urgent)
    return artifact
