"""A fleet: compiled models in a folder, by name, whose code and weights lie in one store.

    fleet/
        resnet50.tw            metadata, and the digests of code and weights
        customers/a.tw         the model "customers/a"
        store/                 code and weights (`store.py`)
        fleet.json             what they were made of (for who compiles them again)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

from tilewright.runtime.artifact import Artifact
from tilewright.runtime.errors import ArtifactError, short_name
from tilewright.runtime.module import Model
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.storage.store import FOLDER, Store

SUFFIX = ".tw"
FLEET = "fleet"
"""Of what is attached to an artefact of a fleet: its name there."""


def models_of(folder: Path) -> dict[str, Path]:
    """The files of all models of a fleet by name, in order; ArtifactError for what is no folder."""
    found: dict[str, Path] = {}
    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # somebody has removed a folder just now
            raise error

    try:
        if not folder.is_dir():
            raise ArtifactError(
                f"{folder} is no folder of compiled models",
                hint="make one with `tilewright compile MODEL ... -o FOLDER/`",
            )
        for root, folders, files in os.walk(folder, onerror=refuse):
            folders[:] = [name for name in folders if not (root == str(folder) and name == FOLDER)]
            for file in files:
                path = Path(root, file)
                if path.suffix == SUFFIX and not file.startswith("."):
                    found[path.relative_to(folder).as_posix().removesuffix(SUFFIX)] = path
    except (OSError, ValueError) as error:
        what = f"{folder} cannot be looked at: {error}"
        raise ArtifactError(what, hint="check the path and its permissions") from error
    return dict(sorted(found.items()))


def with_shared(
    folder: Path, name: str, artifact: Artifact, *, key: str | Path | bytes | None = None, force: bool = False
) -> Path:
    """Write a model of a fleet: code and weights to its store, and then the file, whole or not at all. With a private
    `key` it is signed, with its name. Gives the path. ArtifactError where a link leads it out of the fleet: there it
    would not find the store."""
    path = folder / f"{name}{SUFFIX}"
    if Path(os.path.realpath(path)) != Path(os.path.realpath(folder), f"{name}{SUFFIX}"):
        raise ArtifactError(
            f"{path} is a link, or in a folder that is one, and leads out of its place in the fleet",
            hint="remove the link; the folder of the whole fleet may be one, and its store",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    named = replace(artifact, attached={**artifact.attached, FLEET: name})
    named.save(path, key=key, shared=(Store(folder / FOLDER), name.count("/")), force=force)
    return path


def check_named(path: Path, name: str, artifact: Artifact) -> None:
    """ArtifactError unless the artefact in the file is that model of its fleet."""
    own = artifact.attached.get(FLEET)
    if own != name:
        raise ArtifactError(
            f"{path} is the model {own!r:.80} of a fleet, under another name"
            if own is not None
            else f"{path} was put there by hand, and belongs to no fleet",
            hint="load it by itself with tilewright.load, or compile the fleet with that name",
        )


class Fleet(Mapping[str, Model]):
    """Compiled models by name, made by `tilewright.load_fleet`. A model is loaded when it is first asked for, and kept
    until `close`; `load` loads several, or all, at once. Several threads may ask at once."""

    def __init__(self, folder: Path, open_model: Callable[[Path], Model]) -> None:
        self.folder = folder
        self._open_model = open_model
        self._paths = models_of(folder.absolute())  # the process may go elsewhere before it asks for a model
        self._models: dict[str, Model] = {}
        self._locks = {name: free_in_children(threading.Lock()) for name in self._paths}

    def __getitem__(self, name: str) -> Model:
        """A model; KeyError where there is none of that name, ArtifactError where it cannot be loaded."""
        found = self._models.get(name)
        if found is None:
            with self._lock_of(name):
                found = self._models.get(name)
                if found is None:
                    found = self._models[name] = self._opened(name)
        return found

    def _lock_of(self, name: str) -> threading.Lock:
        try:
            return self._locks[name]
        except (KeyError, TypeError):
            names = ", ".join(map(short_name, list(self._paths)[:_SHOWN])) or "none"
            more = f" and {len(self) - _SHOWN} more" if len(self) > _SHOWN else ""
            raise KeyError(f"the fleet {self.folder} has no model {name!r:.80}: there are {names}{more}") from None

    def _opened(self, name: str) -> Model:
        model = self._open_model(self._paths[name])
        check_named(self._paths[name], name, model.artifact)
        return model

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    def load(self, *names: str) -> Self:
        """Load some models now, or all. KeyError, ArtifactError."""
        for name in names or self._paths:
            self[name]
        return self

    def close(self) -> None:
        """Close the models that are loaded; asked for again, they are loaded anew."""
        for name in list(self._models):
            if (model := self._models.pop(name, None)) is not None:  # somebody else may close it, too
                model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<fleet {short_name(str(self.folder))} of {len(self)} models, {len(self._models)} loaded>"


_SHOWN = 10
"""Names that an error lists."""
