"""Winograd's algorithm or the direct sum: what the estimate weighs against each other."""

from __future__ import annotations

from math import prod

import pytest

from tilewright.cost.conv.winograd import Algorithm, ConvShape, choose_algorithm
from tilewright.ops.cook_toom import tile_lengths
from tilewright.target.named import parse_target

RESNET = 100 << 20  # bytes of weights


def chosen(shape: ConvShape, target: str, all_weights: int = RESNET) -> Algorithm:
    return choose_algorithm(shape, tile_lengths(shape.taps, 5.0), parse_target(target), all_weights)


@pytest.mark.parametrize(
    ("shape", "m"),
    [
        (ConvShape(1, (56, 56), (3, 3), 64, 64, 16), (4, 4)),
        (ConvShape(1, (28, 28), (3, 3), 128, 128, 16), (4, 4)),
        (ConvShape(1, (416, 416), (3, 3), 16, 32, 16), (4, 4)),
        (ConvShape(1, (1, 1), (3, 3), 512, 512, 16), ()),
        (ConvShape(1, (2, 2), (3, 3), 256, 256, 16), ()),
        (ConvShape(1, (4, 1), (3, 3), 64, 64, 16), ()),
    ],
)
def test_the_estimate_weighs_products_against_filters_and_partial_tiles(
    shape: ConvShape, m: tuple[int, ...]
) -> None:
    algorithm = chosen(shape, "zen3")
    assert algorithm.m == m, algorithm.reason


def test_filters_from_memory_ask_for_smaller_tiles() -> None:
    """Large tiles have four times the filters of the direct sum: a small image does not pay for reading them."""
    shape = ConvShape(1, (14, 14), (3, 3), 256, 256, 16)
    slow_memory = chosen(shape, "cascadelake,l2=1048576,l3=33554432")
    all_in_cache = chosen(shape, "cascadelake,l2=67108864,l3=536870912", 9 << 20)
    assert prod(slow_memory.m) < prod(all_in_cache.m) == 16
