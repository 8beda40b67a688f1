"""Register tiles, blocks, streams, panels and the order of loops of matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.calibration.kind import Kind, Sample, extent, f32, weights
from tilewright.cost.gemm.cost_model import Choice, assumed, candidates, choose, cycles, why_not_transposed
from tilewright.cost.gemm.panels import copies_columns, is_prefetched, streams_of, why_lines_are_not_written
from tilewright.ir.core import Value
from tilewright.ops import contract
from tilewright.ops import elementwise as ew

MOST = 12
"""Answers that the model likes best; of the others so many are drawn."""
SOME = 4


def choices(shape: Any, target: Any) -> list[Choice]:
    """Those of the model's candidates that it likes best, and some others."""
    known, found = assumed(shape), candidates(shape, target)
    found.sort(key=lambda d: cycles(known, d, target))
    rng = np.random.default_rng(len(found))
    rest = [found[int(k)] for k in rng.permutation(np.arange(MOST, len(found)))[:SOME]]
    return [Choice(d, 0.0, len(found), ()) for d in (*found[:MOST], *rest)]


def _product(rows: int, depth: int, columns: int) -> Sample:
    def body(x: Value) -> Value:
        return ew.add(contract.matmul(x, weights(depth, columns)), weights(columns))

    return Sample(f"matmul {rows}x{depth}x{columns}", [f32(rows, depth)], body)


def any_product(rng: np.random.Generator) -> Sample:
    while True:
        unit = int(rng.choice([1, 64]))
        rows = extent(rng, 1, 1024)
        depth, columns = extent(rng, 64, 3000, unit), extent(rng, 24, 3000, unit)
        if 2e6 <= rows * depth * columns <= 3e8:
            return _product(rows, depth, columns)


def few_rows(rng: np.random.Generator) -> Sample:
    """Of one row or two, with more weights than L2 holds: some come from L3, some from memory as those of a decoder."""
    while True:
        depth, columns = extent(rng, 256, 5000, 16), extent(rng, 512, 8000, 16)
        if depth * columns >= 1_000_000:
            return _product(int(rng.integers(1, 3)), depth, columns)


def some_rows(rng: np.random.Generator) -> Sample:
    return _product(extent(rng, 3, 200), extent(rng, 256, 3000, 16), extent(rng, 256, 4000, 16))


def constant_rows(rng: np.random.Generator) -> Sample:
    while True:
        rows, depth, columns = extent(rng, 32, 2048, 16), extent(rng, 32, 2048), extent(rng, 16, 3200)
        if 2e6 <= rows * depth * columns <= 3e8:
            break

    def body(x: Value) -> Value:
        return ew.add(contract.matmul(weights(rows, depth), x), weights(rows, 1))

    return Sample(f"constant {rows}x{depth} by {depth}x{columns}", [f32(depth, columns)], body)


def two_inputs(rng: np.random.Generator) -> Sample:
    """A product of two tensors, neither of which is packed ahead of time."""
    rows, depth = extent(rng, 8, 512), extent(rng, 32, 1024)
    columns, transposed = extent(rng, 32, 1024, int(rng.choice([1, 16]))), bool(rng.integers(2))
    shape = (columns, depth) if transposed else (depth, columns)

    def body(x: Value, y: Value) -> Value:
        return ew.max_(contract.matmul(x, y, transpose_b=transposed), 0.0)

    text = f"{rows}x{depth} by {columns if transposed else depth}x{depth if transposed else columns}"
    return Sample(text + (" transposed" if transposed else ""), [f32(rows, depth), f32(*shape)], body)


def read_in_panels(rng: np.random.Generator) -> Sample:
    """A product of two tensors, or filters over a padded line, whose last vectors have conditions in some steps."""
    if rng.integers(3):
        return two_inputs(rng)
    channels, filters, taps = int(rng.choice([1, 2, 4, 16])), extent(rng, 2, 48), int(rng.choice([3, 5, 9, 15]))
    length = extent(rng, 500, 20000)

    def body(x: Value) -> Value:
        pads = (taps // 2,)
        return contract.conv(x, weights(filters, channels, taps), pads_begin=pads, pads_end=pads)

    text = f"conv {channels}->{filters} of {taps} taps over {length}"
    return Sample(text, [f32(1, channels, length)], body)


def plain_convolution(rng: np.random.Generator) -> Sample:
    """Of images whose channels are not blocked: few channels in, plain result."""
    channels, filters = int(rng.integers(1, 5)), extent(rng, 4, 32)
    side, kernel = extent(rng, 32, 320), int(rng.choice([3, 5, 7]))

    def body(x: Value) -> Value:
        return contract.conv(x, weights(filters, channels, kernel, kernel))

    text = f"conv {channels}->{filters} {kernel}x{kernel} at {side}x{side}"
    return Sample(text, [f32(1, channels, side, side)], body)


def yes_or_no(*_: Any, **__: Any) -> Sequence[bool]:
    return (True, False)


def reason_or_none(*_: Any, **__: Any) -> Sequence[str]:
    return ("", "forced")


def divisors_of_columns(tile: Any, element: int, target: Any) -> list[int]:
    return [d for d in range(1, tile.columns + 1) if tile.columns % d == 0]


KINDS = (
    Kind("tile and blocks", choose, choices, any_product),
    Kind("vectors along constant rows", why_not_transposed, reason_or_none, constant_rows),
    Kind("streams of a panel", streams_of, divisors_of_columns, few_rows),
    Kind("prefetching panels", is_prefetched, yes_or_no, some_rows),
    Kind("packing panels", copies_columns, yes_or_no, read_in_panels),
    Kind("whole lines of a result", why_lines_are_not_written, reason_or_none, plain_convolution),
)
