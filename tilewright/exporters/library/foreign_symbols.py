"""Symbols of object files of Windows (COFF) and macOS (Mach-O): what they are called, and other names for them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# COFF (Microsoft's PE format, "COFF File Header", "COFF Symbol Table").
_COFF_MACHINES = (0x8664, 0xAA64)
_COFF_HEADER = struct.Struct("<HHIII")
_SYMBOL_BYTES = 18
_SYMBOL_TAIL = struct.Struct("<IhHBB")  # value, section, type, class, auxiliary records
_EXTERNAL, _WEAK_EXTERNAL = 2, 105

# Mach-O of 64 bits, low byte first (mach-o/loader.h, mach-o/nlist.h).
_MACH_MAGIC = b"\xcf\xfa\xed\xfe"
_MACH_HEADER = struct.Struct("<16xI")
_SYMTAB = 2
_NLIST = np.dtype([("name", "<u4"), ("type", "u1"), ("section", "u1"), ("about", "<u2"), ("value", "<u8")])
_STAB, _PRIVATE, _KIND, _SHOWN, _UNDEFINED = 0xE0, 0x10, 0x0E, 0x01, 0


@dataclass(frozen=True)
class GlobalNames:
    """The names that an object file gives to others, and those that others must have."""

    defined: frozenset[str]
    needed: frozenset[str]


def is_coff(blob: bytes) -> bool:
    """Whether a file is an object of 64-bit Windows."""
    return len(blob) >= 20 and struct.unpack_from("<H", blob)[0] in _COFF_MACHINES


def is_macho(blob: bytes) -> bool:
    """Whether a file is an object of macOS."""
    return blob[:4] == _MACH_MAGIC


def names_in(blob: bytes) -> GlobalNames:
    """The names in a COFF or Mach-O object, as C has them."""
    found: dict[bool, set[str]] = {True: set(), False: set()}

    def note(name: str, is_defined: bool) -> str:
        found[is_defined].add(name)
        return name

    (_renamed_coff if is_coff(blob) else _renamed_macho)(blob, note)
    return GlobalNames(frozenset(found[True]), frozenset(found[False]))


def renamed_foreign(blob: bytes, name_of: Callable[[str], str]) -> bytes:
    """A COFF or Mach-O object with `name_of` each of its global symbols. Those of Mach-O that it defines are hidden; in
    COFF nothing is shown that does not ask for it."""
    return (_renamed_coff if is_coff(blob) else _renamed_macho)(blob, lambda name, _: name_of(name))


def _renamed_coff(blob: bytes, name_of: Callable[[str, bool], str]) -> bytes:
    """Names of up to 8 bytes stand in the table of symbols, longer ones behind it."""
    _, _, _, table, count = _COFF_HEADER.unpack_from(blob)
    strings_at = table + _SYMBOL_BYTES * count
    (size,) = struct.unpack_from("<I", blob, strings_at)
    symbols, strings = bytearray(blob[table:strings_at]), bytearray(blob[strings_at : strings_at + size])
    skipped = 0
    for at in range(0, len(symbols), _SYMBOL_BYTES):
        if skipped:
            skipped -= 1
            continue
        _, section, _, kind, skipped = _SYMBOL_TAIL.unpack_from(symbols, at + 8)
        if kind not in (_EXTERNAL, _WEAK_EXTERNAL):
            continue
        old = _coff_name(bytes(symbols[at : at + 8]), strings)
        new = name_of(old, section != 0)
        if new != old:
            symbols[at : at + 8] = struct.pack("<II", 0, len(strings))
            strings += new.encode() + b"\0"
    strings[:4] = struct.pack("<I", len(strings))
    end = strings_at + size
    if end == len(blob):
        return blob[:table] + bytes(symbols + strings)
    made = bytearray(blob + bytes(-len(blob) % 4))
    made[8:12] = struct.pack("<I", len(made))
    return bytes(made + symbols + strings)


def _coff_name(field: bytes, strings: bytearray) -> str:
    if field[:4] == bytes(4):
        (at,) = struct.unpack_from("<I", field, 4)
        return strings[at : strings.index(b"\0", at)].decode()
    return field.rstrip(b"\0").decode()


def _renamed_macho(blob: bytes, name_of: Callable[[str, bool], str]) -> bytes:
    """Names of C have a `_` before them."""
    made, at = bytearray(blob), 32
    (commands,) = _MACH_HEADER.unpack_from(blob)
    for _ in range(commands):
        kind, size = struct.unpack_from("<II", blob, at)
        if kind == _SYMTAB:
            break
        at += size
    else:
        return blob
    offset, count, strings_at, strings_size = struct.unpack_from("<IIII", blob, at + 8)
    symbols = np.frombuffer(blob, _NLIST, count, offset).copy()
    strings = bytearray(blob[strings_at : strings_at + strings_size])
    for symbol in symbols:
        type = int(symbol["type"])
        if type & _STAB or not type & _SHOWN:
            continue
        start = int(symbol["name"])
        old = strings[start : strings.index(b"\0", start)].decode()
        is_defined = type & _KIND != _UNDEFINED
        plain = old.removeprefix("_")
        new = name_of(plain, is_defined)
        if new != plain:
            symbol["name"] = len(strings)
            strings += f"_{new}".encode() + b"\0"
        if is_defined:
            symbol["type"] = type | _PRIVATE
    made[offset : offset + symbols.nbytes] = symbols.tobytes()
    strings += bytes(-len(strings) % 8)
    made += bytes(-len(made) % 8)
    struct.pack_into("<II", made, at + 16, len(made), len(strings))
    return bytes(made + strings)
