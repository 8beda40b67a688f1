"""Attention and recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.calibration.kind import Kind, Sample, extent, f32, weights
from bench.calibration.kinds.gemm import reason_or_none, yes_or_no
from tilewright.cost.attention import MOST_ROWS, rows_of_block
from tilewright.cost.recurrence import StepTile, reads_in_turns, step_tile, why_entries_are_shared
from tilewright.ir.core import Value
from tilewright.ops import contract, recurrent
from tilewright.ops import elementwise as ew
from tilewright.ops.norm import softmax


def attention(rng: np.random.Generator) -> Sample:
    heads, rows, width = (
        int(rng.choice([1, 4, 8, 12])),
        extent(rng, 12, 600),
        int(rng.choice([32, 64, 64, 128])),
    )
    keys = rows if rng.integers(2) else extent(rng, 32, 600)

    def body(q: Value, k: Value, v: Value) -> Value:
        scores = ew.mul(contract.matmul(q, k, transpose_b=True), width**-0.5)
        return contract.matmul(softmax(scores), v)

    text = f"attention of {heads} heads, {rows} rows, {keys} keys of {width}"
    return Sample(text, [f32(heads, rows, width), f32(heads, keys, width), f32(heads, keys, width)], body)


def blocks(rows: int | None, most: int) -> list[int]:
    """Rows of a block, up to twice of what L2 is said to hold."""
    top = min(rows or 2 * MOST_ROWS, 2 * MOST_ROWS)
    return sorted({n for n in (8, 12, 16, 24, 32, 48, 64, 72, 96, 144) if n <= top})


def lstm(rng: np.random.Generator) -> Sample:
    return _lstm(extent(rng, 8, 80), extent(rng, 1, 32), extent(rng, 32, 640))


def lstm_of_batches(rng: np.random.Generator) -> Sample:
    """With few weights and entries enough for several groups, so that both ways give all threads work."""
    return _lstm(extent(rng, 8, 80), extent(rng, 2, 64), extent(rng, 24, 320))


def _lstm(steps: int, batch: int, units: int) -> Sample:
    while steps * batch * units * units * 4 > 1_000_000_000:
        steps = max(4, steps // 2)

    def body(gates: Value, h: Value, c: Value) -> Value:
        zeros = weights(3 * units)
        return recurrent.lstm(gates, weights(4, units, units), zeros, h, c)[0]

    shapes = [f32(steps, batch, 4 * units), f32(batch, units), f32(batch, units)]
    return Sample(f"lstm of {steps} steps, batch {batch}, {units} units", shapes, body)


def step_tiles(entries: int, gates: int, units: int, target: Any) -> list[Any]:
    """Tiles of as many entries as registers allow for one, two and four vectors of units, and of fewer."""
    found = []
    for vectors in (1, 2, 4):
        for rows in (1, 2, 3, 4, 6, 8):
            fits = rows * gates * vectors + rows + vectors <= target.vector_registers
            if rows <= entries and fits and vectors * target.f32_lanes <= 64:
                found.append(StepTile(rows, vectors * target.f32_lanes))
    return found


KINDS = (
    Kind("rows of attention", rows_of_block, blocks, attention),
    Kind("register tile of a step", step_tile, step_tiles, lstm),
    Kind("weights read in turns", reads_in_turns, yes_or_no, lstm),
    Kind("threads share steps", why_entries_are_shared, reason_or_none, lstm_of_batches, threads=2),
)
