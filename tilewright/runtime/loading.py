"""Compiled models from files."""

from __future__ import annotations

from pathlib import Path

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executor import MakeExecutor
from tilewright.runtime.module import Model
from tilewright.runtime.storage.container import Bytes


def load(
    source: str | Path | Bytes,
    threads: int | None = None,
    *,
    check_weights: bool | None = None,
    mmap: bool = False,
    executor: MakeExecutor | None = None,
) -> Model:
    """Load a compiled model from the file that `Model.save` wrote, or from its bytes.

    Afterwards the file may be replaced, written over, cut off or deleted: a model has its own copy of all that it
    needs, and neither fails nor changes. `mmap=True` leaves weights and code in the file, whose memory processes share;
    then the file may be replaced by renaming (as `Model.save` and `mv` do, not `cp`) or deleted, and nothing else.
    `check_weights` says whether the checksum of the weights, which reads all of them, is looked at: by default unless
    they are mapped (that of code always is). `threads`, `executor` (for another kind of machine): see `Model`.
    ArtifactError for a file that is missing, damaged, foreign, too new or for another CPU. An artefact is code: load
    only what you trust.
    """
    return Model(Artifact.load(source, check_weights=check_weights, mmap=mmap), threads, executor)
