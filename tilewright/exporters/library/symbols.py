"""Object files whose symbols get other names, so that libraries of several models can be in one program."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tilewright.runtime.errors import ArtifactError

# The parts of the ELF-64 file and section headers that lead to the symbol table (System V ABI, chapter 4).
_OFFSET_AT, _SIZE_AT = 24, 32
_SYMBOL_TABLE, _HIDDEN = 2, 2
_SYMBOL = np.dtype(
    [("name", "u4"), ("info", "u1"), ("other", "u1"), ("section", "u2"), ("value", "u8"), ("size", "u8")]
)


def renamed(blob: bytes, name_of: Callable[[str], str]) -> bytes:
    """The same object file (64-bit ELF) with `name_of` each of its global symbols. Those that it
    defines, and those that get another name, are hidden: a library shows nobody what it is made of. ArtifactError for a
    file of another format."""
    if blob[:6] not in (b"\x7fELF\x02\x01", b"\x7fELF\x02\x02"):
        raise ArtifactError(
            "libraries are made of 64-bit ELF files, which the code for this target is not",
            hint="export for a Linux target",
        )
    file, order = bytearray(blob), "<" if blob[5] == 1 else ">"
    header, section = struct.Struct(f"{order}40xQ10xHH"), struct.Struct(f"{order}4xI16xQQI12xQ")
    table, entry_size, count = header.unpack_from(file)
    sections = [section.unpack_from(file, table + entry_size * k) for k in range(count)]
    kind = [s[0] for s in sections]
    _, offset, size, link, _ = sections[kind.index(_SYMBOL_TABLE)]
    layout = _SYMBOL.newbyteorder("<" if order == "<" else ">")
    symbols = np.frombuffer(file, layout, size // layout.itemsize, offset).copy()
    names = _changed(bytes(file), symbols, sections[link], name_of)
    file[offset : offset + size] = symbols.tobytes()
    at = table + entry_size * link
    file[at + _OFFSET_AT : at + _OFFSET_AT + 8] = struct.pack(f"{order}Q", len(file))
    file[at + _SIZE_AT : at + _SIZE_AT + 8] = struct.pack(f"{order}Q", len(names))
    return bytes(file + names)


def _changed(
    file: bytes, symbols: np.ndarray, strings: tuple[int, ...], name_of: Callable[[str], str]
) -> bytes:
    """The table of names with what the symbols are called now; they are changed in place."""
    _, start, size, *_ = strings
    names = bytearray(file[start : start + size])
    for symbol in symbols:
        if symbol["info"] >> 4 == 0 or not symbol["name"]:
            continue
        at = int(symbol["name"])
        old = names[at : names.index(b"\0", at)].decode()
        new = name_of(old)
        if new != old:
            symbol["name"] = len(names)
            names += new.encode() + b"\0"
        if new != old or symbol["section"]:
            symbol["other"] = int(symbol["other"]) & ~3 | _HIDDEN
    return bytes(names)
