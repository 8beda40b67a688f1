"""Which of several levels of an artefact a CPU can run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.runtime.artifact import Artifact, StoredModel, TargetInfo
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage.container import Bytes
from tilewright.runtime.storage.files import Selection
from tilewright.runtime.storage.loader import check_target, platform_of, this_machine
from tilewright.runtime.storage.records import record
from tilewright.runtime.storage.signing import Trust, trusted_keys

ASKED = "TILEWRIGHT_LEVEL"
"""The environment variable that names a level for all models that have several."""


def at_level(artifact: Artifact, name: str | None = None, host: TargetInfo | None = None) -> Artifact:
    """The level of this name, or of that in `$TILEWRIGHT_LEVEL`, or the one that asks most of the CPU of those that it
    can run, with what is attached to the artefact; one without levels is given as it is. OptionError for a name that
    there is not, ArtifactError where the CPU can run none."""
    levels = (artifact, *artifact.levels)
    taken = _number([(level.level, level.target) for level in levels], name, host)
    if not artifact.levels:
        return artifact
    return replace(levels[taken], levels=(), attached=artifact.attached, model=artifact.model)


def load_level(
    source: str | Path | Bytes, name: str | None = None, host: TargetInfo | None = None, *, check_weights: bool | None,
    mmap: bool, trust: Trust | None,
) -> tuple[Artifact, StoredModel | None]:  # fmt: skip
    """What `at_level` takes of what `Artifact.load` reads, without a look at the code of other levels, their weights
    and what is said of them; and the whole, of which these are read, and compared with their digests, when somebody
    asks for it: None where there are no others, or a `name` says which is wanted."""

    def levels(described: Sequence[dict[str, Any]]) -> list[tuple[str, TargetInfo]]:
        return [(str(data["level"]), record(TargetInfo, data["target"])) for data in described]

    def select(metadata: dict[str, Any]) -> Selection:
        described = [metadata, *metadata.get("levels", ())]
        taken = _number(levels(described), name, host)
        others = set(range(len(described))) - {taken}
        reads = tuple((first, end) for first, end in described[taken].get("reads", [(0, sys.maxsize)]))
        if any(type(at) is not int for pair in reads for at in pair):
            raise ValueError("the ranges of the weights are no numbers")
        return Selection(others, reads, is_final=bool(others) and name is not None, keeps=bool(others) and name is None)

    trusted = None if trust is None else trusted_keys(trust)
    stored = StoredModel.read(source, check_weights=check_weights, mmap=mmap, trusted=trusted, select=select)
    if len(stored.described) == 1:
        return stored.whole(), None
    taken = _number(levels(stored.described), name, host)
    return stored.level(taken, "attached", "model"), stored if name is None else None


def _number(levels: Sequence[tuple[str, TargetInfo]], name: str | None, host: TargetInfo | None) -> int:
    """Which level is taken of these names and targets."""
    asked = f"level={name!r:.80}"
    if name is None and len(levels) > 1 and (name := os.environ.get(ASKED) or None):
        asked = f"{ASKED}={name:.80}"
    among = list(range(len(levels)))
    if name is not None:
        among = [number for number, (level, _) in enumerate(levels) if level == name and name]
        if not among:
            known = ", ".join(level for level, _ in levels if level) or "none"
            raise OptionError(f"{asked} is not allowed: the levels of this model are {known}")
    if len(levels) == 1:
        return 0
    host = this_machine() if host is None else host
    targets = [levels[number][1] for number in among]
    best = best_of(targets, host)
    if best is None:
        check_target(min(targets, key=lambda target: len(target.features)), host)
        raise ArtifactError("no level of the model can run here", hint="compile the model on this machine")
    return among[best]


def best_of(targets: Iterable[TargetInfo], host: TargetInfo) -> int | None:
    """The number of the target that asks most of a machine of those that it can run; None where it can run none."""
    fitting = [
        (len(target.features), -number)
        for number, target in enumerate(targets)
        if set(target.features) <= set(host.features) and platform_of(target.triple) == platform_of(host.triple)
    ]
    return -max(fitting)[1] if fitting else None
