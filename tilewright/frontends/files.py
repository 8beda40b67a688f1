"""Files of models: reading them, and telling whether they have changed."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from tilewright.ir.diag import ModelError

CHUNK = 1 << 22
DIGEST_BYTES = 32
_THREADS = min(8, os.cpu_count() or 1)


def first_bytes(source: Any, count: int) -> bytes:
    """The beginning of a source that is bytes or the path of a regular file; of anything else nothing."""
    if isinstance(source, bytes):
        return source[:count]
    try:
        if isinstance(source, Path) and source.is_file():
            with open_regular(source) as file:
                return file.read(count)
    except (OSError, ValueError):
        pass
    return b""


@contextmanager
def open_regular(path: Path) -> Iterator[BufferedReader]:
    """A regular file to be read. Of anything else an OSError, at once: a named pipe is not waited for."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        yield file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


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

    def read(start: int) -> Batch:
        with open_regular(path) as file:
            file.seek(start)
            return [file.read(CHUNK)]

    return _digest(partial(read, start) for start in range(0, path.stat().st_size, CHUNK))


def digest_of_arrays(arrays: Iterable[memoryview]) -> bytes:
    """A digest of what lies in memory, as bytes, one array after the other. Of arrays that are made when they are asked
    for, few are in memory at once."""
    sizes: list[int] = []

    def batches() -> Iterator[Callable[[], Batch]]:
        batch: list[memoryview] = []
        room = CHUNK
        for array in arrays:
            sizes.append(len(array))
            while len(array) >= room:
                yield partial(list, [*batch, array[:room]])
                array, batch, room = array[room:], [], CHUNK
            batch.append(array)
            room -= len(array)
        yield partial(list, batch)

    content = _digest(batches())
    return hashlib.sha256(content + str(sizes).encode()).digest()


Batch = Sequence[bytes | memoryview]


def _digest(batches: Iterable[Callable[[], Batch]]) -> bytes:
    """A digest of bytes that are given when they are asked for, by several threads, each of which takes what is next:
    hashing releases the interpreter lock. SHA-256 is twice as fast as BLAKE2 on CPUs that have instructions for it, and
    as fast on others."""
    found: dict[int, bytes] = {}
    errors: list[Exception] = []
    left, lock = enumerate(batches), Lock()

    def work(task: tuple[int, Callable[[], Batch]] | None) -> None:
        try:
            while task is not None:
                digest = hashlib.sha256()
                for piece in task[1]():
                    digest.update(piece)
                found[task[0]] = digest.digest()
                with lock:
                    task = next(left, None)
        except Exception as error:
            errors.append(error)

    first = list(islice(left, _THREADS))
    threads = [Thread(target=work, args=(task,)) for task in first[1:]]
    for thread in threads:  # a pool of threads takes long to import
        thread.start()
    work(first[0] if first else None)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return hashlib.sha256(b"".join(found[k] for k in range(len(found)))).digest()


def file_mentions(path: Path, text: bytes) -> bool:
    """Whether a file holds these bytes; OSError."""
    before = b""
    with open_regular(path) as file:  # read and not mapped: somebody may be writing over it
        while piece := file.read(CHUNK):
            if text in piece or text in before + piece[: len(text)]:
                return True
            before = (before + piece[-len(text) :])[-len(text) :]
    return False
