"""Compiled models from files, and their signatures."""

from __future__ import annotations

from pathlib import Path

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.executor import MakeExecutor
from tilewright.runtime.module import Model
from tilewright.runtime.storage.container import Bytes
from tilewright.runtime.storage.signing import Trust


def load(
    source: str | Path | Bytes,
    threads: int | None = None,
    *,
    check_weights: bool | None = None,
    mmap: bool = False,
    trust: Trust | None = None,
    executor: MakeExecutor | None = None,
) -> Model:
    """Load a compiled model from the file that `Model.save` wrote, or from its bytes.

    Afterwards the file may be replaced, written over, cut off or deleted: a model has its own copy of all that it
    needs, and neither fails nor changes. `mmap=True` leaves weights and code in the file, whose memory processes share;
    then the file may be replaced by renaming (as `Model.save` and `mv` do, not `cp`) or deleted, and nothing else.
    `check_weights` says whether the checksum of the weights, which reads all of them, is looked at: by default unless
    they are mapped (that of code always is). `threads`, `executor` (for another kind of machine): see `Model`.
    ArtifactError for a file that is missing, damaged, foreign, too new or for another CPU.

    An artefact is code, which can do whatever the process may: load only what you trust. With `trust`, one or several
    public keys (Ed25519; paths of PEM files, or their bytes), only what one of them has signed is loaded (`sign`), and
    all of it is compared with what was signed; code is then copied also where weights are mapped.
    """
    return Model(Artifact.load(source, check_weights=check_weights, mmap=mmap, trust=trust), threads, executor)


def sign(path: str | Path, key: str | Path | bytes, output: str | Path | None = None) -> None:
    """Sign a compiled model in a file with a private key (Ed25519; the path of a PEM file, or its bytes): the file is
    replaced, or the signed one is written to `output`. What is damaged is not signed. An older signature is replaced.

    Needs the package cryptography (pip install cryptography). ArtifactError, OptionError.
    """
    Artifact.load(path, check_weights=True, mmap=True).save(path if output is None else output, key=key)
