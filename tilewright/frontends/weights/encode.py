"""Floats as weights of fewer bits: what `weights="int4"` makes of a float32 checkpoint."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from tilewright.frontends.weights.kinds import KINDS, Kind
from tilewright.frontends.weights.layout import BlockLayout, Codes, Number, PlainLayout, Plane, codes
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
INTEGERS = {"int8": 8, "int4": 4}
GROUPS = (32, 64, 128, 256)
"""Elements of a row that may share a scale; 0 stands for all of the row."""

_SHRINKS = (1.0, 0.95, 0.9, 0.85)
"""Parts of the largest element that scales of few bits are tried for: what lies beyond is cut off, and all others are
rounded to finer steps."""
_ROWS_AT_ONCE = 1 << 18  # elements


@cache
def grouped(bits: int, group: int, minimum: bool = False, scale: DType = dt.f16, zeros: bool = False) -> Kind:
    """Integers of 2, 3, 4 or 8 bits in blocks of `group` elements that have a scale each: symmetric about zero, or from
    a minimum on, or with a zero of their own. Those of ggml are these where they exist."""
    same = {(4, False): "Q4_0", (4, True): "Q4_1", (8, False): "Q8_0"}.get((bits, minimum))
    if same and group == 32 and scale is dt.f16 and not zeros:
        return KINDS[same]
    parts = [2, 1] if bits == 3 else [bits]
    together = 8 // min(parts)  # elements that fill whole bytes
    elements = -(-group // together) * together
    at = scale.bytes * (2 if minimum else 1) + (1 if zeros else 0)
    planes: list[Plane] = []
    for part in parts:
        size = elements * part // 8
        planes.append(Plane(at, size, part, size))
        at += size
    is_signed = bits == 8 and not minimum and not zeros
    centre = 0 if is_signed or minimum or zeros else 1 << bits - 1
    layout = BlockLayout(
        codes(*planes, zero=centre, signed=is_signed),
        Number(0, scale),
        Number(scale.bytes, scale) if minimum else None,
        zeros=Codes(((Plane(scale.bytes, 1, 8, 1),),)) if zeros else None,
    )
    form = "_MIN" if minimum else "_ZERO" if zeros else ""
    name = f"INT{bits}_G{group}{form}" + ("" if scale is dt.f16 else f"_{scale.name.upper()}")
    return Kind(name, elements, at, layout)


def encoded(values: np.ndarray, weights: str, group: int = 32, minimum: bool = False, name: str = "") -> StoredTensor:
    """Floats [..., columns] in a kind that users ask for: "float32", "float16", "bfloat16", or "int8" and "int4" in
    groups of 32, 64, 128 or 256 elements of a row (0: in whole rows), symmetric about zero or from a minimum on.

    Scales are of 16 bits where these hold the largest of them well, and else of 32. UnsupportedError for what there is
    not; ModelError for weights that the kind cannot hold, as they are infinite or no numbers.
    """
    if weights in FLOATS:
        return _rounded(values, KINDS[FLOATS[weights]], name)
    bits = INTEGERS.get(weights)
    if bits is None or group not in (0, *GROUPS):
        groups = ", ".join(map(str, GROUPS))
        raise UnsupportedError(
            f"weights of {weights!r:.40} in groups of {group!r:.40} are not supported",
            hint=f"there are {', '.join((*FLOATS, *INTEGERS))}; groups of {groups}, or 0 for whole rows",
        )
    values = np.asarray(values, np.float32)
    if not np.isfinite(values).all():
        count = values.size - int(np.isfinite(values).sum())
        raise ModelError(
            f"{count} of {values.size} weights are infinite or no numbers, which {weights} cannot hold",
            where=f"tensor '{name}'",
            hint="leave this tensor in float32",
        )
    largest = float(np.abs(values).max(initial=0.0)) / (1 << bits - 1)
    is_half = largest == 0 or float(np.finfo(np.float16).smallest_normal) <= largest <= 1 << 14
    width = group or max(values.shape[-1] if values.ndim else 1, 1)
    kind = grouped(bits, width, minimum, dt.f16 if is_half else dt.f32)
    return encoded_as(values, kind, name)


def _rounded(values: np.ndarray, kind: Kind, name: str) -> StoredTensor:
    assert isinstance(kind.layout, PlainLayout)
    with np.errstate(all="ignore"):
        found = np.ascontiguousarray(np.asarray(values).astype(kind.layout.dtype.storage))
    wrong = int((np.isinf(found.astype(np.float32)) & np.isfinite(values)).sum())
    if wrong:
        raise ModelError(
            f"{wrong} of {found.size} weights are too large for {kind.layout.dtype}",
            where=f"tensor '{name}'",
            hint="leave this tensor in float32, or ask for bfloat16, which has its range",
        )
    return StoredTensor(name, found.shape, kind, found.reshape(-1).view(np.uint8))


def encoded_as(values: np.ndarray, kind: Kind, name: str = "") -> StoredTensor:
    """Finite floats in a kind of integers without factors and codebook."""
    layout = kind.layout
    assert isinstance(layout, BlockLayout) and layout.factors is None and not layout.codebook and layout.zeros is None
    columns = values.shape[-1] if values.ndim else 1
    rows = np.asarray(values, np.float32).reshape(math.prod(values.shape[:-1]), columns)
    in_row = kind.row_bytes(columns) // kind.bytes
    data = np.zeros((len(rows), in_row * kind.bytes), np.uint8)
    step = max(1, _ROWS_AT_ONCE // max(columns, 1))
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        wide = np.pad(part, ((0, 0), (0, in_row * kind.elements - columns)), "edge") if columns else part
        write = _write_minimums if layout.minimum is not None else _write_symmetric
        write(wide.reshape(-1, kind.elements), layout, data[first : first + step].reshape(-1, kind.bytes))
    return StoredTensor(name, values.shape, kind, data.reshape(-1))


def _write_symmetric(values: np.ndarray, layout: BlockLayout, blocks: np.ndarray) -> None:
    """Codes of the nearest multiples of a scale: of few bits the one with the least sum of squared errors, where the
    element that is farthest from zero gets the code that is, on its side."""
    bits = layout.codes.bits
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    farthest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    if bits > 4:
        ends = [np.abs(farthest) / np.float32(high)]
    else:
        ends = [farthest / np.float32(low) * np.float32(part) for part in _SHRINKS]
    unit = np.where(farthest == 0, np.float32(1), np.abs(farthest))  # squares of large elements are too large
    best = np.full((len(values), 1), np.inf, np.float32)
    scales = np.zeros((len(values), 1), np.float32)
    found = np.zeros(values.shape, np.int8)
    for end in ends:
        scale = end.astype(layout.scale.dtype.storage).astype(np.float32)  # as it will be read
        chosen = np.clip(np.rint(_divided(values, scale)), low, high)
        loss = np.square((chosen * scale - values) / unit).sum(axis=1, keepdims=True)
        better = loss < best
        best, scales = np.where(better, loss, best), np.where(better, scale, scales)
        np.copyto(found, chosen.astype(np.int8), where=better)
    layout.scale.write(scales, blocks)
    layout.codes.write(found, blocks)


def _write_minimums(values: np.ndarray, layout: BlockLayout, blocks: np.ndarray) -> None:
    """Codes from the least element of each block to its greatest."""
    assert layout.minimum is not None
    high = (1 << layout.codes.bits) - 1
    storage = layout.scale.dtype.storage
    least = values.min(axis=1, keepdims=True)
    minimum = least.astype(storage).astype(np.float32)
    span = values.max(axis=1, keepdims=True).astype(np.float64) - minimum
    scale = (span / high).astype(storage).astype(np.float32)
    chosen = np.clip(np.rint(_divided(values / 2 - minimum / 2, scale / 2)), 0, high)  # the difference may be too large
    layout.scale.write(scale, blocks)
    layout.minimum.write(minimum, blocks)
    layout.codes.write(chosen.astype(np.uint8), blocks)


def _divided(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
    return np.divide(values, scale, out=np.zeros_like(values), where=scale != 0)
