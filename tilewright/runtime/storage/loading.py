"""Compiled models from files, and their signatures."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import OptionError
from tilewright.runtime.executor import MakeExecutor
from tilewright.runtime.module import Model
from tilewright.runtime.storage.container import Bytes
from tilewright.runtime.storage.fleet import SUFFIX, Fleet, check_named, models_of, with_shared
from tilewright.runtime.storage.levels import load_level
from tilewright.runtime.storage.signing import Trust


def load(
    source: str | Path | Bytes,
    threads: int | None = None,
    *,
    check_weights: bool | None = None,
    mmap: bool = False,
    trust: Trust | None = None,
    executor: MakeExecutor | None = None,
    level: str | None = None,
) -> Model:
    """Load a compiled model from the file that `Model.save` wrote, or from its bytes. The suffix .tw may be left out,
    as in `load("fleet/name")` of a model of a fleet (`load_fleet`).

    Afterwards the file may be replaced, written over, cut off or deleted: a model has its own copy of all that it
    needs, and neither fails nor changes. `mmap=True` leaves weights and code in the file, whose memory processes share;
    then the file may be replaced by renaming (as `Model.save` and `mv` do, not `cp`) or deleted, and nothing else.
    `check_weights` says whether the checksum of the weights, which reads all of them, is looked at: by default unless
    they are mapped (that of code always is). `threads`, `executor` (for another kind of machine): see `Model`.
    Of a model with several levels (`tilewright compile --multi`) the best one is taken that this CPU can run, or the
    one named `level`, and only what it needs is read; the others are read from the file, which stays open, when the
    model is saved or pickled: ArtifactError where it was written over since. ArtifactError for a file that is missing,
    damaged, foreign, too new or for another CPU.

    An artefact is code, which can do whatever the process may: load only what you trust. With `trust`, one or several
    public keys (Ed25519; paths of PEM files, or their bytes), only what one of them has signed is loaded (`sign`), and
    all of it is compared with what was signed; code is then copied also where weights are mapped.
    """
    artifact, whole = load_level(_found(source), level, check_weights=check_weights, mmap=mmap, trust=trust)
    return Model(artifact, threads, executor, _whole=whole)


def _found(source: str | Path | Bytes) -> str | Path | Bytes:
    """A path with the suffix, where there is nothing without it."""
    if isinstance(source, str | os.PathLike):
        with contextlib.suppress(OSError, ValueError):
            longer = Path(f"{os.fspath(source)}{SUFFIX}")
            there = os.path.lexists(source) and not os.path.isdir(source)  # a folder may have the models "name/..."
            if not there and longer.is_file():
                return longer
    return source


def load_fleet(
    folder: str | Path,
    threads: int | None = None,
    *,
    mmap: bool = True,
    check_weights: bool | None = None,
    trust: Trust | None = None,
) -> Fleet:
    """Open a folder of compiled models that `tilewright compile ... -o FOLDER/` wrote: a mapping of names to models,
    each of which is loaded when it is first asked for.

    Code and weights stay in the files of the fleet, which nobody writes over: models and processes share their memory,
    and a fleet may be compiled anew below those who use it, who go on with what they have loaded. `mmap=False` copies
    them. `threads`, `check_weights`, `trust`: as `load` has them; with `trust` a model must have been signed for the
    name that it has. ArtifactError for a folder that is no fleet.
    """
    return Fleet(Path(folder), partial(load, threads=threads, mmap=mmap, check_weights=check_weights, trust=trust))


def sign(path: str | Path, key: str | Path | bytes, output: str | Path | None = None) -> None:
    """Sign a compiled model in a file with a private key (Ed25519; the path of a PEM file, or its bytes): the file is
    replaced, or the signed one is written to `output`. What is damaged is not signed. An older signature is replaced.

    A folder is a fleet, each of whose models is signed where it is. Needs the package cryptography (pip install
    cryptography). ArtifactError, OptionError.
    """
    if Path(path).is_dir():
        if output is not None:
            raise OptionError("output= is not allowed for a fleet: copy it as a whole, and sign the copy")
        for name, file in models_of(Path(path)).items():
            _sign_shared(Path(path), name, file, key)
        return
    from tilewright.runtime.storage.described import ArtifactFile

    depths = {section.depth for section in ArtifactFile.of(Path(path)).sections}
    if output is None and (depth := max(depths, default=-1)) >= 0:  # its code and weights are in a store
        file = Path(os.path.realpath(path))
        folder = file.parents[depth]
        _sign_shared(folder, file.relative_to(folder).as_posix().removesuffix(SUFFIX), file, key)
    else:
        artifact = Artifact.load(path, check_weights=True, mmap=True)
        artifact.save(path if output is None else output, key=key)


def _sign_shared(folder: Path, name: str, file: Path, key: str | Path | bytes) -> None:
    """Sign a model of a fleet where it is, with the name that it has been given."""
    artifact = Artifact.load(file, check_weights=True, mmap=True)
    check_named(file, name, artifact)
    with_shared(folder, name, artifact, key=key)
