"""Winograd's algorithm, its bands, and layouts of convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.calibration.kind import Kind, Sample, extent, f32, weights
from bench.calibration.kinds.gemm import choices, reason_or_none, yes_or_no
from tilewright.cost.conv.bands import why_tiles_are_stored
from tilewright.cost.conv.layouts import positions_as_channels, positions_over_lines
from tilewright.cost.conv.winograd import Algorithm, choose_algorithm
from tilewright.cost.conv.winograd_bands import _candidates as bands_of
from tilewright.cost.conv.winograd_bands import _tasks as tasks_of
from tilewright.cost.conv.winograd_bands import choose_band, cost
from tilewright.cost.gemm.cost_model import choose
from tilewright.cost.parallel import threads
from tilewright.ir.core import Value
from tilewright.ops import contract
from tilewright.ops import elementwise as ew


def conv(
    rng: np.random.Generator,
    taps: tuple[int, int],
    channels: tuple[int, int] = (16, 512),
    sides: tuple[int, int] = (6, 112),
    most: float = 4e8,
    stride: int = 1,
) -> Sample:
    """A convolution of whole blocks of channels with a bias and a rectifier, of 1 to 4 images."""
    while True:
        images = int(rng.choice([1, 1, 1, 4]))
        inputs, outputs, side = extent(rng, *channels, 16), extent(rng, *channels, 16), extent(rng, *sides)
        work = images * side**2 * inputs * outputs * taps[0] * taps[1] / stride**2
        if 4e6 <= work <= most:
            break
    pads = tuple(n // 2 for n in taps)

    def body(x: Value) -> Value:
        y = contract.conv(
            x,
            weights(outputs, inputs, *taps),
            pads_begin=pads,
            pads_end=pads,
            strides=(stride, stride),
        )
        return ew.max_(ew.add(y, weights(1, outputs, 1, 1)), 0.0)

    text = f"conv {taps[0]}x{taps[1]} {images}x{inputs}->{outputs} at {side}"
    return Sample(text, [f32(images, inputs, side, side)], body)


def windows(rng: np.random.Generator) -> Sample:
    taps = ((3, 3), (3, 3), (3, 3), (1, 3), (3, 1), (1, 5), (1, 7))[int(rng.integers(7))]
    return conv(rng, taps)


def squares(rng: np.random.Generator) -> Sample:
    return conv(rng, (3, 3), channels=(64, 512))


def any_convolution(rng: np.random.Generator) -> Sample:
    taps, stride = (((1, 1), 1), ((3, 3), 2), ((1, 1), 1), ((5, 5), 1))[int(rng.integers(4))]
    return conv(rng, taps, most=2e8, stride=stride)


def algorithms(shape: Any, tiles: Any, target: Any, weights: int) -> list[Algorithm]:
    return [Algorithm((), "forced"), *(Algorithm(m, "forced") for m in tiles)]


def bands(tiles: Any, target: Any) -> list[Any]:
    """Those that the model likes best, and some others with work for all threads."""
    found = list(bands_of(tiles))
    most = max(tasks_of(tiles, b) for b in found)
    found = [b for b in found if tasks_of(tiles, b) >= min(most, threads(target))]
    found.sort(key=lambda b: cost(tiles, b, target))
    rng = np.random.default_rng(len(found))
    return [*found[:6], *(found[int(k)] for k in rng.permutation(np.arange(6, len(found)))[:6])]


def grouped(rng: np.random.Generator) -> Sample:
    """A convolution with groups of a few channels over short lines."""
    groups, each, filters = (
        int(rng.choice([4, 8, 16, 32])),
        int(rng.choice([2, 3, 4, 6])),
        int(rng.integers(2, 8)),
    )
    side, kernel = extent(rng, 5, 60), int(rng.choice([3, 5]))

    def body(x: Value) -> Value:
        pads = (kernel // 2,) * 2
        w = weights(groups * filters, each, kernel, kernel)
        return contract.conv(x, w, pads_begin=pads, pads_end=pads, groups=groups)

    text = f"conv {kernel}x{kernel} {groups} groups of {each}->{filters} at {side}"
    return Sample(text, [f32(1, groups * each, side, side)], body)


def one_filter(rng: np.random.Generator) -> Sample:
    """A long filter over a line."""
    channels, taps, length = int(rng.choice([1, 2, 4, 16])), extent(rng, 15, 200), extent(rng, 2000, 60000)
    stride = int(rng.choice([1, 1, 2, 4]))

    def body(x: Value) -> Value:
        return contract.conv(x, weights(1, channels, taps), strides=(stride,))

    text = f"conv {channels}->1 of {taps} taps, stride {stride}, over {length}"
    return Sample(text, [f32(1, channels, length)], body)


KINDS = (
    Kind("tile and blocks of convolutions", choose, choices, any_convolution),
    Kind("Winograd or direct", choose_algorithm, algorithms, windows),
    Kind("bands of Winograd", choose_band, bands, squares, threads=2),
    Kind("tiles of Winograd stored", why_tiles_are_stored, reason_or_none, squares),
    Kind("groups over lines", positions_over_lines, yes_or_no, grouped),
    Kind("positions as channels", positions_as_channels, yes_or_no, one_filter),
)
