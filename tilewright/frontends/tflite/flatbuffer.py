"""Reading FlatBuffers: tables, vectors and texts of which nothing is trusted.

A table begins with the distance back to its vtable, which holds the place of each field, by number, or 0 where a field
is not there. Whatever a field refers to lies behind it, so that no table can hold itself. Parts may be shared, though,
and a small file could unfold to a large one: what is handed out is counted against the length of the file.
"""

from __future__ import annotations

import struct
from typing import NoReturn

import numpy as np

from tilewright.ir.diag import ModelError

_FORMATS = {name: struct.Struct(f"<{name}") for name in "?bBhHiIqQf"}
"""How fields of one number are stored, by the letters of `struct`."""

SHARING = 16
"""How often the parts of a file may be read on average. Writers share vtables, texts and vectors of shapes."""


class Reader:
    """The bytes of a file."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where = data, where
        self._left = SHARING * len(data) + 1

    def root(self) -> Table:
        return Table(self, self.offset(0))

    def damaged(self, what: str) -> NoReturn:
        raise ModelError(
            f"not a TFLite model: {what}",
            where=self.where,
            hint="the file is truncated, damaged, or of another format",
        )

    def number(self, at: int, kind: str) -> int | float:
        form = _FORMATS[kind]
        if not 0 <= at <= len(self.data) - form.size:
            self.damaged(f"it refers to byte {at} of {len(self.data)}")
        (value,) = form.unpack_from(self.data, at)
        return value

    def offset(self, at: int) -> int:
        """The place that the offset stored at `at` refers to."""
        return at + int(self.number(at, "I"))

    def count(self, elements: int) -> None:
        """Note that so many elements are handed out."""
        self._left -= elements
        if self._left < 0:
            self.damaged("its parts refer to one another too often")

    def part(self, at: int, size: int) -> bytes | memoryview:
        if size < 0 or not 0 <= at <= len(self.data) - size:
            self.damaged(f"it refers to {size} bytes at {at} of {len(self.data)}")
        return memoryview(self.data)[at : at + size]


class Table:
    """One table; fields are asked for by number."""

    def __init__(self, reader: Reader, at: int) -> None:
        self.reader, self._at = reader, at
        self._vtable = at - int(reader.number(at, "i"))
        self._size = int(reader.number(self._vtable, "H"))
        reader.count(4)

    def _place(self, field: int) -> int:
        """Where a field lies; 0 where it is not there."""
        entry = 4 + 2 * field
        if entry + 2 > self._size:
            return 0
        offset = int(self.reader.number(self._vtable + entry, "H"))
        return self._at + offset if offset else 0

    def number(self, field: int, kind: str, default: int | float = 0) -> int | float:
        """A field of one number, stored as the letter of `struct` says."""
        at = self._place(field)
        return self.reader.number(at, kind) if at else default

    def integer(self, field: int, kind: str = "i", default: int = 0) -> int:
        return int(self.number(field, kind, default))

    def table(self, field: int) -> Table | None:
        at = self._place(field)
        return Table(self.reader, self.reader.offset(at)) if at else None

    def _vector(self, field: int, width: int) -> tuple[int, int]:
        """The place and the number of elements of a vector whose elements take `width` bytes."""
        at = self._place(field)
        if not at:
            return 0, 0
        start = self.reader.offset(at)
        count = int(self.reader.number(start, "I"))
        self.reader.part(start + 4, count * width)
        return start + 4, count

    def tables(self, field: int) -> list[Table]:
        start, count = self._vector(field, 4)
        self.reader.count(count)
        return [Table(self.reader, self.reader.offset(start + 4 * k)) for k in range(count)]

    def has(self, field: int) -> bool:
        return self._place(field) != 0

    def array(self, field: int, dtype: str) -> np.ndarray:
        """A vector of numbers, which is not copied."""
        kind = np.dtype(dtype).newbyteorder("<")
        start, count = self._vector(field, kind.itemsize)
        return np.frombuffer(self.reader.part(start, count * kind.itemsize), kind)

    def ints(self, field: int, dtype: str = "i4") -> tuple[int, ...]:
        found = self.array(field, dtype)
        self.reader.count(found.size)
        return tuple(found.tolist())

    def text(self, field: int) -> str:
        start, count = self._vector(field, 1)
        self.reader.count(count)
        try:
            return bytes(self.reader.part(start, count)).decode()
        except UnicodeDecodeError:
            self.reader.damaged("a text is not UTF-8")
