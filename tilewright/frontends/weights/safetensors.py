"""Files of weights in the format of safetensors: an 8-byte length, a JSON header of that length, and plain elements.

The package of that name is not needed for so little, and would map what is checked here only afterwards: a header can
say anything, so each entry of it is checked before an array is made. Nothing is ever executed. A folder of such files
with an index is read as one.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from tilewright.frontends.files import open_regular
from tilewright.frontends.problems import shown
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

SUFFIX = ".safetensors"
MAX_HEADER_BYTES = 100_000_000
"""As the format itself allows."""
MAX_RANK = 64
MAX_VALUE_BYTES = 128
"""What a value of JSON takes in memory, at most: one of a few characters takes many times as much as in the file."""
LEAST_ROOM = 1 << 26
"""Bytes that the values of a header may take whatever the size of the file; of larger files they may take as much as
the file has."""
_DTYPES: dict[str, DType] = {
    "BOOL": dt.bool_,
    "U8": dt.u8,
    "I8": dt.i8,
    "U16": dt.u16,
    "I16": dt.i16,
    "U32": dt.u32,
    "I32": dt.i32,
    "U64": dt.u64,
    "I64": dt.i64,
    "F8_E4M3": dt.f8e4m3,
    "F8_E4M3FNUZ": dt.f8e4m3fnuz,
    "F8_E5M2": dt.f8e5m2,
    "F8_E5M2FNUZ": dt.f8e5m2fnuz,
    "F8_E8M0": dt.f8e8m0,
    "F16": dt.f16,
    "BF16": dt.bf16,
    "F32": dt.f32,
    "F64": dt.f64,
}
_OTHERS = ("F4", "F6_E2M3", "F6_E3M2", "C64")
"""Dtypes of the format that have no counterpart: elements that share bytes, and complex numbers."""


class _Entry(NamedTuple):
    """A tensor as the header has it; its elements are bytes `begin` to `end` after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a file by name: read-only arrays on the mapped file, which must not be changed or cut off as long
    as they live (to replace it by renaming, or to delete it, is safe).

    ModelError for a file that is missing or damaged; UnsupportedError with all tensors of other dtypes than ours.
    """
    return {entry.name: _array(entry, data, path) for entry, data in mapped_tensors(path)}


def mapped_tensors(path: Path) -> Iterator[tuple[_Entry, memoryview]]:
    """The checked tensors of a file and their bytes."""
    try:
        with open_regular(path) as file:
            status = os.fstat(file.fileno())
            text = _header(file, status.st_size, path)
            mapped = memoryview(mmap.mmap(file.fileno(), status.st_size, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:  # ValueError: no path at all, or a file that is shorter now
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"the weights cannot be read: {reason}", where=str(path), hint="check the path") from error
    start = 8 + len(text)
    for entry in _entries(text, status.st_size - start, path):
        yield entry, mapped[start + entry.begin : start + entry.end]


def damaged(what: str, path: Path, name: str | None = None) -> NoReturn:
    where = str(path) if name is None else f"tensor '{shown(name)}' of {path}"
    raise ModelError(what, where=where, hint="the file is damaged, cut off, or no safetensors file")


def _header(file: BinaryIO | Any, size: int, path: Path) -> bytes:
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
        damaged(f"the header should have {length} bytes, the file has {size}", path)
    text = bytearray()
    while piece := file.read(length - len(text)):
        text += piece
    if len(text) != length or not text.startswith(b"{"):
        damaged("the header does not begin with {, or was cut off while it was read", path)
    return bytes(text)


def _entries(text: bytes, size: int, path: Path) -> list[_Entry]:
    """The checked tensors of a header, in the order in which they fill the `size` bytes after it."""
    header = parsed(text, max(size, LEAST_ROOM), path, "the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        damaged("__metadata__ holds other things than texts", path)
    entries = sorted((_entry(name, data, path) for name, data in header.items()), key=lambda e: (e.begin, e.end))
    end = 0
    for entry in entries:
        if entry.begin != end:
            damaged(f"its elements begin at {entry.begin}, those of the tensor before end at {end}", path, entry.name)
        end = entry.end
    if end != size:
        damaged(f"the tensors take {end} bytes, the file has {size} for them", path)
    strangers = [f"'{shown(e.name)}' is {e.dtype}" for e in entries if e.dtype not in _DTYPES]
    if strangers:
        raise UnsupportedError(
            f"weights of these dtypes are not supported: {', '.join(strangers)}",
            where=str(path),
            hint=f"supported: {', '.join(_DTYPES)}",
        )
    for entry in entries:
        needed = math.prod(entry.shape) * _DTYPES[entry.dtype].bytes
        if entry.end - entry.begin != needed:
            what = f"{entry.dtype}{list(entry.shape)} takes {needed} bytes, the header gives {entry.end - entry.begin}"
            damaged(what, path, entry.name)
    return entries


def parsed(text: bytes, room: int, path: Path, what: str) -> dict[str, Any]:
    """A JSON object whose values take at most `room` bytes in memory."""
    values = text.count(b",") + text.count(b"{") + text.count(b"[")
    needed = values * MAX_VALUE_BYTES + len(text) * (1 if text.isascii() else 4)
    if needed > room:
        damaged(f"{what} of {len(text)} bytes has {values} values, which take more memory than the file", path)
    try:
        found = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        damaged(f"{what} is no JSON of tensors: {error!s:.200}", path)
    if not isinstance(found, dict):
        damaged(f"{what} is no JSON object", path)
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    for name in found:
        name.encode()  # half of a pair of surrogates is no text
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


def _entry(name: str, data: Any, path: Path) -> _Entry:
    if not isinstance(data, dict) or data.keys() != {"dtype", "shape", "data_offsets"}:
        damaged("its entry is not made of dtype, shape and data_offsets", path, name)
    dtype, shape, offsets = data["dtype"], data["shape"], data["data_offsets"]
    if dtype not in (*_DTYPES, *_OTHERS):
        damaged(f"{dtype!r:.40} is no dtype of the format", path, name)
    if not _are_counts(shape) or len(shape) > MAX_RANK or math.prod(n for n in shape if n) >= 2**47:
        damaged(f"the shape {shape!r:.80} is not possible", path, name)
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        damaged(f"the offsets {offsets!r:.80} are not possible", path, name)
    return _Entry(name, dtype, tuple(shape), *offsets)


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(n) is int and 0 <= n < 2**63 for n in values)


def _array(entry: _Entry, data: memoryview, path: Path) -> np.ndarray:
    dtype = _DTYPES[entry.dtype]
    array = np.frombuffer(data, np.uint8).view(dtype.storage).reshape(entry.shape)
    if dtype is dt.bool_ and data.nbytes and np.frombuffer(data, np.uint8).max() > 1:
        damaged("a truth value is neither 0 nor 1", path, entry.name)
    return array if array.flags.aligned else array.copy()
