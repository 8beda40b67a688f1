"""Elementwise work, rows of reductions, and data movement."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.calibration.kind import Kind, Sample, extent, f32, weights
from bench.calibration.kinds.gemm import yes_or_no
from tilewright.cost.data_movement import block_of_squares, lines_come_late, passes_caches
from tilewright.cost.elementwise import chunk_of_line, lanes_of_polynomials, lanes_of_sum
from tilewright.cost.parallel import enough_iterations
from tilewright.cost.recompute import may_be_repeated
from tilewright.cost.rows import interleaved_rows, is_prefetched
from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import norm, reduce, view

ACTIVATIONS = (ew.tanh, ew.sigmoid, ew.exp, ew.erf)


def line(rng: np.random.Generator) -> Sample:
    n, op = extent(rng, 20_000, 4_000_000), int(rng.integers(3))

    def body(x: Value) -> Value:
        return ew.max_(x, 0.0) if op == 0 else ew.tanh(x) if op == 1 else ew.mul(ew.sigmoid(x), x)

    return Sample(f"{('relu', 'tanh', 'silu')[op]} of {n}", [f32(n)], body)


def polynomials(rng: np.random.Generator) -> Sample:
    rows, columns, op = extent(rng, 16, 1024), extent(rng, 48, 2048), int(rng.integers(len(ACTIVATIONS)))

    def body(x: Value) -> Value:
        return ew.mul(ACTIVATIONS[op](view.transpose(x, perm=(0, 1))), weights(columns))

    return Sample(f"{ACTIVATIONS[op].name} of {rows}x{columns}", [f32(rows, columns)], body)


def lanes(given: int, element: int, length: int | None, target: Any) -> list[int]:
    return [n for n in (given, 2 * given, 4 * given) if n <= 64 and (length is None or n <= length)]


def rows_of(rng: np.random.Generator) -> Sample:
    """A softmax, a norm, or a sum of rows."""
    op, rows, columns = int(rng.integers(3)), extent(rng, 64, 8192), extent(rng, 24, 3000)
    while rows * columns > 6_000_000:
        rows //= 2

    def body(x: Value) -> Value:
        if op == 0:
            return norm.softmax(x)
        if op == 1:
            return norm.layer_norm(x, weights(columns), weights(columns), axis=-1, epsilon=1e-5)
        return reduce.reduce_sum(ew.mul(x, x), axes=(1,), keepdims=False)

    return Sample(
        f"{('softmax', 'layer norm', 'sum of squares')[op]} of {rows}x{columns}", [f32(rows, columns)], body
    )


def transposed(rng: np.random.Generator) -> Sample:
    images, rows, columns = int(rng.choice([1, 1, 8])), extent(rng, 64, 2048), extent(rng, 64, 4096)
    while images * rows * columns > 8_000_000:
        rows = rows * 2 // 3

    def body(x: Value) -> Value:
        return ew.max_(view.transpose(x, perm=(0, 2, 1)), 0.0)

    return Sample(f"transpose of {images}x{rows}x{columns}", [f32(images, rows, columns)], body)


def large(rng: np.random.Generator) -> Sample:
    """Elementwise work on more than the caches hold, or nearly so."""
    n = extent(rng, 2_000_000, 24_000_000, 16)
    return Sample(f"relu of {n}", [f32(n // 16, 16)], lambda x: ew.max_(x, 0.0))


def several(rng: np.random.Generator) -> Sample:
    """Elementwise work that two others read, as tensors of their own shapes."""
    rows, columns, op = extent(rng, 32, 2048), extent(rng, 64, 2048), int(rng.integers(3))
    count = int(rng.integers(2, 5))

    def body(x: Value) -> list[Value]:
        y = ew.add(ew.mul(x, weights(columns)), weights(columns))
        y = (ew.div(y, weights(rows, 1)), ew.max_(y, 0.0), ew.exp(y))[op]
        return [ew.mul(y, float(k)) for k in range(2, 2 + count)]

    return Sample(f"work {op} read {count} times of {rows}x{columns}", [f32(rows, columns)], body)


def batches(rng: np.random.Generator) -> Sample:
    """Images with few entries in each of their outer axes, so that loops have to be joined for threads."""
    outer, middle, inner = extent(rng, 1, 12), extent(rng, 2, 64), extent(rng, 16, 4096)
    while outer * middle * inner < 50_000:
        inner *= 2

    def body(x: Value) -> Value:
        return norm.softmax(x) if inner < 1024 else ew.mul(ew.tanh(x), weights(middle, 1))

    return Sample(f"work on {outer}x{middle}x{inner}", [f32(outer, middle, inner)], body)


KINDS = (
    Kind("chunk of a line", chunk_of_line, lambda n: [0, 1024, 4096, 16384, 65536], line),
    Kind("lanes of polynomials", lanes_of_polynomials, lanes, polynomials),
    Kind("vectors of a sum", lanes_of_sum, lambda given, jammed: [given, 2 * given, 4 * given], rows_of),
    Kind("rows interleaved", interleaved_rows, lambda *_: [1, 2, 4], rows_of),
    Kind("rows prefetched", is_prefetched, yes_or_no, rows_of),
    Kind("blocks of squares", block_of_squares, lambda n, side: [0, 256, 512, 1024, 2048], transposed),
    Kind("lines of squares prefetched", lines_come_late, yes_or_no, transposed),
    Kind("stores past the caches", passes_caches, lambda *_: [sym(1), sym(0)], large),
    Kind("recompute or store", may_be_repeated, yes_or_no, several),
    Kind("iterations for threads", enough_iterations, lambda *_, **__: [2, 8, 32, 128], batches, threads=2),
)
