"""What reading a file of weights takes in memory, whatever its header says: measured in a process with a limit."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontends.weights.gguf_files import Gguf, text, value
from tilewright.frontends.weights.gguf import MAX_ENTRIES

ROOT = Path(__file__).parents[3]
CHILD = """
import sys
from pathlib import Path
from tests.fuzz.files.limits import limited
from tilewright.frontends.weights.gguf import read_gguf
from tilewright.frontends.weights.folders import read_stored
from tilewright.ir.diag import ModelError, UnsupportedError

path, room = Path(sys.argv[1]), int(sys.argv[2])
with limited(30, 2 * path.stat().st_size + room):
    try:
        found = read_stored(path) if path.suffix == ".safetensors" else read_gguf(path)
        print("read")
    except (ModelError, UnsupportedError) as error:
        print("refused:", error.what)
"""
ROOM = 40 << 20
"""Bytes that may be taken for any file, besides twice its size: 65,536 tensors of the least size take most of it."""


def tokens(count: int, token: str, after: bytes = b"") -> bytes:
    array = struct.pack("<IIQ", 9, 8, count) + text(token) * count
    return Gguf([("tokens", array)]).header() + after


def many(head: bytes, piece: Callable[[int], bytes], count: int) -> bytes:
    return head + b"".join(map(piece, range(count)))


def lying(type: int, count: int, size: int) -> bytes:
    """An array that says that it has `count` elements."""
    return Gguf([("a", struct.pack("<IIQ", 9, type, count) + bytes(size))]).header()


CASES: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "empty strings": ("gguf", lambda: tokens(3_000_000, ""), "read"),
    "short strings": ("gguf", lambda: tokens(2_000_000, "abc"), "read"),
    "keys": (
        "gguf",
        lambda: many(Gguf(counts=(0, MAX_ENTRIES)).header(), lambda k: text(f"{k:x}") + value("u8", 1), MAX_ENTRIES),
        "read",
    ),
    "tensors": (
        "gguf",
        lambda: many(
            Gguf(counts=(MAX_ENTRIES, 0)).header(),
            lambda k: text(f"{k:x}") + struct.pack("<IQIQ", 1, 0, 0, 0),
            MAX_ENTRIES,
        ),
        "read",
    ),
    "arrays of strings": (
        "gguf",
        lambda: many(
            Gguf(counts=(0, MAX_ENTRIES)).header(),
            lambda k: text(f"{k:x}") + struct.pack("<IIQ", 9, 8, 2) + bytes(16),
            MAX_ENTRIES,
        ),
        "read",
    ),
    "numbers": ("gguf", lambda: lying(0, 30_000_000, 30_000_000), "read"),
    "numbers that are not there": ("gguf", lambda: lying(12, 2**50, 100), "refused"),
    "strings that are not there": ("gguf", lambda: lying(8, 1 << 27, 1 << 20), "refused"),
    "long text": ("gguf", lambda: Gguf([("a", value("str", "a" * 30_000_000))]).header(), "read"),
    "JSON of lists": ("safetensors", lambda: header(b'{"a":[' + b"[]," * 400_000 + b"[]]}"), "refused"),
    "JSON of tensors": (
        "safetensors",
        lambda: header(
            b"{"
            + b",".join(b'"%x":{"dtype":"I8","shape":[],"data_offsets":[%d,%d]}' % (k, k, k + 1) for k in range(70_000))
            + b"}",
            70_000,
        ),
        "read",
    ),
}


def header(json: bytes, size: int = 0) -> bytes:
    return struct.pack("<Q", len(json)) + json + bytes(size)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit counts pages as Linux does")
@pytest.mark.sweep(3)
@pytest.mark.parametrize("case", CASES)
def test_a_header_takes_no_more_than_twice_the_file(case: str, tmp_path: Path) -> None:
    suffix, make, outcome = CASES[case]
    path = tmp_path / f"w.{suffix}"
    path.write_bytes(make())
    room = ROOM + (64 << 20 if suffix == "safetensors" else 0)
    done = subprocess.run([sys.executable, "-c", CHILD, str(path), str(room)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(outcome), done.stdout
