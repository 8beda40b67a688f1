"""Files of models: reading them, and telling whether they have changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
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

    def read(start: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(CHUNK)

    return _digest([partial(read, start) for start in range(0, path.stat().st_size, CHUNK)])


def digest_of_arrays(arrays: Iterable[memoryview]) -> bytes:
    """A digest of what lies in memory, as bytes, one array after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        starts = range(0, len(array), CHUNK)
        pieces = [partial(lambda array, k: array[k : k + CHUNK], array, k) for k in starts]
        digest.update(_digest(pieces) if len(pieces) > 1 else array)
    return digest.digest()


def _digest(pieces: Sequence[Callable[[], bytes | memoryview]]) -> bytes:
    """A digest of pieces that are given when they are called, by several threads: hashing releases the interpreter
    lock. SHA-256 is twice as fast as BLAKE2 on CPUs that have instructions for it, and as fast on others."""
    found = [b""] * len(pieces)
    errors: list[OSError] = []

    def work(first: int) -> None:
        try:
            found[first::_THREADS] = [hashlib.sha256(piece()).digest() for piece in pieces[first::_THREADS]]
        except OSError as error:
            errors.append(error)

    threads = [Thread(target=work, args=(first,)) for first in range(min(_THREADS, len(pieces)))]
    for thread in threads:  # a pool of threads takes long to import
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return hashlib.sha256(b"".join(found)).digest()


def file_mentions(path: Path, text: bytes) -> bool:
    """Whether a file holds these bytes; OSError."""
    before = b""
    with open(path, "rb") as file:  # read and not mapped: somebody may be writing over it
        while piece := file.read(CHUNK):
            if text in piece or text in before + piece[: len(text)]:
                return True
            before = (before + piece[-len(text) :])[-len(text) :]
    return False
