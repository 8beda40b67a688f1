"""What is known of a fleet that was compiled before: of what each model was made. For who compiles it again; nothing
that runs the models reads it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import ArtifactError, TilewrightError
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.files import refused, replacing
from tilewright.runtime.storage.fleet import SUFFIX, models_of
from tilewright.runtime.storage.records import record
from tilewright.runtime.storage.store import FOLDER, Store

if sys.platform != "win32":
    import fcntl

INDEX = "fleet.json"
_FORMAT = 1
_TEMPORARY = re.compile(r"\..*\.[0-9a-f]{16}\.tmp")
"""What was being written when a process was ended."""


@dataclass(frozen=True)
class MemberEntry:
    """A model that was compiled: the digest of all that determines what it becomes (`Session.key`), and the digests of
    the code and the weights that it became."""

    source: str
    key: str
    sections: tuple[str, ...]
    seconds: float


class Index:
    """The entries of a fleet by name, kept in a file of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(folder / FOLDER)
        self.entries = _read(folder / INDEX)
        self._sound: dict[tuple[str, int], bool] = {}

    def holds(self, name: str, key: str | None) -> bool:
        """Whether the fleet has this model, made of just this, and all of it, undamaged."""
        entry = self.entries.get(name)
        if entry is None or key is None or entry.key != key:
            return False
        try:
            file = ArtifactFile.of(self.folder / f"{name}{SUFFIX}")
        except TilewrightError:
            return False
        same = tuple(section.digest for section in file.sections) == entry.sections
        return same and all(self._is_sound(section.digest, section.size) for section in file.sections)

    def _is_sound(self, digest: str, size: int) -> bool:
        """Each file of the store is read once."""
        if (digest, size) not in self._sound:
            self._sound[digest, size] = self.store.is_sound(digest, size)
        return self._sound[digest, size]

    def names(self) -> set[str]:
        """The models of the fleet, also those that nobody has noted: a file that was put there by hand is none."""
        found = {*self.entries}
        for name, path in models_of(self.folder).items():
            with contextlib.suppress(ArtifactError):
                if any(section.depth == name.count("/") for section in ArtifactFile.of(path).sections):
                    found.add(name)
        return found

    def note(self, name: str, entry: MemberEntry) -> None:
        """Keep an entry, at once: whoever goes on after an interrupt finds it."""
        self.entries[name] = entry
        self.write()

    def write(self) -> None:
        """ArtifactError where the file system refuses it."""
        models = {name: asdict(entry) for name, entry in sorted(self.entries.items())}
        with replacing(self.folder / INDEX) as file:
            file.write(json.dumps({"format": _FORMAT, "models": models}, indent=1).encode())

    def remove(self, name: str) -> None:
        """The fleet has this model no longer."""
        path = self.folder / f"{name}{SUFFIX}"
        path.unlink(missing_ok=True)
        self.entries.pop(name, None)
        for folder in path.relative_to(self.folder).parents:
            with contextlib.suppress(OSError):  # others are there still
                if folder.parts:
                    (self.folder / folder).rmdir()

    def unused(self) -> dict[str, int]:
        """Digests and bytes of what is in the store, and of no model. ArtifactError where a model cannot be read now:
        nobody knows what it needs."""
        used: set[str] = set()
        for path in models_of(self.folder).values():
            try:
                used.update(section.digest for section in ArtifactFile.of(path).sections)
            except ArtifactError as error:
                if isinstance(error.__cause__, OSError | MemoryError):
                    raise
                continue  # damaged, or of another version: nobody loads it as it is
        return {digest: size for digest, size in self.store.files() if digest not in used}

    def tidy(self, names: Iterable[str]) -> None:
        """Remove what an interrupted process had begun to write for models of these names, and for those that there
        are. Other folders within are others' business, who may be writing there now."""
        files = [self.folder / name for name in (INDEX, *names, *self.entries)]
        for folder in {self.store.folder, *(file.parent for file in files)}:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if _TEMPORARY.fullmatch(entry.name):
                        Path(entry.path).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, MemberEntry]:
    """What a file has; nothing where it is missing or damaged: then all is compiled."""
    try:
        data: Any = json.loads(path.read_bytes())
        if data["format"] != _FORMAT:
            return {}
        return {name: record(MemberEntry, entry) for name, entry in data["models"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


_TRIES, _PAUSE = 40, 0.05
"""How often a lock is asked for, and the seconds between: processes of a run that was killed end one after another."""


def _lock(descriptor: int, folder: Path) -> None:
    for left in reversed(range(_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if not left:
                raise ArtifactError(
                    f"another process is compiling into {folder}", hint="wait for it, or give another folder"
                ) from error
        except OSError:  # a file system without locks
            return
        time.sleep(_PAUSE)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else compiles into a folder meanwhile; ArtifactError where somebody does. The lock ends with the process,
    however that ends, and those that it began, which takes a moment."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise refused(folder, error) from error
    try:
        if sys.platform != "win32":
            _lock(descriptor, folder)
        yield
    finally:
        os.close(descriptor)
