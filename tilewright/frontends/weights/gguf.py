"""Files of weights in the format GGUF (llama.cpp), versions 2 and 3: metadata, a table of tensors, and their blocks.

A file can say anything. Each count, length, offset and dimension is compared with the file's size before something is
made of it, and what is made is small: values of metadata are decoded when they are asked for, and tensors are views of
the mapped file. Nothing is executed, and nothing is copied.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tilewright.frontends.files import open_regular
from tilewright.frontends.problems import shown
from tilewright.frontends.weights.kinds import KINDS, Kind
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir.diag import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 16
"""Keys and tensors, of each: the largest models have some hundreds of keys and some thousands of tensors."""
MAX_KEY_BYTES = (1 << 16) - 1
"""As the format allows."""
MAX_NAME_BYTES = 1024
"""Of a tensor's name; the format allows 64, and builds of llama.cpp more."""
MAX_RANK = 4
MAX_PARTS = 1 << 12
DEFAULT_ALIGNMENT = 32

_COUNT = struct.Struct("<Q").unpack_from
_NUMBER = struct.Struct("<I").unpack_from
_DAMAGED = "the file is damaged, cut off, or no GGUF file: fetch it again"
_STRING, _ARRAY = 8, 9
_SCALARS: dict[int, np.dtype[Any]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_BOOL = 7

# Numbers of kinds as ggml.h has them; those that the table of layouts lacks are named for errors.
_KINDS = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 30: "BF16", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
_SUPPORTED = tuple(name for name in _KINDS.values() if name in KINDS)


class Texts(Sequence[str]):
    """The strings of an array of metadata, each decoded when it is asked for."""

    def __init__(self, data: mmap.mmap, starts: np.ndarray, where: str) -> None:
        self._data = data
        self._starts = starts  # of their lengths, and where the last one ends
        self._where = where

    def __len__(self) -> int:
        return len(self._starts) - 1

    def raw(self, index: int) -> bytes:
        """The bytes of one string; IndexError."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        index %= len(self)
        return self._data[int(self._starts[index]) + 8 : int(self._starts[index + 1])]

    def __getitem__(self, index: Any) -> Any:
        """One string, or a list of them for a slice; ModelError where the bytes are no UTF-8."""
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        return _text(self.raw(index), f"string {index} of {self._where}")

    def __iter__(self) -> Iterator[str]:
        base = int(self._starts[0])
        data, start = self._data[base : int(self._starts[-1])], 0  # slices of a mapped file take twice as long
        for index, end in enumerate((self._starts[1:] - base).tolist()):
            try:
                yield data[start + 8 : end].decode()
            except UnicodeDecodeError:
                _text(data[start + 8 : end], f"string {index} of {self._where}")
            start = end

    def __eq__(self, other: object) -> bool:
        return list(self) == other if isinstance(other, list) else self is other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} strings of {self._where}>"


class _Entry(NamedTuple):
    """A value of metadata: its type, that of its elements where it is an array, and where it lies in the file; of an
    array of strings where the first one is in the list of all. `size` is of a text in bytes, or of an array."""

    type: int
    element: int
    size: int
    at: int


class Metadata(Mapping[str, Any]):
    """The metadata of a file by key: str, bool, int, float, arrays of numbers (views of the file, which may not be
    aligned), and `Texts`. Values are decoded when they are asked for."""

    def __init__(self, data: mmap.mmap, entries: dict[str, _Entry], strings: array[int], path: Path) -> None:
        self._data = data
        self._entries = entries
        self._strings = np.frombuffer(strings, np.int64) if strings else np.empty(0, np.int64)
        self._path = path

    def __getitem__(self, key: str) -> Any:
        entry = self._entries[key]
        where = f"key '{shown(key)}' of {self._path}"
        if entry.type == _STRING:
            return _text(self._data[entry.at : entry.at + entry.size], where)
        if entry.type != _ARRAY:
            return np.frombuffer(self._data, _SCALARS[entry.type], 1, entry.at)[0].item()
        if entry.element == _STRING:
            return Texts(self._data, self._strings[entry.at : entry.at + entry.size + 1], where)
        if not entry.size:
            return np.empty(0, _SCALARS[entry.element])
        return np.frombuffer(self._data, _SCALARS[entry.element], entry.size, entry.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True, eq=False)
class GgufFile:
    """What a file holds, or the parts of a split one together."""

    path: Path
    version: int
    metadata: Metadata
    tensors: dict[str, StoredTensor]


@dataclass(frozen=True)
class _Tensor:
    """A row of the table of tensors; `offset` counts from where the data begins."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    offset: int
    at: int  # of the row in the file

    @property
    def bytes(self) -> int:
        return self.kind.tensor_bytes(self.shape)


def read_gguf(path: Path) -> GgufFile:
    """A file of weights, of which nothing but the header is read; of one that is split in parts (`-00001-of-00003`) all
    parts, whichever is named. The mapped files must not be changed or cut off as long as their tensors live (to replace
    them by renaming, or to delete them, is safe).

    ModelError for what is missing, damaged, hostile, too old, of another byte order or of an unknown kind.
    """
    first = _read_one(path)
    count = _whole(first, "split.count", 0)
    return first if count <= 1 else _joined(first, count)


def _read_one(path: Path) -> GgufFile:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise ModelError("the file is empty", where=str(path), hint=_DAMAGED)
            data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: no path at all, or a file that is shorter now
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"the weights cannot be read: {reason}", where=str(path), hint="check the path") from error
    return _Header(data, path).read()


class _Header:
    """A walk through the header from the front; `at` is where it has come to."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at, self.size = data, path, 0, len(data)
        self.strings = array("q")

    def fail(self, what: str, at: int | None = None, hint: str = _DAMAGED) -> NoReturn:
        place = f"byte {self.at if at is None else at} of {self.size}, {self.path}"
        raise ModelError(what, where=place, hint=hint)

    def read(self) -> GgufFile:
        version = self._version()
        tensors, keys = self._count("number of tensors", 33), self._count("number of keys", 13)
        entries = self._keys(keys)
        metadata = Metadata(self.data, entries, self.strings, self.path)
        alignment = self._alignment(entries, metadata)
        rows = self._rows(tensors)
        start = -(-self.at // alignment) * alignment
        self._check_places(rows, start, alignment)
        memory = np.frombuffer(self.data, np.uint8)
        found = {row.name: self._stored(row, memory, start) for row in rows}
        return GgufFile(self.path, version, metadata, found)

    def _version(self) -> int:
        if self.data[:4] != MAGIC:
            self.fail(f"the file begins with {self.data[:4]!r}, a GGUF file with {MAGIC!r}")
        self.at = 4
        version = self.number("version")
        if version in VERSIONS:
            return version
        if int.from_bytes(version.to_bytes(4, "little"), "big") in range(1, 1 << 16):
            self.fail(
                "the file is big-endian (of s390x or another such machine); little-endian files are read",
                at=4,
                hint="convert it: gguf_convert_endian.py of llama.cpp, or fetch the little-endian file",
            )
        self.fail(
            f"it is version {version} of GGUF; versions {' and '.join(map(str, VERSIONS))} are read",
            at=4,
            hint="versions before 2 are of 2023: fetch a newer file; a newer version needs a newer tilewright"
            if version
            else _DAMAGED,
        )

    # Numbers and texts

    def _need(self, size: int, what: str) -> int:
        """Go past `size` bytes; where they begin."""
        at = self.at
        if size > self.size - at:
            self.fail(f"the {what} needs {size} bytes, and {self.size - at} are left")
        self.at = at + size
        return at

    def number(self, what: str) -> int:
        return int(_NUMBER(self.data, self._need(4, what))[0])

    def _long(self, what: str) -> int:
        return int(_COUNT(self.data, self._need(8, what))[0])

    def _count(self, what: str, least: int) -> int:
        """A number of things that take at least so many bytes each."""
        at, count = self.at, self._long(what)
        if count > MAX_ENTRIES or count * least > self.size - self.at:
            self.fail(f"the {what} is {count}, for which the file is too short or which is more than {MAX_ENTRIES}", at)
        return count

    def _name(self, what: str, limit: int) -> str:
        at, size = self.at, self._long(f"length of the {what}")
        if size > limit:
            self.fail(f"the {what} has {size} bytes; at most {limit} are possible", at)
        begin = self._need(size, what)
        try:
            return self.data[begin : self.at].decode()
        except UnicodeDecodeError as error:
            self.fail(f"the {what} is no text in UTF-8: {error.reason}", begin)

    # Metadata

    def _keys(self, count: int) -> dict[str, _Entry]:
        found: dict[str, _Entry] = {}
        for index in range(count):
            at = self.at
            key = self._name(f"key {index}", MAX_KEY_BYTES)
            if key in found:
                self.fail(f"the key '{shown(key)}' is there twice", at)
            found[key] = self._value(shown(key))
        return found

    def _value(self, key: str) -> _Entry:
        at, type = self.at, self.number(f"type of '{key}'")
        if type == _STRING:
            size = self._long(f"length of '{key}'")
            return _Entry(type, type, size, self._need(size, f"text of '{key}'"))
        if type == _ARRAY:
            return self._array(key)
        if type not in _SCALARS:
            self.fail(f"'{key}' has the unknown type {type}", at)
        begin = self._need(_SCALARS[type].itemsize, f"value of '{key}'")
        if type == _BOOL and self.data[begin] > 1:
            self.fail(f"'{key}' is neither true nor false but {self.data[begin]}", begin)
        return _Entry(type, type, 1, begin)

    def _array(self, key: str) -> _Entry:
        at = self.at
        element, count = self.number(f"type of the elements of '{key}'"), self._long(f"length of '{key}'")
        if element == _STRING:
            first = len(self.strings)
            self._strings(key, count)
            return _Entry(_ARRAY, element, count, first)
        if element == _ARRAY:
            self.fail(f"'{key}' is an array of arrays, which llama.cpp does not write or read, either", at)
        if element not in _SCALARS:
            self.fail(f"the elements of '{key}' have the unknown type {element}", at)
        begin = self._need(count * _SCALARS[element].itemsize, f"array '{key}' of {count}")
        if element == _BOOL and count and np.frombuffer(self.data, np.uint8, count, begin).max() > 1:
            self.fail(f"an element of '{key}' is neither true nor false", begin)
        return _Entry(_ARRAY, element, count, begin)

    def _strings(self, key: str, count: int) -> None:
        """List where the length of each string begins, and where the last one ends. A vocabulary has some hundred
        thousands, each of which says where the next one is."""
        at, limit, data, length_at, append = self.at, self.size - 8, self.data, _COUNT, self.strings.append
        if count * 8 > self.size - at:
            self.fail(f"'{key}' has {count} strings, for which the file is too short", at - 8)
        for _ in range(count):
            if at > limit:
                at = self.size + 1
                break
            append(at)
            at += 8 + length_at(data, at)[0]
        if at > self.size:
            self.fail(f"the {count} strings of '{key}' go beyond the end of the file", self.strings[-1])
        append(at)
        self.at = at

    def _alignment(self, entries: dict[str, _Entry], metadata: Metadata) -> int:
        key = "general.alignment"
        entry = entries.get(key)
        if entry is None:
            return DEFAULT_ALIGNMENT
        value = metadata[key] if entry.type == 4 else None
        if value is None or value <= 0 or value & (value - 1):
            self.fail(f"'{key}' is {value}, and should be a power of two (u32)", entry.at)
        return int(value)

    # Tensors

    def _rows(self, count: int) -> list[_Tensor]:
        found: dict[str, _Tensor] = {}
        strangers: dict[str, str] = {}
        for index in range(count):
            at = self.at
            name = self._name(f"name of tensor {index}", MAX_NAME_BYTES)
            if name in found or name in strangers:
                self.fail(f"the tensor '{shown(name)}' is there twice", at)
            shape = self._shape(name)
            at = self.at
            number = self.number(f"kind of '{shown(name)}'")
            offset = self._long(f"offset of '{shown(name)}'")
            kind = KINDS.get(_KINDS.get(number, ""))
            if kind is None:
                strangers[name] = _KINDS.get(number, f"unknown (number {number})")
                continue
            if shape[-1] % kind.elements if shape else kind.elements > 1:
                what = f"'{shown(name)}' has rows of {shape[-1] if shape else 1} elements"
                self.fail(f"{what}, which are no whole blocks of {kind}: {kind.elements} elements", at)
            found[name] = _Tensor(name, shape, kind, offset, at)
        if strangers:
            self._refuse_kinds(strangers)
        return list(found.values())

    def _shape(self, name: str) -> tuple[int, ...]:
        at, rank = self.at, self.number(f"rank of '{shown(name)}'")
        if rank > MAX_RANK:
            self.fail(f"'{shown(name)}' has {rank} dimensions; {MAX_RANK} are possible", at)
        begin = self._need(8 * rank, f"shape of '{shown(name)}'")
        dims = struct.unpack_from(f"<{rank}Q", self.data, begin)
        for dim in dims:
            if dim >= 1 << 47:
                self.fail(f"'{shown(name)}' has a dimension of {dim}", begin)
        return tuple(reversed(dims))

    def _refuse_kinds(self, strangers: dict[str, str]) -> NoReturn:
        some = [f"'{shown(name)}' is {kind}" for name, kind in list(strangers.items())[:3]]
        more = f" and {len(strangers) - 3} more" if len(strangers) > 3 else ""
        self.fail(
            f"weights of these kinds are not supported: {', '.join(some)}{more}",
            hint=f"supported: {', '.join(_SUPPORTED)}; llama-quantize makes such a file of the model's F16 or BF16 one",
        )

    def _check_places(self, rows: list[_Tensor], start: int, alignment: int) -> None:
        """Every tensor lies within the file, and none within another."""
        end, before = 0, ""
        for row in sorted(rows, key=lambda row: (row.offset, row.bytes)):
            name, size = shown(row.name), row.bytes
            if row.offset % alignment:
                self.fail(f"'{name}' begins at {row.offset}, which is no multiple of {alignment}", row.at)
            if row.offset + size > max(self.size - start, 0) and size:
                what = f"'{name}' ({row.kind}{list(row.shape)}) takes bytes {start + row.offset} to"
                self.fail(f"{what} {start + row.offset + size}, and the file ends at {self.size}", row.at)
            if row.offset < end and size:
                self.fail(f"'{name}' begins within the bytes of '{before}'", row.at)
            if size:
                end, before = row.offset + size, name

    def _stored(self, row: _Tensor, memory: np.ndarray, start: int) -> StoredTensor:
        begin = start + row.offset if row.bytes else 0
        return StoredTensor(row.name, row.shape, row.kind, memory[begin : begin + row.bytes])


def _text(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        what = f"the text is not in UTF-8: {error.reason} at byte {error.start} of {len(data)}"
        raise ModelError(what, where=where, hint=_DAMAGED) from error


# Files in parts

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.[^.]*)?", re.DOTALL)


def _whole(file: GgufFile, key: str, default: int) -> int:
    """A number of the metadata that counts something."""
    value = file.metadata.get(key, default)
    if type(value) is not int or value < 0:
        raise ModelError(f"'{key}' is {value!r:.40}, which counts nothing", where=str(file.path), hint=_DAMAGED)
    return value


def _joined(given: GgufFile, count: int) -> GgufFile:
    """All parts of a split file as one; the metadata is that of the first."""
    path = given.path
    matched = _PART.fullmatch(path.name)
    if matched is None or int(matched[3]) != count or count > MAX_PARTS:
        raise ModelError(
            f"it is part {_whole(given, 'split.no', 0) + 1} of {count}, and the others cannot be found by its name",
            where=str(path),
            hint=f"give all parts the names that they had, which end with -00001-of-{count:05}.gguf and so on",
        )
    paths = [path.with_name(f"{matched[1]}-{k:05}-of-{count:05}{matched[4] or ''}") for k in range(1, count + 1)]
    missing = [p.name for p in paths if not p.is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ModelError(
            f"the file is split in {count} parts, of which these are missing: {', '.join(missing[:3])}{more}",
            where=str(path),
            hint=f"put all parts into {path.parent}",
        )
    parts = [given if p == path else _read_one(p) for p in paths]
    tensors: dict[str, StoredTensor] = {}
    for number, part in enumerate(parts):
        if _whole(part, "split.no", 0) != number or _whole(part, "split.count", 0) != count:
            what = f"by its name it is part {number + 1} of {count}, by its metadata another one"
            raise ModelError(what, where=str(part.path), hint="fetch the parts again")
        twice = tensors.keys() & part.tensors.keys()
        if twice:
            what = f"the tensor '{shown(min(twice))}' is in two parts"
            raise ModelError(what, where=str(part.path), hint="fetch the parts again")
        tensors |= part.tensors
    expected = _whole(parts[0], "split.tensors.count", len(tensors))
    if len(tensors) != expected:
        what = f"the parts hold {len(tensors)} tensors, the first one says {expected}"
        raise ModelError(what, where=str(path), hint="fetch the parts again")
    return GgufFile(parts[0].path, parts[0].version, parts[0].metadata, tensors)
