"""Small networks of blocks joined at random, on images, series and sequences."""

from __future__ import annotations

from collections.abc import Sequence

from bench.cliffs import blocks
from bench.cliffs.blocks import Block
from bench.cliffs.draft import Draft, Value
from bench.cliffs.sizes import batch, between, edges, width

BLOCKS = (2, 3, 4, 6)


def of_images(d: Draft) -> list[Value]:
    x = d.input(batch(d.rng), width(d.rng, 16, 256), *edges(d.rng, 2, 96))
    y = _joined(d, x, blocks.IMAGES)
    return [_head(d, y)] if d.rng.random() < 0.3 else [y]


def of_series(d: Draft) -> list[Value]:
    return [_joined(d, d.input(batch(d.rng), width(d.rng, 8, 256), between(d.rng, 16, 4000)), blocks.SERIES)]


def of_volumes(d: Draft) -> list[Value]:
    x = d.input(1, width(d.rng, 8, 64), *edges(d.rng, 3, 24))
    kinds = (blocks.plain_conv, blocks.depthwise, blocks.grouped_conv, blocks.transposed_conv, blocks.pooling)
    return [_joined(d, x, kinds)]


def of_sequences(d: Draft) -> list[Value]:
    x = d.input(batch(d.rng), between(d.rng, 1, 400), width(d.rng, 32, 512))
    return [_joined(d, x, blocks.SEQUENCES)]


def _joined(d: Draft, x: Value, kinds: Sequence[Block]) -> Value:
    for _ in range(d.rng.choice(BLOCKS)):
        x = d.rng.choice(kinds)(d, x)
    return x


def _head(d: Draft, x: Value) -> Value:
    pooled = d.node("Flatten", d.node("GlobalAveragePool", x))
    return blocks.linear(d, pooled, width(d.rng, 10, 1000))


NETWORKS = (of_images, of_images, of_images, of_sequences, of_sequences, of_series, of_volumes)
