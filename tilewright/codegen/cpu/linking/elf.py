"""Reads relocatable ELF files of 64 bits: sections, symbols and relocations, of either byte order.

The names are those of the System V ABI, chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.diag import InternalError

UNDEFINED, ABSOLUTE = 0, 0xFFF1
_RESERVED = 0xFF00
"""Numbers of sections from here on mean something else."""
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001
_DROPPED = (".eh_frame",)
"""What only debuggers and exceptions need, of which compiled models have none."""
_STARTING = (".ctors", ".dtors")
"""Tables of functions that somebody would have to call."""
_WRITE, _ALLOC, _EXECINSTR, _TLS = 1, 2, 4, 0x400
_RELOCATABLE = 1
_LOCAL, _WEAK = 0, 2
_NOTYPE, _OBJECT, _FUNC, _SECTION, _FILE = range(5)


@dataclass(frozen=True)
class ElfSection:
    """Bytes that a program needs when it runs. Those that are `written` may hold addresses, too."""

    name: str
    data: np.ndarray
    align: int
    executable: bool
    written: bool
    constant: bool
    """Whether only the loader writes to it."""


@dataclass(frozen=True)
class Symbols:
    """The symbols of one file, as arrays of one length: the section in which each lies (UNDEFINED, ABSOLUTE), its
    distance from the start of that, and whether others see it. Local ones have no names here."""

    section: np.ndarray
    value: np.ndarray
    is_local: np.ndarray
    is_weak: np.ndarray
    names: tuple[str, ...]

    @property
    def defined(self) -> frozenset[str]:
        """The names that others may use."""
        return self._named(self.section != UNDEFINED)

    @property
    def needed(self) -> frozenset[str]:
        """The names that others must define."""
        return self._named((self.section == UNDEFINED) & ~self.is_weak)

    def _named(self, which: np.ndarray) -> frozenset[str]:
        return frozenset(self.names[k] for k in np.flatnonzero(which & ~self.is_local).tolist())


@dataclass(frozen=True)
class Relocations:
    """Places of one section that take addresses: arrays of one length."""

    section: int
    offset: np.ndarray
    kind: np.ndarray
    symbol: np.ndarray
    addend: np.ndarray

    def without(self, kinds: Sequence[int]) -> Relocations:
        """All but those of some kinds."""
        kept = ~np.isin(self.kind, kinds)
        columns = (column[kept] for column in (self.offset, self.kind, self.symbol, self.addend))
        return Relocations(self.section, *columns)


@dataclass(frozen=True)
class ElfObject:
    """A relocatable file: `sections` by their numbers, those alone that a program needs."""

    machine: int
    order: str
    """The byte order: "<" or ">"."""
    sections: dict[int, ElfSection]
    symbols: Symbols
    relocations: list[Relocations] = field(default_factory=list)


def read_elf(blob: bytes, what: str) -> ElfObject:
    """The object in a file; InternalError, which names `what` it is, for what is none, or what no program of ours
    has."""
    if blob[:5] != b"\x7fELF\x02" or blob[5:6] not in (b"\x01", b"\x02"):
        raise cannot_link(what, f"it is no ELF file of 64 bits (it begins with {blob[:6]!r})")
    try:
        return _Reader(blob, what).object()
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise cannot_link(what, f"its headers are malformed: {error}") from error


def cannot_link(what: str, why: str) -> InternalError:
    """The error for an object that cannot be linked."""
    return InternalError(f"{what} cannot be linked: {why}", hint="this is a defect; please report it with the model")


class _Reader:
    def __init__(self, blob: bytes, what: str) -> None:
        self.blob, self.what = blob, what
        self.order = "<" if blob[5] == 1 else ">"
        kind, self.machine = struct.unpack_from(f"{self.order}HH", blob, 16)
        if kind != _RELOCATABLE:
            raise ValueError(f"the file is of type {kind}, not a relocatable one")
        table, size, count, names = struct.unpack_from(f"{self.order}40xQ10xHHH", blob)
        if count == 0 or size != 64:
            raise ValueError(f"there are {count} sections with headers of {size} bytes")
        at = range(table, table + 64 * count, 64)
        self.headers = [struct.unpack_from(f"{self.order}IIQQQQIIQQ", blob, k) for k in at]
        self.section_names = self._bytes(names)

    def object(self) -> ElfObject:
        sections = {k: s for k in range(len(self.headers)) if (s := self._section(k)) is not None}
        (table,) = [k for k, header in enumerate(self.headers) if header[1] == _SYMTAB]
        found = ElfObject(self.machine, self.order, sections, self._symbols(table))
        for header in self.headers:
            if header[1] == _RELA and header[7] in sections:
                found.relocations.append(self._relocations(header))
        return found

    def _bytes(self, number: int) -> bytes:
        _, _, _, _, offset, size, *_ = self.headers[number]
        if offset + size > len(self.blob):
            raise ValueError(f"section {number} ends behind the file")
        return self.blob[offset : offset + size]

    def _section(self, number: int) -> ElfSection | None:
        name_at, kind, flags, _, _, size, _, _, align, _ = self.headers[number]
        name = _text(self.section_names, name_at)
        if not flags & _ALLOC or name in _DROPPED or kind == _UNWIND:
            return None
        if kind not in (_PROGBITS, _NOBITS) or flags & _TLS or name.startswith(_STARTING):
            raise cannot_link(self.what, f"the section {name} is of type {kind} with the flags {flags:#x}")
        data = np.zeros(size, np.uint8) if kind == _NOBITS else np.frombuffer(self._bytes(number), np.uint8)
        written = bool(flags & _WRITE)
        constant = not written or name == ".data.rel.ro" or name.startswith(".data.rel.ro.")
        return ElfSection(name, data, max(align, 1), bool(flags & _EXECINSTR), written, constant)

    def _symbols(self, number: int) -> Symbols:
        order = self.order
        layout = [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("size", "u8")]
        entries = np.frombuffer(self._bytes(number), np.dtype(layout).newbyteorder("<" if order == "<" else ">"))
        names = self._bytes(self.headers[number][6])
        section, kind, binding = (np.asarray(a, np.int64) for a in (
            entries["section"], entries["info"] & 15, entries["info"] >> 4))  # fmt: skip
        odd = ((section >= _RESERVED) & (section != ABSOLUTE)) | (kind > _FILE)
        if odd.any():
            k = int(np.argmax(odd))
            name = _text(names, int(entries["name"][k]))
            raise cannot_link(self.what, f"the symbol '{name}' is of type {kind[k]} in section {section[k]:#x}")
        is_local = binding == _LOCAL
        texts = [
            "" if local else _text(names, at)
            for at, local in zip(entries["name"].tolist(), is_local.tolist(), strict=True)
        ]
        return Symbols(section, entries["value"].astype(np.int64), is_local, binding == _WEAK, tuple(texts))

    def _relocations(self, header: Sequence[int]) -> Relocations:
        data = self.blob[header[4] : header[4] + header[5]]
        layout = np.dtype([("offset", "u8"), ("info", "u8"), ("addend", "i8")])
        entries = np.frombuffer(data, layout.newbyteorder("<" if self.order == "<" else ">"))
        info = entries["info"].astype(np.uint64)
        kind, symbol = (info & np.uint64(0xFFFFFFFF)).astype(np.int64), (info >> np.uint64(32)).astype(np.int64)
        return Relocations(
            header[7], entries["offset"].astype(np.int64), kind, symbol, entries["addend"].astype(np.int64)
        )


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode("ascii", "replace")
