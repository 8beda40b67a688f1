"""Which of several levels of an artefact a CPU can run."""

from __future__ import annotations

from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage.loader import check_target, this_machine


def at_level(artifact: Artifact, name: str | None = None, host: TargetInfo | None = None) -> Artifact:
    """The level of this name, or the one that asks most of the CPU of those that it can run; an artefact without levels
    is given as it is. OptionError for a name that there is not, ArtifactError where the CPU can run none."""
    levels = (artifact, *artifact.levels)
    if name is not None:
        found = next((level for level in levels if level.level == name), None)
        if found is None:
            known = ", ".join(level.level for level in levels if level.level) or "none"
            raise OptionError(f"level={name!r:.80} is not allowed: the levels of this model are {known}")
        levels = (found,)
    if not artifact.levels:
        return levels[0]
    host = this_machine() if host is None else host
    fitting = [level for level in levels if set(level.target.features) <= set(host.features)]
    if not fitting:
        least = min(levels, key=lambda level: len(level.target.features))
        check_target(least.target, host)
        raise ArtifactError("no level of the model can run here", hint="compile the model on this machine")
    best = max(fitting, key=lambda level: len(level.target.features))
    return best.with_levels(())
