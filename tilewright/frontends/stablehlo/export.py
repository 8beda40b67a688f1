"""Exports of JAX (`Exported.serialize()`): flatbuffers, of which few fields are read, each within bounds."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from tilewright.frontends.problems import shown
from tilewright.ir.diag import ModelError

MOST_INPUTS = 100_000

# The fields of the tables, counted from 0 (jax/_src/export/serialization.fbs).
_FUNCTION_NAME, _IN_AVALS, _MODULE, _KEPT = 1, 3, 13, 15
_SHAPE = 1

Shape = tuple[str, ...]
"""The dims of an input as JAX spells them: numbers, names, or expressions of names."""


@dataclass(frozen=True)
class Export:
    """A program and the shapes of the inputs that it takes; these are unknown (None) for one that stands alone."""

    module: bytes
    name: str = ""
    shapes: tuple[Shape, ...] | None = None


def export_of(exported: Any) -> Export:
    """Of a `jax.export.Exported`."""
    avals = exported.in_avals
    shapes = tuple(tuple(map(str, avals[k].shape)) for k in exported.module_kept_var_idx)
    return Export(bytes(exported.mlir_module_serialized), str(exported.fun_name), shapes)


def read_export(data: bytes, where: str) -> Export:
    """Of its bytes; ModelError where they are damaged."""
    try:
        return _read(data)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"the export of JAX is damaged: {error}", where=where, hint="export it again") from error


def _read(data: bytes) -> Export:
    table = _Table(data, _offset(data, 0))
    module = table.bytes(_MODULE)
    avals = [_Table(data, at) for at in table.tables(_IN_AVALS)]
    kept = struct.unpack(f"<{len(table.bytes(_KEPT, 2)) // 2}H", table.bytes(_KEPT, 2))
    shapes = tuple(tuple(avals[k].texts(_SHAPE)) for k in kept)
    return Export(module, shown(table.bytes(_FUNCTION_NAME).decode()), shapes)


def _offset(data: bytes, at: int) -> int:
    """The place to which the field at a place refers."""
    if at < 0:
        raise ValueError("a place before the beginning")
    (distance,) = struct.unpack_from("<I", data, at)
    return int(at + distance)


class _Table:
    """A table of a flatbuffer: its fields are found by a table of distances."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        (back,) = struct.unpack_from("<i", data, at)
        self._fields = at - back
        if not 0 <= self._fields <= len(data) - 4:
            raise ValueError("a table of fields outside of the data")

    def _vector(self, field: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        (size,) = struct.unpack_from("<H", self._data, self._fields)
        place = 4 + 2 * field
        if place + 2 > size:
            return 0, 0
        (distance,) = struct.unpack_from("<H", self._data, self._fields + place)
        if not distance:
            return 0, 0
        start = _offset(self._data, self._at + distance)
        (count,) = struct.unpack_from("<I", self._data, start)
        return start + 4, count

    def bytes(self, field: int, size: int = 1) -> bytes:
        """The bytes of a vector of elements of `size` bytes, or of a string."""
        start, count = self._vector(field)
        if count * size > len(self._data) - start:
            raise ValueError("a vector that is longer than the data")
        return self._data[start : start + count * size]

    def tables(self, field: int) -> list[int]:
        """The places to which a vector refers."""
        start, count = self._vector(field)
        if count > MOST_INPUTS or start + 4 * count > len(self._data):
            raise ValueError("a vector that is longer than the data")
        return [_offset(self._data, start + 4 * k) for k in range(count)]

    def texts(self, field: int) -> list[str]:
        found = []
        for at in self.tables(field):
            (count,) = struct.unpack_from("<I", self._data, at)
            if count > 1000:
                raise ValueError("a dim of more than 1000 characters")
            found.append(self._data[at + 4 : at + 4 + count].decode())
        return found
