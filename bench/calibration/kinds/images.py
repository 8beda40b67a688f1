"""Windows of images: register tiles, bands of what they read, and results that leave their blocks of channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.calibration.kind import Kind, Sample, extent, f32, weights
from bench.calibration.kinds.gemm import reason_or_none
from tilewright.cost.conv.bands import lines_of_windows, why_blocks_are_left_apart, why_windows_are_apart
from tilewright.cost.conv.window_tile import MOST_COLUMNS, vectors_of_tile
from tilewright.ir.core import Value
from tilewright.ops import contract, pool
from tilewright.ops import elementwise as ew


def depthwise(rng: np.random.Generator) -> Sample:
    channels, side = extent(rng, 16, 512, 16), extent(rng, 7, 112)
    kernel, stride = int(rng.choice([3, 3, 5, 7])), int(rng.choice([1, 1, 2]))
    while channels * side * side > 2_000_000:
        side = side * 2 // 3

    def body(x: Value) -> Value:
        y = contract.conv(
            x, weights(channels, 1, kernel, kernel), groups=channels, strides=(stride,) * 2,
            pads_begin=(kernel // 2,) * 2, pads_end=(kernel // 2,) * 2,
        )  # fmt: skip
        return ew.max_(ew.add(y, weights(1, channels, 1, 1)), 0.0)

    text = f"depthwise {kernel}x{kernel} of {channels} at {side}, stride {stride}"
    return Sample(text, [f32(1, channels, side, side)], body)


def tiles(lanes: int, element: int, count: int | None, along_line: bool, target: Any) -> list[int]:
    most = min(MOST_COLUMNS, count or MOST_COLUMNS)
    return sorted({n for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24) if n <= most} | {most})


def expanded(rng: np.random.Generator) -> Sample:
    """A pointwise or first convolution, and windows of its result."""
    inputs, wide, side = extent(rng, 8, 64, 8), extent(rng, 32, 256, 16), extent(rng, 20, 150)
    kernel, stride = int(rng.choice([3, 3, 5])), int(rng.choice([1, 2]))
    pooled, first = bool(rng.integers(4) == 0), int(rng.choice([1, 1, 3]))
    while inputs * wide * side * side * first**2 > 300_000_000:
        side = side * 2 // 3

    def body(x: Value) -> Value:
        y = contract.conv(
            x, weights(wide, inputs, first, first), pads_begin=(first // 2,) * 2, pads_end=(first // 2,) * 2
        )
        y = ew.max_(ew.add(y, weights(1, wide, 1, 1)), 0.0)
        pads = {"pads_begin": (kernel // 2,) * 2, "pads_end": (kernel // 2,) * 2, "strides": (stride,) * 2}
        if pooled:
            return pool.max_pool(y, kernel=(kernel, kernel), **pads)
        z = contract.conv(y, weights(wide, 1, kernel, kernel), groups=wide, **pads)
        return ew.max_(ew.add(z, weights(1, wide, 1, 1)), 0.0)

    what = "max pooling" if pooled else "depthwise"
    text = f"conv {first}x{first} {inputs}->{wide} at {side}, {what} {kernel}x{kernel} stride {stride}"
    return Sample(text, [f32(1, inputs, side, side)], body)


def lines(image: Any, target: Any) -> list[int]:
    """Heights of bands of equal heights."""
    return sorted(
        {-(-image.rows // bands) for bands in (1, 2, 3, 4, 5, 6, 8, 10, 13, 16, 20) if bands <= image.rows}
    )


def leaving(rng: np.random.Generator) -> Sample:
    """A convolution whose result leaves the network."""
    images, inputs, wide = int(rng.choice([1, 4, 8])), int(rng.choice([3, 16, 32, 64])), extent(rng, 16, 128)
    side, kernel = extent(rng, 30, 250), int(rng.choice([1, 3]))
    while images * inputs * wide * side * side * kernel**2 > 500_000_000:
        side = side * 2 // 3

    def body(x: Value) -> Value:
        pads = (kernel // 2,) * 2
        y = contract.conv(
            x, weights(wide, inputs, kernel, kernel), pads_begin=pads, pads_end=pads, strides=(2, 2)
        )
        return ew.max_(ew.add(y, weights(1, wide, 1, 1)), 0.0)

    return Sample(
        f"conv {kernel}x{kernel} {images}x{inputs}->{wide} at {side} stride 2",
        [f32(images, inputs, side, side)],
        body,
    )


KINDS = (
    Kind("register tile of windows", vectors_of_tile, tiles, depthwise),
    Kind("windows by bands", why_windows_are_apart, reason_or_none, expanded),
    Kind("lines of a band", lines_of_windows, lines, expanded, threads=2),
    Kind("leaving blocks by bands", why_blocks_are_left_apart, reason_or_none, leaving),
)
