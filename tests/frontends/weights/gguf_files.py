"""GGUF files for tests, written by hand after the format's specification: right ones, and those that lie."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = dict(u8=0, i8=1, u16=2, i16=3, u32=4, i32=5, f32=6, bool=7, u64=10, i64=11, f64=12)
FORMATS = dict(zip(NUMBERS, "BbHhIif?Qqd", strict=True))
KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "I32": 26, "BF16": 30}


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def value(type: str, content: Any) -> bytes:
    """A value with its type: "str", a number's, or either in brackets for an array."""
    if type.startswith("["):
        inner = type[1:-1]
        code = 8 if inner == "str" else NUMBERS[inner]
        items = b"".join(value(inner, item)[4:] for item in content)
        return struct.pack("<IIQ", 9, code, len(content)) + items
    if type == "str":
        return struct.pack("<I", 8) + text(content)
    return struct.pack("<I" + FORMATS[type], NUMBERS[type], content)


@dataclass
class Gguf:
    """What a file holds; `tensors` are (name, dims in the file's order, kind, bytes, offset or None for the next)."""

    keys: list[tuple[str, bytes]] = field(default_factory=list)
    tensors: list[tuple[str, Sequence[int], int, bytes, int | None]] = field(default_factory=list)
    version: int = 3
    alignment: int = 32
    counts: tuple[int, int] | None = None

    def key(self, name: str, type: str, content: Any) -> Gguf:
        self.keys.append((name, value(type, content)))
        return self

    def tensor(self, name: str, shape: Sequence[int], kind: str | int, data: bytes, offset: int | None = None) -> Gguf:
        number = KINDS[kind] if isinstance(kind, str) else kind
        self.tensors.append((name, tuple(reversed(shape)), number, data, offset))
        return self

    def header(self) -> bytes:
        counts = self.counts or (len(self.tensors), len(self.keys))
        out = b"GGUF" + struct.pack("<IQQ", self.version, *counts)
        out += b"".join(text(name) + data for name, data in self.keys)
        at = 0
        for name, dims, kind, data, offset in self.tensors:
            at = self._aligned(at)
            begin = at if offset is None else offset
            out += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, begin)
            at += len(data)
        return out

    def bytes(self) -> bytes:
        out = self.header()
        for _, _, _, data, _ in self.tensors:
            out = out.ljust(self._aligned(len(out)), b"\0") + data
        return out

    def write(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def _aligned(self, at: int) -> int:
        return -(-at // self.alignment) * self.alignment


W = np.arange(12, dtype=np.float32).reshape(3, 4)
Q = np.random.default_rng(3).integers(0, 256, 2 * 2 * 18, dtype=np.uint8)
"""Two rows of two blocks of Q4_0."""


def small() -> Gguf:
    """A model of two tensors, and values of all types."""
    file = Gguf().key("general.architecture", "str", "llama").key("tokens", "[str]", ["a", "", "Ġé", "<s>"])
    for k, type in enumerate(NUMBERS):
        number = True if type == "bool" else k + 0.5 if type.startswith("f") else k
        file.key(f"one.{type}", type, number).key(f"some.{type}", f"[{type}]", [number] * 3)
    file.key("none", "[str]", []).key("nothing", "[f32]", [])
    return file.tensor("w", (3, 4), "F32", W.tobytes()).tensor("q", (2, 64), "Q4_0", Q.tobytes())
