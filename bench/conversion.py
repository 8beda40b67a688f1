"""Files that engines make of models, kept by the content of the model."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

LONGEST_S = 1200
SHOWN_CHARACTERS = 300


def converted(
    model: Path, cache: Path, suffixes: Sequence[str], make: Callable[[Path, Path], None]
) -> list[Path]:
    """The files of a model with these suffixes in the cache; `make(model, folder)` writes them as model.SUFFIX."""
    with model.open("rb") as file:
        key = hashlib.file_digest(file, "sha256").hexdigest()[:24]
    kept = [cache / f"{model.stem}-{key}{suffix}" for suffix in suffixes]
    if not all(path.exists() for path in kept):
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            make(model, Path(scratch))
            for suffix, path in zip(suffixes, kept, strict=True):
                (Path(scratch) / f"model{suffix}").replace(path)
    return kept


def call(command: Sequence[str | Path], folder: Path, result: Path) -> None:
    """Run a converter; RuntimeError with the end of what it printed unless it leaves `result`."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LONGEST_S,
        text=True,
        errors="replace",
    )
    if done.returncode or not result.exists():
        said = " ".join(done.stdout.split())[-SHOWN_CHARACTERS:]
        raise RuntimeError(f"{Path(command[0]).name} gave {done.returncode}: {said}")
