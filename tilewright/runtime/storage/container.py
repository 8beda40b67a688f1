"""The file that holds a compiled model: a header, JSON metadata and aligned binary sections.

    0   magic, 8 bytes          16  u64 length of the metadata      32  blake2b-256 of 0..32 and metadata
    8   u32 format version      24  u64 length of the whole file    64  metadata: UTF-8 JSON
    12  u32 flags: 1 for a signed file

Integers are little-endian. The metadata's `sections` list each section's offset, size and checksum. The "image" of
native code and the "weights" start at multiples of 4096, so that they can be mapped and used in place; "code" of other
machines starts at multiples of 64. What is run carries a blake2b-256, weights carry a crc32, which is several times
faster to check; in a signed file they have a `digest` as well, a blake2b-256, and the last 128 bytes are the signature
(`signing.py`). Weights of which each of several models reads some consist of `parts`, with checksums (and digests) of
their own in place of those of the section. Bytes between sections are zero. Magic and version keep their place in every
later format.

Sections of a model of a fleet are in a store (`store.py`), which all models of the fleet share: then the table has the
`digest` of each, by which it is found there, and `depth`: how many folders below that of the fleet the file lies.

Files are read, not mapped, unless the caller asks for it: a page of a mapped file that somebody cuts off or writes
over ends the process or changes the weights. Even of a mapped file nothing is looked at through the map here.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import mmap
import os
import stat
import struct
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from tilewright.runtime.arena import aligned_bytes, aligned_zeros
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage.files import Selection, open_at_once, replacing, write_slices
from tilewright.runtime.storage.signing import TRAILER_BYTES, Signature, check_signature
from tilewright.runtime.storage.store import Store, digest_of

Bytes = bytes | bytearray | memoryview
Signer = Callable[[bytes], Signature]

FORMAT = 13
"""The format version that is written, and the newest that can be read."""

# The first byte is no text, the line ends break when a transfer "corrects" them.
MAGIC = b"\x89TWM\r\n\x1a\n"
_HEADER = struct.Struct("<8sIIQQ32s")
_SIGNED_PART = 32
_SIGNED = 1
"""The flag of a file with a signature at its end."""
_ALIGNMENT = {"code": 64, "image": 4096, "weights": 4096}
_RECOMPILE = "compile the model again, or copy the file again from where it came"
_PIECE = 1 << 18
"""Bytes that are read and summed at a time: few enough to be in a core's cache still when they are summed."""


@dataclass(frozen=True)
class Section:
    """Bytes of the file: `kind` is "image", "code" or "weights". Those that follow `data` may be elsewhere. What was
    read from a store has its `digest` there. What is `unchecked` was not compared with this checksum when it was read
    from the place `where`. Weights that are `cut` at some bytes consist of so many parts."""

    kind: str
    data: memoryview
    more: tuple[memoryview, ...] = ()
    digest: str = ""
    unchecked: str = ""
    where: str = ""
    cut: tuple[int, ...] = ()

    @property
    def pieces(self) -> tuple[memoryview, ...]:
        return (self.data, *self.more)

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    def check(self, name: str) -> None:
        """ArtifactError where it is not what was written to the file that errors call `name`; nothing is done where
        that is known."""
        if self.unchecked and _checksum(self.kind, self.pieces) != self.unchecked:
            raise ArtifactError(f"{name} is damaged: wrong checksum", where=self.where, hint=_RECOMPILE)


class Contents(NamedTuple):
    """What was read of a file; the digest of its header and metadata; and the file, where it is kept open."""

    metadata: dict[str, Any]
    sections: list[Section]
    digest: bytes
    kept: _Source | None


def write_container(
    target: Path | BinaryIO, metadata: dict[str, Any], sections: Sequence[Section], signer: Signer | None = None,
    shared: tuple[Store, int] | None = None,
) -> None:
    """Write the file at once or not at all, or to one that is open; ArtifactError when it cannot be written. With a
    `signer` of digests it is signed. Sections that are `shared` go to a store, so many folders above.

    `metadata` must be JSON data without the key "sections". There is no fsync: a file damaged by a power cut
    is found by its checksums.
    """
    if shared is None:
        parts = _parts(metadata, _table(sections, is_signed=signer is not None), sections, signer)
    else:
        parts = _parts(metadata, [_stored(section, *shared) for section in sections], (), signer)
    opened = replacing(target) if isinstance(target, Path) else contextlib.nullcontext(target)
    with opened as file:
        for part in parts:
            write_slices(file, part)


def is_container(begins: bytes) -> bool:
    """Whether the first bytes of a file are those of an artefact, of whatever version."""
    return begins.startswith(MAGIC)


def is_container_file(path: Path) -> bool | None:
    """Whether a file is an artefact, of whatever version; None for an empty one, and for what is no file that can be
    read."""
    try:
        if path.is_file():
            with open(path, "rb", opener=open_at_once) as file:
                begins = file.read(len(MAGIC))
            return is_container(begins) if begins else None
    except (OSError, ValueError):
        pass
    return None


def container_bytes(metadata: dict[str, Any], sections: Sequence[Section]) -> bytes:
    """What `write_container` writes."""
    return b"".join(_parts(metadata, _table(sections), sections))


def read_container(
    source: Path | io.FileIO | Bytes | _Source, *, check_weights: bool = True, mapped: bool = False,
    trusted: frozenset[bytes] | None = None, select: Callable[[dict[str, Any]], Selection] = lambda _: Selection(),
) -> Contents:
    """Metadata and sections of a file (by its path, or open) or its bytes; ArtifactError when that is no sound artefact
    of a known format.

    The sections are read-only, in aligned memory of their own, unless `mapped` is true: then those of weights
    are views of the mapped file, which stays mapped as long as one of them lives, and an image is mapped by itself, in
    pages that this process may change for itself. Metadata and code are always checked, weights unless `check_weights`
    is false. Of the public keys that are `trusted`, if any are given, one must have signed the file: then weights are
    always checked, and code is copied, as whoever may write to the file could change it afterwards. By the metadata
    `select` says what is needed: other sections are `unchecked`, and the caller has to check them before they are used
    (where weights are mapped, they are views of the same map). What is mapped, or in a store, is never left out.
    """
    with opened_artifact(source) as opened:
        head = read_head(opened)
        text, start = head.text, head.end
        if trusted is not None:
            check_signature(opened.name, head.digest, head.signature, trusted)
        whole = opened.map() if mapped else None
        try:
            metadata = json.loads(text)
            table = metadata.pop("sections")
            selection = select(metadata)
            if mapped or any("depth" in entry for entry in table):
                selection = replace(selection, is_final=False, keeps=False)
            kept = opened.keep() if selection.keeps else None
            selection = replace(selection, is_final=selection.is_final or kept is not None)
            how = _Reading(whole, check_weights, trusted is not None, selection)
            return Contents(metadata, list(_sections(opened, start, table, how)), head.digest, kept)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ArtifactError(
                f"{opened.name}: the metadata is malformed ({error!r})", hint=_RECOMPILE
            ) from error


@dataclass(frozen=True)
class _Source:
    """The bytes of an artefact: `fill(offset, block)` copies those from `offset` on into the block and says how
    many there were; `map` gives a view that follows the file, `map_private` one of some bytes in pages that this
    process may write to, or None where there can be none, and `keep` the same file, open until nobody has that, or
    None likewise."""

    name: str
    size: int
    fill: Callable[[int, memoryview], int]
    map: Callable[[], memoryview]
    path: Path | None = None
    map_private: Callable[[int, int], memoryview | None] = lambda offset, size: None
    keep: Callable[[], _Source | None] = lambda: None

    def read(self, offset: int, size: int) -> memoryview:
        """A copy of some bytes."""
        block = _memory(self, size)
        for _ in self.pieces(offset, size, block):
            pass
        return block.toreadonly()

    def pieces(self, offset: int, size: int, block: memoryview | None = None) -> Iterator[memoryview]:
        """Copy some bytes into a block, and give them in pieces as they come.

        Without a block, each piece is valid until the next. ArtifactError when there are not so many bytes any more.
        """
        small = memoryview(bytearray(min(size, _PIECE) if block is None else 0))
        done = 0
        while done < size:
            length = min(size - done, _PIECE)
            piece = small[:length] if block is None else block[done : done + length]
            try:
                found = self.fill(offset + done, piece)
            except OSError as error:
                raise _unreadable(self.name, error) from error
            if not found:
                raise ArtifactError(
                    f"{self.name} was cut off while it was read: {offset + done} of {self.size} bytes were there",
                    hint="replace files by renaming, as `mv` and `Model.save` do, and load the model again",
                )
            yield piece[:found]
            done += found


_Entry = dict[str, Any]
"""Of the table: what is known of a section."""


def _parts(
    metadata: dict[str, Any], table: list[_Entry], sections: Sequence[Section], signer: Signer | None = None
) -> Iterator[Bytes]:
    """The bytes of a file, one part after the other; those of no sections where these are in a store."""
    text, table = _metadata_with_table(metadata, table)
    end = _HEADER.size + len(text)
    total = table[-1]["offset"] + table[-1]["size"] if sections else end
    if signer is not None:
        total += TRAILER_BYTES
    signed = _HEADER.pack(MAGIC, FORMAT, int(signer is not None), len(text), total, b"")[:_SIGNED_PART]
    digest = _blake2b([signed, text])
    yield signed + digest + text
    for entry, section in zip(table, sections, strict=False):
        yield bytes(entry["offset"] - end)
        yield from section.pieces
        end = entry["offset"] + entry["size"]
    if signer is not None:
        yield signer(digest).trailer()


def _table(sections: Sequence[Section], *, is_signed: bool = False) -> list[_Entry]:
    """What is known of the sections of a file, but where they are."""
    return [_entry(section, is_signed=is_signed) for section in sections]


def _entry(section: Section, *, is_signed: bool) -> _Entry:
    entry: _Entry = {"kind": section.kind, "offset": 0, "size": section.nbytes, "checksum": ""}
    if section.cut:
        ends = (*section.cut, section.nbytes)
        parts = zip((0, *section.cut), ends, strict=True)
        entry["parts"] = [_part(section, first, end, is_signed=is_signed) for first, end in parts]
    else:
        entry |= _sums(section.kind, section.pieces, is_signed=is_signed)
    return entry


def _part(section: Section, first: int, end: int, *, is_signed: bool) -> _Entry:
    """What is known of some bytes of a section."""
    found, at = [], 0
    for piece in section.pieces:
        found.append(piece[max(first - at, 0) : max(end - at, 0)])
        at += piece.nbytes
    return {"size": end - first, **_sums(section.kind, found, is_signed=is_signed)}


def _sums(kind: str, pieces: Sequence[Bytes], *, is_signed: bool) -> _Entry:
    digest = {"digest": digest_of(pieces)} if is_signed and kind == "weights" else {}
    return {"checksum": _checksum(kind, pieces), **digest}


def _stored(section: Section, store: Store, depth: int) -> _Entry:
    """What is known of a section in a store, which it is put into."""
    digest, size = digest_of(section.pieces), section.nbytes
    store.put(digest, section.pieces, size)
    checksum = digest if section.kind != "weights" else _checksum(section.kind, section.pieces)
    found = {"kind": section.kind, "offset": 0, "size": size, "checksum": checksum}
    return {**found, "digest": digest, "depth": depth}


def _metadata_with_table(metadata: dict[str, Any], entries: list[_Entry]) -> tuple[bytes, list[_Entry]]:
    """The JSON text and its table of sections, whose offsets depend on the length of that text."""
    length = 0
    while True:
        table, offset = [], _HEADER.size + length
        for entry in entries:
            if "depth" not in entry:
                offset = _align(offset, _ALIGNMENT[entry["kind"]])
                entry = {**entry, "offset": offset}
                offset += entry["size"]
            table.append(entry)
        text = json.dumps({**metadata, "sections": table}, separators=(",", ":"), allow_nan=False).encode()
        if len(text) <= length:
            return text.ljust(length), table
        length = len(text)


def _align(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _blake2b(parts: Iterable[Bytes]) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _checksum(kind: str, pieces: Iterable[Bytes]) -> str:
    if kind != "weights":
        return digest_of(pieces)
    found = 0
    for piece in pieces:
        found = zlib.crc32(piece, found)
    return f"{found:08x}"


def _reason(error: OSError | ValueError) -> str:
    """Why a file cannot be opened; a ValueError is about a path that no file can have."""
    return getattr(error, "strerror", None) or str(error)


def _unreadable(name: str, error: OSError | ValueError) -> ArtifactError:
    return ArtifactError(f"cannot read {name}: {_reason(error)}", hint="check the path and its permissions")


def named_source(source: object, *, mapped: bool) -> tuple[str, Path | io.FileIO | Bytes | _Source]:
    """What is to be read, and what errors call it; ArtifactError for what cannot be, OptionError for what cannot be
    `mapped`."""
    if isinstance(source, bytes | bytearray | memoryview):
        if mapped:
            raise OptionError("mmap=True needs a file, and bytes are given", hint="give the path of the file")
        return "the given buffer", source
    if isinstance(source, io.FileIO):
        return "the open file", source
    if isinstance(source, _Source):
        return source.name, source
    if not isinstance(source, str | os.PathLike):
        raise ArtifactError(f"cannot load {source!r:.80}", hint="give the path of a compiled model, or its bytes")
    return str(source), Path(source)


def opened_artifact(source: Path | io.FileIO | Bytes | _Source) -> contextlib.AbstractContextManager[_Source]:
    """The bytes of a file, as long as it is open; ArtifactError where it cannot be."""
    if isinstance(source, Path):
        return _opened_file(source)
    if isinstance(source, io.FileIO):
        return contextlib.nullcontext(_of_file(source))
    return contextlib.nullcontext(source if isinstance(source, _Source) else _of_bytes(source))


def _of_bytes(data: Bytes) -> _Source:
    view = memoryview(data)
    view = view.cast("B") if view.c_contiguous and view.nbytes else memoryview(view.tobytes())

    def fill(offset: int, block: memoryview) -> int:
        found = view[offset : offset + len(block)]
        block[: len(found)] = found
        return len(found)

    return _Source("the given buffer", len(view), fill, lambda: view)


@contextlib.contextmanager
def _opened_file(path: Path) -> Iterator[_Source]:
    try:
        file = open(path, "rb", buffering=0, opener=open_at_once)  # noqa: SIM115 (closed below)
    except (OSError, ValueError) as error:
        raise _unreadable(str(path), error) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ArtifactError(f"{path} is not a regular file", hint="give the path of an artefact")
        yield _of_file(file, str(path), path)


def _of_file(file: io.FileIO, name: str = "the open file", path: Path | None = None) -> _Source:
    """A regular file, as long as it stays open."""

    def fill(offset: int, block: memoryview) -> int:
        if hasattr(os, "preadv"):  # other threads and processes may read the same open file
            return os.preadv(file.fileno(), [block], offset)
        file.seek(offset)
        return file.readinto(block) or 0

    def mapped() -> memoryview:
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, ValueError) as error:  # ValueError: an empty file
            raise _unreadable(name, error) from error

    def mapped_private(offset: int, size: int) -> memoryview | None:
        if size == 0 or offset % mmap.ALLOCATIONGRANULARITY:
            return None
        try:
            flags = mmap.MAP_PRIVATE
            return memoryview(mmap.mmap(file.fileno(), size, flags, mmap.PROT_READ, offset=offset))
        except ValueError:  # the file is shorter by now, which reading it tells
            return None
        except OSError as error:
            raise _unreadable(name, error) from error

    def kept() -> _Source | None:
        try:
            again = io.FileIO(os.dup(file.fileno()))
        except OSError:  # too many are open
            return None
        found = _of_file(again, name, path)
        weakref.finalize(found, again.close)
        return found

    return _Source(name, os.fstat(file.fileno()).st_size, fill, mapped, path, mapped_private, kept)


def _foreign_or_cut(name: str, head: memoryview) -> ArtifactError:
    if not head:
        return ArtifactError(f"{name} is empty", hint=_RECOMPILE)
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        return _foreign(name)
    return ArtifactError(f"{name} is cut off after {len(head)} bytes", hint=_RECOMPILE)


def _foreign(name: str) -> ArtifactError:
    return ArtifactError(
        f"{name} is not a compiled model of tilewright", hint="make one with `tilewright compile`"
    )


@dataclass(frozen=True)
class Head:
    """What stands before the sections: the JSON text, where it ends, the digest of header and text, and who signed
    it."""

    text: bytes
    end: int
    digest: bytes
    signature: Signature | None


def read_head(source: _Source) -> Head:
    """The head of a file whose length and digest are right; ArtifactError."""
    name, size = source.name, source.size
    head = source.read(0, min(size, _HEADER.size))
    if size < _HEADER.size:
        raise _foreign_or_cut(name, head)
    magic, version, flags, length, total, digest = _HEADER.unpack(head)
    if magic != MAGIC:
        raise _foreign(name)
    if version != FORMAT:
        raise ArtifactError(
            f"{name} has format {version}; this version of tilewright reads format {FORMAT}",
            hint="update tilewright, or compile the model with this version",
        )
    if size < total:
        raise ArtifactError(f"{name} is cut off: {size} of {total} bytes are there", hint=_RECOMPILE)
    end = _HEADER.size + length
    trailer = TRAILER_BYTES * flags
    sound = flags in (0, _SIGNED) and size == total and end + trailer <= size
    text = bytes(source.read(_HEADER.size, length)) if sound else b""
    if not sound or _blake2b([head[:_SIGNED_PART], text]) != digest:
        raise ArtifactError(f"{name} is damaged: header and metadata have a wrong checksum", hint=_RECOMPILE)
    signature = Signature.of_trailer(name, bytes(source.read(size - trailer, trailer))) if flags else None
    return Head(text, end, digest, signature)


@dataclass(frozen=True)
class _Reading:
    """How sections are read: from a `mapped` file, weights with a look at their checksum, with the digests that
    somebody `is_trusted` for has signed, and which of them and of the weights."""

    mapped: memoryview | None
    check_weights: bool
    is_trusted: bool
    selection: Selection


def _sections(source: _Source, start: int, table: list[_Entry], how: _Reading) -> Iterator[Section]:
    for index, entry in enumerate(table):
        offset, size, kind = entry["offset"], entry["size"], entry["kind"]
        where = f"section {index} ({kind}), bytes {offset} to {offset + size}"
        is_later = index in how.selection.left_out
        unchecked = str(entry["checksum"]) if is_later else ""
        if "depth" in entry:
            with _in_store(source, entry, where) as found:
                own = replace(how, mapped=found.map() if how.mapped is not None and size else None)
                data = _section(found, entry, where, own, is_later)
            yield Section(kind, data, digest=entry["digest"], unchecked=unchecked, where=where)
            continue
        if not start <= offset <= offset + size <= source.size or any(source.read(start, offset - start)):
            raise ArtifactError(f"{source.name} is damaged", where=where, hint=_RECOMPILE)
        start = offset + size
        if is_later and how.selection.is_final:
            yield Section(kind, memoryview(b""), unchecked=unchecked, where=where)
            continue
        data = _section(source, entry, where, how, is_later)
        yield Section(kind, data, unchecked=unchecked, where=where)


@contextlib.contextmanager
def _in_store(source: _Source, entry: _Entry, where: str) -> Iterator[_Source]:
    """The file of a section in the store of a fleet."""
    digest, depth = entry["digest"], entry["depth"]
    store = Store.beside(source.path, depth) if source.path is not None and type(depth) is int else None
    if store is None:
        raise ArtifactError(
            f"{source.name} has its code and weights in the store of a fleet, which is not known here",
            where=where,
            hint="give the path of the file, where it lies in its fleet",
        )
    path = store.path(digest)
    if not path.exists():
        raise ArtifactError(
            f"{source.name} has its code and weights in {path.parent}, and there is no {digest}",
            where=where,
            hint="copy a fleet as a whole, and compile it again where something is lost",
        )
    with _opened_file(path) as found:
        if found.size != entry["size"]:
            raise ArtifactError(f"{path} has {found.size} bytes in place of {entry['size']}", hint=_RECOMPILE)
        yield found


def _section(source: _Source, entry: _Entry, where: str, how: _Reading, is_later: bool) -> memoryview:
    """The bytes of a section, looked at as far as is asked for."""
    offset, size, kind = entry["offset"], entry["size"], entry["kind"]
    mapped = None if how.is_trusted and kind != "weights" else how.mapped
    view = _view(source, mapped, "weights" if is_later else kind, offset, size)
    some = "parts" in entry and how.selection.is_final and view is None
    block = _memory(source, size, with_zeros=some) if view is None else None
    checked = not is_later and (how.check_weights or how.is_trusted or kind != "weights")
    at = 0
    for part in _parts_of(entry):
        first, at = at, at + part["size"]
        if some and not any(begin < at and first < end for begin, end in how.selection.ranges):
            continue
        own = None if block is None else block[first:at]
        if checked:
            _check(source, offset + first, part, own, kind, where, how)
        elif own is not None:
            for _ in source.pieces(offset + first, part["size"], own):
                pass
    data = view if block is None else block
    assert data is not None
    if len(data) < size:
        raise ArtifactError(f"{source.name} was cut off while it was read", where=where, hint=_RECOMPILE)
    return data.toreadonly()


def _check(
    source: _Source, offset: int, part: _Entry, block: memoryview | None, kind: str, where: str, how: _Reading
) -> None:
    """Copy a part of a section to a block, or only read it; ArtifactError where it is not what was written."""
    wanted = "digest" if how.is_trusted and kind == "weights" else "checksum"
    found = _checksum(kind if wanted == "checksum" else "", source.pieces(offset, part["size"], block))
    if found != part[wanted]:
        raise ArtifactError(f"{source.name} is damaged: wrong {wanted}", where=where, hint=_RECOMPILE)


def _parts_of(entry: _Entry) -> list[_Entry]:
    """The parts that have checksums, one after the other; ValueError where they are not the whole section."""
    parts: list[_Entry] = entry.get("parts", [entry])
    sizes = [part["size"] for part in parts]
    if any(type(size) is not int or size < 0 for size in sizes) or sum(sizes) != entry["size"]:
        raise ValueError("the parts are not the whole section")
    return parts


def _view(source: _Source, mapped: memoryview | None, kind: str, offset: int, size: int) -> memoryview | None:
    """A section where it lies in the file, as it is used; None for one that is to be copied."""
    if mapped is None:
        return None
    if kind == "weights":
        return mapped[offset : offset + size]
    return source.map_private(offset, size) if kind == "image" else None


def _memory(source: _Source, size: int, *, with_zeros: bool = False) -> memoryview:
    try:
        return (aligned_zeros if with_zeros else aligned_bytes)(size).data
    except (MemoryError, ValueError) as error:
        raise ArtifactError(
            f"no memory for {size} bytes of {source.name}",
            hint="load it with mmap=True, which shares the memory of the file, or on a machine with more memory",
        ) from error
