"""Winograd's algorithm or the direct sum, for one convolution.

The estimate counts cycles of one core: multiply-adds at a share of the peak, filters from where they are in the course
of the whole model, and the traffic of transformed data through the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean

from tilewright.cost.core import Source, move_cycles, multiply_cycles, source_of, transform_cycles
from tilewright.target.target import Target

GAIN = 0.9
"""Share of the direct convolution's time up to which Winograd's algorithm is taken: a smaller gain is not worth other
rounding errors and a longer compilation."""

ELEMENT = 4
"""Bytes of an element."""

@dataclass(frozen=True, slots=True)
class ConvShape:
    """What decides the time of a convolution: images (batch), extents of the results and taps of the filters along each
    spatial axis, channels (filled up to whole blocks of `block`)."""

    images: int
    space: tuple[int, ...]
    taps: tuple[int, ...]
    inputs: int
    outputs: int
    block: int


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The algorithm for one convolution: the results of a tile along each axis (none for the direct sum), and why."""

    m: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return f"tiles of {extents_text(self.m)}" if self.m else "direct"


def direct_cycles(shape: ConvShape, filters_from: Source, target: Target) -> float:
    """Cycles of the direct convolution and of its copy of the data with padding."""
    positions = shape.images * prod(shape.space)
    pairs = shape.inputs * shape.outputs
    return _cycles(
        prod(shape.taps) * positions * pairs,
        prod(shape.taps) * pairs,
        positions * (shape.inputs // shape.block),
        positions * (shape.inputs // shape.block),
        filters_from,
        target,
    )


def winograd_cycles(shape: ConvShape, m: Sequence[int], filters_from: Source, target: Target) -> float:
    """Cycles of the convolution by tiles of `m` results along each axis."""
    points = points_of(m, shape.taps)
    tiles = shape.images * prod(-(-extent // n) for extent, n in zip(shape.space, m, strict=True))
    pairs, blocks = shape.inputs * shape.outputs, (shape.inputs + shape.outputs) // shape.block
    return _cycles(
        points * tiles * pairs,
        points * pairs,
        points * tiles * blocks,
        shape.images * prod(shape.space) * blocks,
        filters_from,
        target,
    )


def _cycles(
    products: float, filters: float, transformed: float, plain: float, filters_from: Source, target: Target
) -> float:
    """Of so many products, elements of filters, and blocks of channels at one position of the transformed (or padded)
    images, and of the images themselves."""
    products_and_filters = multiply_cycles(products, ELEMENT, target) + move_cycles(
        filters * ELEMENT, filters_from, target
    )
    return products_and_filters + transform_cycles(transformed, plain, target)


def points_of(m: Sequence[int], taps: Sequence[int]) -> int:
    """Products of a tile of `m` results, for one pair of channels."""
    return prod(a + b - 1 for a, b in zip(m, taps, strict=True))


def choose_algorithm(
    shape: ConvShape, tiles: Sequence[tuple[int, ...]], target: Target, all_weights: int
) -> Algorithm:
    """The algorithm with the least estimated time, in a model with weights of `all_weights` bytes, among the direct sum
    and Winograd's with one of the `tiles`, which keep rounding errors small."""
    return choose_for_images([shape], tiles, target, all_weights)


def choose_for_images(
    shapes: Sequence[ConvShape], tiles: Sequence[tuple[int, ...]], target: Target, all_weights: int
) -> Algorithm:
    """The algorithm of a convolution of images of several sizes, which all count the same."""
    taps = shapes[0].taps
    if not tiles:
        return Algorithm((), f"no tiles of filters of {extents_text(taps)} keep rounding errors small")
    share, m = min((fmean(_share_of_direct(o, m, target, all_weights) for o in shapes), m) for m in tiles)
    name = f"F({extents_text(m)}, {extents_text(taps)})"
    reason = f"{name} is estimated at {share:.2f} of the direct convolution's time"
    return Algorithm(m if share <= GAIN else (), reason)


def share_of_fastest(
    shapes: Sequence[ConvShape], tiles: Sequence[tuple[int, ...]], target: Target, all_weights: int
) -> float:
    """The time of the algorithm that `choose_for_images` takes, in that of the direct sum."""
    shares = (fmean(_share_of_direct(o, m, target, all_weights) for o in shapes) for m in tiles)
    return min((share for share in shares if share <= GAIN), default=1.0)


def cycles_saved(
    shapes: Sequence[ConvShape], m: Sequence[int], target: Target, all_weights: int
) -> float:
    """Cycles that tiles of `m` results save beside the direct convolution."""
    return fmean(
        (1 - _share_of_direct(shape, m, target, all_weights))
        * direct_cycles(shape, source_of(max(_bytes_of_filters(shape), all_weights), target), target)
        for shape in shapes
    )


def _bytes_of_filters(shape: ConvShape) -> int:
    return prod(shape.taps) * shape.inputs * shape.outputs * ELEMENT


def _share_of_direct(shape: ConvShape, m: Sequence[int], target: Target, all_weights: int) -> float:
    """The time of tiles of `m` results, in that of the direct convolution."""
    pairs = shape.inputs * shape.outputs * ELEMENT
    direct, transformed = (
        source_of(max(n * pairs, all_weights), target) for n in (prod(shape.taps), points_of(m, shape.taps))
    )
    return winograd_cycles(shape, m, transformed, target) / direct_cycles(shape, direct, target)


def extents_text(lengths: Sequence[int]) -> str:
    """`4x4`."""
    return "x".join(map(str, lengths))
