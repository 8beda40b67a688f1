"""Inputs of single operators: tensors and images of any rank."""

from __future__ import annotations

from bench.cliffs.draft import Draft, Value
from bench.cliffs.sizes import batch, between, edges, width


def tensor(d: Draft, least: int = 1, most: int = 4, dtype: str = "float32") -> Value:
    """Of some rank, with a thousand to a million elements where the rank allows."""
    rank, left = d.rng.randint(least, most), between(d.rng, 1000, 1 << 20)
    shape = []
    for axis in range(rank):
        size = left if axis == rank - 1 else between(d.rng, 1, max(1, round(left ** (2 / (rank - axis)))))
        shape.append(min(size, 1 << 20))
        left = max(1, left // size)
    d.rng.shuffle(shape)
    return d.input(*shape, dtype=dtype)


def axis_of(d: Draft, x: Value) -> int:
    return d.rng.randrange(len(x.shape))


def image(d: Draft, rank: int | None = None, most: int = 112) -> Value:
    rank = d.rng.choice((1, 2, 2, 2, 3)) if rank is None else rank
    return d.input(batch(d.rng), width(d.rng, 3, 256), *edges(d.rng, rank, most if rank < 3 else 24))
