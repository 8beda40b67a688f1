"""Files of models: reading them, and telling whether they have changed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from threading import Thread
from typing import Any

from tilewright.ir.diag import ModelError

CHUNK = 1 << 22
_THREADS = min(8, os.cpu_count() or 1)


def first_bytes(source: Any, count: int) -> bytes:
    """The beginning of a source that is bytes or the path of a regular file; of anything else nothing."""
    if isinstance(source, bytes):
        return source[:count]
    try:
        if isinstance(source, Path) and source.is_file():
            with open(source, "rb") as file:
                return file.read(count)
    except (OSError, ValueError):
        pass
    return b""


def check_file(path: Path) -> None:
    """ModelError where the path is none of a regular file."""
    try:
        if path.is_file():
            return
        exists = path.exists()
    except (OSError, ValueError) as e:
        raise ModelError(f"the model file cannot be read: {e}", where=str(path)) from e
    if exists:
        raise ModelError("the model path is not a regular file", where=str(path), hint="give a model's file")
    raise ModelError("the model file does not exist", where=str(path), hint="check the path")


def read_file(path: Path, limit: int, hint: str) -> bytes:
    """The bytes of a file; ModelError where there are more than `limit` (`hint` says what to do then) or it cannot be
    read."""
    check_file(path)
    try:
        size = path.stat().st_size
        if size > limit:
            raise ModelError(
                f"the model file has {size} bytes; of this format it holds at most {limit}",
                where=str(path),
                hint=hint,
            )
        return path.read_bytes()
    except OSError as e:
        raise ModelError(f"the model file cannot be read: {e}", where=str(path)) from e


def digest_of_file(path: Path) -> bytes:
    """A digest of a file's bytes; OSError."""
    digest = hashlib.blake2b(digest_size=20)
    size = path.stat().st_size
    starts = range(0, size, CHUNK)
    pieces = [b""] * len(starts)
    errors: list[OSError] = []

    def work(first: int) -> None:
        try:
            pieces[first::_THREADS] = [_digest_of_piece(path, start) for start in starts[first::_THREADS]]
        except OSError as error:
            errors.append(error)

    threads = [Thread(target=work, args=(first,)) for first in range(min(_THREADS, len(starts)))]
    for thread in threads:  # hashing releases the interpreter lock; a pool of threads takes long to import
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    digest.update(b"".join(pieces))
    return digest.digest()


def _digest_of_piece(path: Path, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return hashlib.blake2b(file.read(CHUNK)).digest()


def file_mentions(path: Path, text: bytes) -> bool:
    """Whether a file holds these bytes; OSError."""
    before = b""
    with open(path, "rb") as file:  # read and not mapped: somebody may be writing over it
        while piece := file.read(CHUNK):
            if text in piece or text in before + piece[: len(text)]:
                return True
            before = (before + piece[-len(text) :])[-len(text) :]
    return False
