"""Writing files whole or not at all, and over nothing that somebody may want back."""

from __future__ import annotations

import contextlib
import os
import struct
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tilewright.runtime.arena import ALIGNMENT
from tilewright.runtime.errors import ArtifactError

_SLICE = 1 << 24
"""Bytes handed to the operating system at once: between two slices an interrupt is noticed."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place at the end, or vanishes on any error.

    ArtifactError, which names the path, for what the file system refuses.
    """
    temporary = _temporary(path)
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, _target(path))
    except OSError as error:
        raise refused(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def open_at_once(path: str, flags: int) -> int:
    """An `opener` of `open` that does not wait for the other end of a named pipe, so that the caller can look what was
    opened. Of regular files nothing differs."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_slices(file: BinaryIO, data: bytes | bytearray | memoryview) -> None:
    """Write bytes (or a view of them) so that a big write can be interrupted."""
    view = memoryview(data)
    for start in range(0, view.nbytes, _SLICE):
        file.write(view[start : start + _SLICE])


def check_replaced(
    path: Path, what: str, is_one: Callable[[bytes], bool], *, sources: Iterable[Path] = (), force: bool = False
) -> None:
    """ArtifactError where a file written at `path` would take the place of one of the `sources`, or of a file that is
    not `what`: of whose first bytes `is_one` is false. An empty file is nobody's."""
    if force:
        return
    for source in sources:
        if is_same_file(path, source):
            raise _kept(path, f"it is what is read from ({source}), which would be lost")
    try:
        if not path.is_file():
            return  # what is no file at all, no file is written over
        with open(path, "rb", opener=open_at_once) as file:
            begins = file.read(FIRST_BYTES)
    except OSError as error:
        raise _kept(path, f"there is a file that cannot be looked at ({error.strerror or error})") from error
    except ValueError:  # no path at all
        return
    if begins and not is_one(begins):
        raise _kept(path, f"there is a file that is not {what}, which would be lost")


FIRST_BYTES = 16
"""Bytes by which the kinds of files are told."""


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by links or in another spelling too."""
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _kept(path: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"nothing was written to {path}: {why}",
        hint="give another name for what is written, or force=True (--force) to replace the file",
    )


def check_file(path: Path) -> None:
    """ArtifactError unless a file can be written at `path`: for a check before long work."""
    _check_folder(_temporary(path).parent, path)


def check_folder(path: Path) -> None:
    """ArtifactError unless files can be written in the folder `path`, which may be still to be made."""
    try:
        found = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    except OSError as error:
        raise refused(path, error) from error
    _check_folder(found, path)


def refused(path: Path, error: OSError) -> ArtifactError:
    """The error for a file or folder that the file system does not let us write."""
    return ArtifactError(
        f"cannot write {path}: {error.strerror or error}",
        hint="give a path in an existing, writable folder with enough free space",
    )


def _check_folder(folder: Path, wanted: Path) -> None:
    """Make a file in an existing folder, and remove it."""
    probe = folder / _random_name("probe")
    try:
        with open(probe, "xb"):
            pass
    except OSError as error:
        raise refused(wanted, error) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _temporary(path: Path) -> Path:
    """A name beside the file that `path` leads to; ArtifactError where no plain file can stand."""
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            # A rename would replace a device such as /dev/null by a plain file.
            raise ArtifactError(
                f"cannot write {path}: it is not a regular file", hint="give the name of a file"
            )
    except OSError as error:
        raise refused(path, error) from error
    except ValueError as error:  # no path at all
        raise ArtifactError(f"cannot write {path}: {error}", hint="give the name of a file") from error
    return target.with_name(_random_name(target.name))


def _random_name(stem: str) -> str:
    short = stem.encode(errors="replace")[:100].decode(errors="ignore")  # a name has up to 255 bytes
    return f".{short}.{os.urandom(8).hex()}.tmp"


@dataclass(frozen=True, eq=False)
class LentArray:
    """Weights that stay where the model's source has them. `data` are their bytes, whose distance from the start of the
    constants stands `slot` bytes after that, `checksum` is a crc32 of what they were when the model was compiled."""

    slot: int
    data: np.ndarray
    checksum: int


def saved_weights(
    constants: bytes | bytearray | memoryview, lent: Sequence[LentArray]
) -> list[memoryview]:
    """The constants as a file has them: with what is lent at their end, and its distances in their slots. ArtifactError
    where that was written to since the model was compiled."""
    whole = _byte_view(constants)
    pieces, tail, end, done = [], [], whole.nbytes, 0
    for array in lent:
        if zlib.crc32(array.data.data) != array.checksum:
            raise ArtifactError(
                "weights that the compiled model shares with its source were written to since it was compiled",
                hint="compile it again, with share_weights=False if the source is to be changed",
            )
        pieces += [whole[done : array.slot], memoryview(_DISTANCE.pack(end))]
        done = array.slot + _DISTANCE.size
        padding = bytes(-array.data.nbytes % ALIGNMENT)
        tail += [array.data.data, memoryview(padding)]
        end += array.data.nbytes + len(padding)
    return [*pieces, whole[done:], *tail]


_DISTANCE = struct.Struct("=q")


Ranges = tuple[tuple[int, int], ...]
"""First bytes, and those behind the last ones, in order."""


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same bytes in the fewest ranges."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        elif first < end:
            found.append((first, end))
    return tuple(found)


def holds(ranges: Ranges, first: int, end: int) -> bool:
    """Whether one of some ranges has all these bytes, or there are none."""
    return first >= end or any(begin <= first and end <= last for begin, last in ranges)


def cuts(readers: Iterable[Ranges], size: int) -> tuple[int, ...]:
    """Where weights are cut so that each of some readers can do with few parts: where one begins or ends to read, but
    for parts that would be small."""
    found = [0]
    for at in sorted({at for ranges in readers for pair in ranges for at in pair}):
        if found[-1] + _LEAST_PART <= at <= size - _LEAST_PART:
            found.append(at)
    return tuple(found[1:])


_LEAST_PART = 1 << 16
"""Bytes of a part, whose entry takes some fifty."""


@dataclass(frozen=True)
class Selection:
    """What somebody needs of a file: not the sections of these numbers, and these ranges of the weights. What is left
    out is read all the same, sections without a look at their checksums, unless it `is_final`: then sections are empty,
    and zeros are in place of parts of the weights. Where `keeps` is true, the file stays open to read it later; it is
    final where that works."""

    left_out: Container[int] = ()
    ranges: Ranges = ()
    is_final: bool = False
    keeps: bool = False


def _byte_view(data: bytes | bytearray | memoryview) -> memoryview:
    """The bytes of a contiguous buffer; an empty one cannot be cast."""
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")
