"""What is known of a fleet that was compiled before: of what each model was made. For who compiles it again; nothing
that runs the models reads it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator
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

    def holds(self, name: str, key: str | None) -> bool:
        """Whether the fleet has this model, made of just this, and all of it."""
        entry = self.entries.get(name)
        if entry is None or key is None or entry.key != key:
            return False
        try:
            file = ArtifactFile.of(self.folder / f"{name}{SUFFIX}")
        except TilewrightError:
            return False
        same = tuple(section.digest for section in file.sections) == entry.sections
        return same and all(self.store.has(section.digest, section.size) for section in file.sections)

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
        """Digests and bytes of what is in the store, and of no model."""
        used: set[str] = set()
        for path in models_of(self.folder).values():
            try:
                used.update(section.digest for section in ArtifactFile.of(path).sections)
            except ArtifactError:  # damaged, or of another version: nobody loads it as it is
                continue
        return {digest: size for digest, size in self.store.files() if digest not in used}

    def tidy(self) -> None:
        """Remove what an interrupted process had begun to write."""
        for root, _, files in os.walk(self.folder):
            for name in filter(_TEMPORARY.fullmatch, files):
                Path(root, name).unlink(missing_ok=True)


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
