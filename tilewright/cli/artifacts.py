"""Compiled models that are looked at or written, and not run: they may be for another machine than this one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.api import compile_artifact
from tilewright.cli.models import is_artefact, need_no_options, warn_of_failures
from tilewright.cli.progress import compiling
from tilewright.options import Options
from tilewright.runtime import Artifact


def open_artifact(path: Path, **fields: Any) -> Artifact:
    """From a file of compiled code, or compiled from any other file."""
    if is_artefact(path):
        need_no_options(path, fields)
        return Artifact.load(path)
    given = {name: fields.pop(name) for name in ("shapes", "constants")}
    with compiling(path.name) as progress:
        artifact = compile_artifact(path, options=Options.of(None, **fields), progress=progress, **given)
    warn_of_failures(artifact.urgent)
    return artifact
