"""Floats as weights of fewer bits: what `weights="int4"` makes of a float32 checkpoint."""

from __future__ import annotations

import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from tilewright.frontends.weights.forms import FLOATS, GROUPS, INTEGERS
from tilewright.frontends.weights.kinds import KINDS, Kind
from tilewright.frontends.weights.layout import BlockLayout, Codes, Number, PlainLayout, Plane, codes
from tilewright.frontends.weights.scales import (
    rounded,
    scales_and_minimums,
    symmetric_scales,
    weighted_squares,
)
from tilewright.frontends.weights.stored import StoredTensor
from tilewright.ir import dtype as dt
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType

_OF_FLOATS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_MOST_THREADS = 8
"""More wait for memory."""
_AT_ONCE = 1 << 17
"""Elements that a thread rounds at once: these, their codes and what is summed stay in L2."""


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


def encoded(
    values: np.ndarray,
    weights: str,
    group: int = 32,
    minimum: bool = False,
    name: str = "",
    importance: np.ndarray | None = None,
) -> StoredTensor:
    """Floats [..., columns] in a kind that users ask for: "float32", "float16", "bfloat16", or "int8" and "int4" in
    groups of 32, 64, 128 or 256 elements of a row (0: in whole rows), symmetric about zero or from a minimum on.

    Scales are of 16 bits where these hold the largest of them well, and else of 32; those of 4 bits are the ones that
    lose the least, with errors of a column weighed by its `importance` f32[columns] where it is given.
    UnsupportedError for what there is not; ModelError for weights that the kind cannot hold, as they are infinite or no
    numbers.
    """
    if weights in FLOATS:
        return _rounded(values, KINDS[_OF_FLOATS[weights]], name)
    if weights not in INTEGERS or group not in (0, *GROUPS):
        groups = ", ".join(map(str, GROUPS))
        raise UnsupportedError(
            f"weights of {weights!r:.40} in groups of {group!r:.40} are not supported",
            hint=f"there are {', '.join((*FLOATS, *INTEGERS))}; groups of {groups}, or 0 for whole rows",
        )
    bits = int(weights.removeprefix("int"))
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
    return encoded_as(values, kind, name, importance)


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


def encoded_as(
    values: np.ndarray, kind: Kind, name: str = "", importance: np.ndarray | None = None
) -> StoredTensor:
    """Finite floats in a kind of integers without factors and codebook; `importance` is that of `encoded`."""
    layout = kind.layout
    assert isinstance(layout, BlockLayout) and layout.factors is None and not layout.codebook and layout.zeros is None
    columns = values.shape[-1] if values.ndim else 1
    rows = np.asarray(values, np.float32).reshape(math.prod(values.shape[:-1]), columns)
    in_row = kind.row_bytes(columns) // kind.bytes
    data = np.zeros((len(rows), in_row * kind.bytes), np.uint8)
    filling = in_row * kind.elements - columns
    write = _write_minimums if layout.minimum is not None else _write_symmetric
    weights = None
    if importance is not None:
        weights = np.pad(importance.astype(np.float32), (0, filling)).reshape(-1, kind.elements)
        largest = np.frexp(weights.max(axis=1, keepdims=True, initial=0))[1]
        weights = np.ldexp(weights, -largest)  # their sums are finite, and not 0

    def some(first: int) -> None:
        part = rows[first : first + step]
        wide = np.pad(part, ((0, 0), (0, filling)), "edge") if filling and columns else part
        blocks = data[first : first + step].reshape(-1, kind.bytes)
        of_blocks = None if weights is None else np.tile(weights, (len(part), 1)).T
        write(np.ascontiguousarray(wide.reshape(-1, kind.elements).T), layout, blocks, of_blocks)

    step = max(1, _AT_ONCE // max(columns, 1))
    with ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(some, range(0, len(rows) if columns else 0, step)))
    return StoredTensor(name, values.shape, kind, data.reshape(-1))


def _write_symmetric(
    values: np.ndarray, layout: BlockLayout, blocks: np.ndarray, weights: np.ndarray | None
) -> None:
    """Codes of the nearest multiples of a scale, of elements [elements of a block, blocks]: of few bits the scale that
    loses least, of more that with which the farthest element has the last code."""
    bits = layout.codes.bits
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    farthest = np.abs(values).max(axis=0)
    if bits > 4:
        scale = farthest / np.float32(high)
    else:
        unit = np.where(farthest == 0, np.float32(1), farthest)  # squares of large elements are too large
        scale = symmetric_scales(values / unit, low, high, weights) * unit
    codes = np.empty_like(values)
    rounded(values, _as_stored(scale, layout.scale), None, low, high, codes)
    layout.scale.write(scale[:, None], blocks)
    layout.codes.write(codes.T, blocks)


def _write_minimums(
    values: np.ndarray, layout: BlockLayout, blocks: np.ndarray, weights: np.ndarray | None
) -> None:
    """Codes from a minimum on: of few bits with what loses least, of more from the least to the greatest element."""
    assert layout.minimum is not None
    high = (1 << layout.codes.bits) - 1
    farthest = np.abs(values).max(axis=0)
    unit = np.where(farthest == 0, np.float32(1), farthest)  # differences and squares of large elements are too large
    parts = values / unit
    minimum = _as_stored(parts.min(axis=0) * unit, layout.minimum)
    scale = _as_stored((parts.max(axis=0) - minimum / unit) / np.float32(high) * unit, layout.scale)
    codes = np.empty_like(values)
    rounded(parts, scale / unit, minimum / unit, 0, high, codes)
    if layout.codes.bits <= 4:
        fitted = [found * unit for found in scales_and_minimums(parts, high, weights)]
        other = [_as_stored(found, place) for found, place in zip(fitted, (layout.scale, layout.minimum), strict=True)]
        of_other = np.empty_like(values)
        rounded(parts, other[0] / unit, other[1] / unit, 0, high, of_other)
        lost, with_other = (
            weighted_squares(codes * (s / unit) + m / unit - parts, weights)
            for codes, s, m in ((codes, scale, minimum), (of_other, *other))
        )
        better = with_other < lost
        scale, minimum = np.where(better, other[0], scale), np.where(better, other[1], minimum)
        np.copyto(codes, of_other, where=better)
    layout.scale.write(scale[:, None], blocks)
    layout.minimum.write(minimum[:, None], blocks)
    layout.codes.write(codes.T, blocks)


def _as_stored(numbers: np.ndarray, place: Number) -> np.ndarray:
    """As they will be read."""
    return numbers.astype(place.dtype.storage).astype(np.float32)
