"""Looks into object files before LLVM links them: LLVM ends the whole process on files it cannot link."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

_ELF64_LITTLE = b"\x7fELF\x02\x01"
_MACHO64 = b"\xcf\xfa\xed\xfe"

# The parts of the ELF-64 file and section headers that lead to the symbol table (System V ABI, chapter 4).
_SECTION_TABLE = struct.Struct("<40xQ10xHH")
_SECTION = struct.Struct("<4xI16xQQI12xQ")
_SYMBOL_TABLE = 2
_WEAK = 2
_SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


@dataclass(frozen=True)
class Symbols:
    """Names an object file gives to others, and those it must find elsewhere."""

    defined: frozenset[str]
    needed: frozenset[str]


def object_symbols(blob: bytes) -> Symbols:
    """Symbols of a 64-bit ELF file (of a Mach-O file none are read); ValueError for anything else."""
    if blob[:4] == _MACHO64:
        return Symbols(frozenset(), frozenset())
    if blob[:6] != _ELF64_LITTLE:
        raise ValueError("it is no 64-bit little-endian ELF or Mach-O file")
    try:
        return _elf_symbols(blob)
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError(f"its headers are malformed: {error}") from error


def _elf_symbols(blob: bytes) -> Symbols:
    table, entry_size, count = _SECTION_TABLE.unpack_from(blob)
    sections = [_SECTION.unpack_from(blob, table + entry_size * i) for i in range(count)]
    defined: set[str] = set()
    needed: set[str] = set()
    for kind, offset, size, link, _ in sections:
        if kind != _SYMBOL_TABLE:
            continue
        symbols = np.frombuffer(blob, _SYMBOL, size // _SYMBOL.itemsize, offset)
        _, names_at, names_size, _, _ = sections[link]
        names = blob[names_at : names_at + names_size]
        binding = symbols["info"] >> 4
        outside = symbols["section"] == 0
        defined |= _names(names, symbols["name"][~outside & (binding != 0)])
        needed |= _names(names, symbols["name"][outside & (binding != _WEAK)])
    return Symbols(frozenset(defined), frozenset(needed - {"", "_GLOBAL_OFFSET_TABLE_"}))


def _names(table: bytes, offsets: np.ndarray) -> set[str]:
    return {table[at : table.index(b"\0", at)].decode("ascii", "replace") for at in offsets.tolist()}
