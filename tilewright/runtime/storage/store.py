"""Code and weights that several compiled models share: files in a folder, each named by the digest of its bytes.

A file of a store is never written to again, only made (under another name first) and removed, so that it may be mapped:
processes and models share its pages.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.storage.files import open_at_once, replacing, write_slices

FOLDER = "store"
"""Of a fleet: the folder that holds the sections of its models."""

_NAME = re.compile("[0-9a-f]{64}")
_PIECE = 1 << 18


def digest_of(pieces: Iterable[bytes | bytearray | memoryview]) -> str:
    """The name of some bytes: their blake2b-256."""
    digest = hashlib.blake2b(digest_size=32)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


@dataclass(frozen=True)
class Store:
    """The files of a folder."""

    folder: Path

    @classmethod
    def beside(cls, model: Path, depth: int) -> Store | None:
        """That of a fleet, by a model of it which lies `depth` folders down; None where there are not so many."""
        above = Path(os.path.realpath(model)).parents
        return cls(above[depth] / FOLDER) if 0 <= depth < len(above) else None

    def path(self, digest: str) -> Path:
        """Where some bytes are, or will be; ArtifactError for what is no digest."""
        if not _NAME.fullmatch(digest):
            raise ArtifactError(f"{digest!r:.80} is no name of code or weights", hint="compile the model again")
        return self.folder / digest

    def has(self, digest: str, size: int) -> bool:
        """Whether there is a file of this name and size."""
        with contextlib.suppress(OSError, ArtifactError):
            return self.path(digest).stat().st_size == size
        return False

    def is_sound(self, digest: str, size: int) -> bool:
        """Whether there is a file of this name and size that holds what its name says. All of it is read."""
        if not self.has(digest, size):
            return False
        try:
            with open(self.path(digest), "rb", opener=open_at_once) as file:
                return digest_of(iter(partial(file.read, _PIECE), b"")) == digest
        except OSError:
            return False

    def put(self, digest: str, pieces: Iterable[bytes | bytearray | memoryview], size: int) -> None:
        """Hold some bytes, whole or not at all, also where a damaged file has their name; ArtifactError where the file
        system refuses them."""
        if self.is_sound(digest, size):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.path(digest)) as file:
            for piece in pieces:
                write_slices(file, piece)

    def files(self) -> Iterator[tuple[str, int]]:
        """Digests and sizes of all that it holds; nothing where there is no folder."""
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and entry.is_file():
                    yield entry.name, entry.stat().st_size

    def remove(self, digest: str) -> None:
        """Hold some bytes no longer; who has mapped them keeps them."""
        with contextlib.suppress(FileNotFoundError):
            self.path(digest).unlink()
