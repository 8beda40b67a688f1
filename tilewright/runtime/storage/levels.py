"""Which of several levels of an artefact a CPU can run."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace

from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage.loader import check_target, platform_of, this_machine

ASKED = "TILEWRIGHT_LEVEL"
"""The environment variable that names a level for all models that have several."""


def at_level(artifact: Artifact, name: str | None = None, host: TargetInfo | None = None) -> Artifact:
    """The level of this name, or of that in `$TILEWRIGHT_LEVEL`, or the one that asks most of the CPU of those that it
    can run, with what is attached to the artefact; one without levels is given as it is. OptionError for a name that
    there is not, ArtifactError where the CPU can run none."""
    levels = (artifact, *artifact.levels)
    asked = f"level={name!r:.80}"
    if name is None and artifact.levels and (name := os.environ.get(ASKED) or None):
        asked = f"{ASKED}={name:.80}"
    if name is not None:
        found = [level for level in levels if level.level == name and name]
        if not found:
            known = ", ".join(level.level for level in levels if level.level) or "none"
            raise OptionError(f"{asked} is not allowed: the levels of this model are {known}")
        levels = tuple(found)
    if not artifact.levels:
        return levels[0]
    host = this_machine() if host is None else host
    best = best_of((level.target for level in levels), host)
    if best is None:
        check_target(min((level.target for level in levels), key=lambda target: len(target.features)), host)
        raise ArtifactError("no level of the model can run here", hint="compile the model on this machine")
    return replace(levels[best], levels=(), attached=artifact.attached, model=artifact.model)


def best_of(targets: Iterable[TargetInfo], host: TargetInfo) -> int | None:
    """The number of the target that asks most of a machine of those that it can run; None where it can run none."""
    fitting = [
        (len(target.features), -number)
        for number, target in enumerate(targets)
        if set(target.features) <= set(host.features) and platform_of(target.triple) == platform_of(host.triple)
    ]
    return -max(fitting)[1] if fitting else None
