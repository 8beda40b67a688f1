"""The file that holds a compiled model: a header, JSON metadata and aligned binary sections.

    0   magic, 8 bytes          16  u64 length of the metadata      32  blake2b-256 of 0..32 and metadata
    8   u32 format version      24  u64 length of the whole file    64  metadata: UTF-8 JSON
    12  u32 zero

Integers are little-endian. The metadata's `sections` list each section's offset, size and checksum; code
sections start at multiples of 64 and carry a blake2b-256, weight sections start at multiples of 4096 (so that
they can be mapped and used in place) and carry a crc32, which is several times faster to check. Bytes between
sections are zero. Magic and version keep their place in every later format.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tilewright.runtime.errors import ArtifactError

FORMAT = 2
"""The format version that is written, and the newest that can be read."""

# The first byte is no text, the line ends break when a transfer "corrects" them.
MAGIC = b"\x89TWM\r\n\x1a\n"
_HEADER = struct.Struct("<8sIIQQ32s")
_SIGNED_PART = 32
_ALIGNMENT = {"code": 64, "weights": 4096}
_RECOMPILE = "compile the model again, or copy the file again from where it came"


@dataclass(frozen=True)
class Section:
    """Bytes of the file: `kind` is "code" or "weights"."""

    kind: str
    data: memoryview


def write_container(path: Path, metadata: dict[str, Any], sections: Sequence[Section]) -> None:
    """Write the file at once or not at all; ArtifactError when it cannot be written.

    `metadata` must be JSON data without the key "sections". There is no fsync: a file damaged by a power cut
    is found by its checksums.
    """
    text, table = _metadata_with_table(metadata, sections)
    end = table[-1]["offset"] + table[-1]["size"] if table else _HEADER.size + len(text)
    signed = _HEADER.pack(MAGIC, FORMAT, 0, len(text), end, b"")[:_SIGNED_PART]
    with _replacing(path) as file:
        file.write(signed + _blake2b(signed, text) + text)
        for entry, section in zip(table, sections, strict=True):
            file.write(bytes(entry["offset"] - file.tell()))
            file.write(section.data)


def read_container(path: Path, *, check_weights: bool = True) -> tuple[dict[str, Any], list[Section]]:
    """Metadata and sections of a file; ArtifactError when it is not a sound artefact of a known format.

    The sections are read-only views of the mapped file, which stays mapped as long as one of them lives.
    Metadata and code are always checked, weights unless `check_weights` is false.
    """
    view = _map(path)
    text = _checked_metadata(path, view)
    try:
        metadata = json.loads(bytes(text))
        table = metadata.pop("sections")
        sections = [Section(e["kind"], view[e["offset"] : e["offset"] + e["size"]]) for e in table]
        _check_sections(path, view, _HEADER.size + len(text), table, check_weights)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(f"{path}: the metadata is malformed ({error!r})", hint=_RECOMPILE) from error
    return metadata, sections


def _metadata_with_table(
    metadata: dict[str, Any], sections: Sequence[Section]
) -> tuple[bytes, list[dict[str, Any]]]:
    """The JSON text and its table of sections, whose offsets depend on the length of that text."""
    sums = [_checksum(section.kind, section.data) for section in sections]
    length = 0
    while True:
        table, offset = [], _HEADER.size + length
        for section, checksum in zip(sections, sums, strict=True):
            offset = _align(offset, _ALIGNMENT[section.kind])
            size = section.data.nbytes
            table.append({"kind": section.kind, "offset": offset, "size": size, "checksum": checksum})
            offset += size
        text = json.dumps({**metadata, "sections": table}, separators=(",", ":"), allow_nan=False).encode()
        if len(text) <= length:
            return text.ljust(length), table
        length = len(text)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _blake2b(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _checksum(kind: str, data: memoryview) -> str:
    return _blake2b(data).hex() if kind == "code" else f"{zlib.crc32(data):08x}"


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place at the end, or vanishes on any error."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        # A rename would replace a device such as /dev/null by a plain file.
        raise ArtifactError(f"cannot write {path}: it is not a regular file", hint="give the name of a file")
    temporary = target.with_name(f".{target.name[:100]}.{os.urandom(8).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, target)
    except OSError as error:
        raise ArtifactError(
            f"cannot write {path}: {error.strerror or error}",
            hint="give a path in an existing, writable folder with enough free space",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _reason(error: OSError | ValueError) -> str:
    """Why a file cannot be opened; a ValueError is about a path that no file can have."""
    return getattr(error, "strerror", None) or str(error)


def _map(path: Path) -> memoryview:
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ArtifactError(f"{path} is not a regular file", hint="give the path of an artefact")
            if status.st_size < _HEADER.size:
                raise _foreign_or_cut(path, file.read())
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"cannot read {path}: {_reason(error)}", hint="check the path and its permissions"
        ) from error


def _foreign_or_cut(path: Path, head: bytes) -> ArtifactError:
    if not head:
        return ArtifactError(f"{path} is empty", hint=_RECOMPILE)
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        return _foreign(path)
    return ArtifactError(f"{path} is cut off after {len(head)} bytes", hint=_RECOMPILE)


def _foreign(path: Path) -> ArtifactError:
    return ArtifactError(
        f"{path} is not a compiled model of tilewright", hint="make one with `tilewright compile`"
    )


def _checked_metadata(path: Path, view: memoryview) -> memoryview:
    magic, version, reserved, length, total, digest = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _foreign(path)
    if version != FORMAT:
        raise ArtifactError(
            f"{path} has format {version}; this version of tilewright reads format {FORMAT}",
            hint="update tilewright, or compile the model with this version",
        )
    if len(view) < total:
        raise ArtifactError(f"{path} is cut off: {len(view)} of {total} bytes are there", hint=_RECOMPILE)
    text = view[_HEADER.size : _HEADER.size + length]
    sound = len(view) == total and len(text) == length and reserved == 0
    if not sound or _blake2b(view[:_SIGNED_PART], text) != digest:
        raise ArtifactError(f"{path} is damaged: header and metadata have a wrong checksum", hint=_RECOMPILE)
    return text


def _check_sections(
    path: Path, view: memoryview, start: int, table: list[dict[str, Any]], check_weights: bool
) -> None:
    for index, entry in enumerate(table):
        offset, size, kind = entry["offset"], entry["size"], entry["kind"]
        where = f"section {index} ({kind}), bytes {offset} to {offset + size}"
        if not start <= offset <= offset + size <= len(view) or any(view[start:offset]):
            raise ArtifactError(f"{path} is damaged", where=where, hint=_RECOMPILE)
        wanted = check_weights or kind != "weights"
        if wanted and _checksum(kind, view[offset : offset + size]) != entry["checksum"]:
            raise ArtifactError(f"{path} is damaged: wrong checksum", where=where, hint=_RECOMPILE)
        start = offset + size
