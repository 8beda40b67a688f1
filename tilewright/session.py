"""The on-disk cache of compiled models: keyed by content, safe under concurrent processes, bounded in size."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import tilewright
from tilewright.options import Options, Request
from tilewright.runtime import Artifact
from tilewright.runtime.errors import ArtifactError
from tilewright.target.named import parse_target

CHUNK = 1 << 22
DEFAULT_LIMIT = 4 << 30


_PACKAGE = Path(tilewright.__file__).parent


@lru_cache(maxsize=1)
def compiler_stamp(package: Path) -> str:
    """What identifies the compiler: versions, and for a checkout that is worked on the state of its files."""
    digest = hashlib.blake2b(digest_size=20)
    for path in sorted(package.rglob("*.py")):
        stat = path.stat()
        digest.update(f"{path.relative_to(package)}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return f"{tilewright.__version__};llvmlite {version('llvmlite')};{digest.hexdigest()}"


def default_folder() -> Path:
    """`$TILEWRIGHT_CACHE`, or `tilewright` in the user's cache folder; a user without a home has no cache."""
    named = os.environ.get("TILEWRIGHT_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "tilewright"
    except RuntimeError:
        # A folder that cannot be made. A shared one, as /tmp, will not do: cached code is run without a check.
        return Path(os.devnull) / "tilewright"


@dataclass(frozen=True)
class Session:
    """A folder of artefacts and its bound in bytes. A cache that cannot be used never fails a compilation."""

    folder: Path = field(default_factory=default_folder)
    limit: int = DEFAULT_LIMIT

    def key(self, request: Request, options: Options) -> str | None:
        """A digest of everything that determines the artefact; None when the model cannot be read."""
        digest = hashlib.blake2b(digest_size=20)
        target = parse_target(options.target)
        shapes = sorted(request.shapes.items())
        stamp = f"{compiler_stamp(_PACKAGE)};{target!r};{options.fingerprint()};{shapes!r}"
        digest.update(stamp.encode())
        for name, array in sorted(request.constants.items()):
            digest.update(f"{name}:{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        try:
            _add_model(digest, request.model)
        except (OSError, ValueError):  # a path that cannot be opened, or that is none
            return None
        return digest.hexdigest()

    def find(self, key: str) -> Artifact | None:
        """The artefact kept under `key`; a damaged one is removed."""
        path = self._path(key)
        try:
            if not path.exists():
                return None
            os.utime(path)
            return Artifact.load(path)
        except ArtifactError:
            path.unlink(missing_ok=True)
        except OSError:
            pass
        return None

    def keep(self, key: str, artifact: Artifact) -> None:
        """Store the artefact (written whole or not at all), then drop the longest unused above the limit."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            artifact.save(self._path(key))
            self._trim()
        except (OSError, ArtifactError):
            return

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.tw"

    def _trim(self) -> None:
        found = sorted(
            ((p.stat().st_mtime, p.stat().st_size, p) for p in self.folder.glob("*.tw")), reverse=True
        )
        total = 0
        for _, size, path in found:
            total += size
            if total > self.limit:
                path.unlink(missing_ok=True)


def _digest_of(path: Path, start: int) -> bytes:
    """Of one piece of a file."""
    with open(path, "rb") as f:
        f.seek(start)
        return hashlib.blake2b(f.read(CHUNK)).digest()


def _add_model(digest: Any, model: Path | bytes | Any) -> None:
    """Hash the model's bytes; of a file with external data also sizes and times of the files beside it."""
    if isinstance(model, bytes):
        digest.update(model)
    elif isinstance(model, Path):
        size = model.stat().st_size
        with ThreadPoolExecutor() as pool:  # hashing releases the interpreter lock
            for part in pool.map(lambda start: _digest_of(model, start), range(0, size, CHUNK)):
                digest.update(part)
        for other in sorted(model.parent.iterdir()):
            if other.is_file() and other != model:
                stat = other.stat()
                digest.update(f"{other.name}:{stat.st_size}:{stat.st_mtime_ns}".encode())
    else:
        digest.update(model.SerializeToString())
