"""Mixtures of experts: rows that go through the same networks lie together, and no other networks are read.

    for each token and each expert that it takes: y += weight * expert(x)

Pairs of a token and an expert are put in the order of experts and cut into tiles of a few rows that are all for one
expert, so that a layer is a product of each tile by the matrix that is picked for it:

    rows [tiles, height, width] @ pick(stack [experts, width, out], expert of the tile)

Tiles are as high as there are rows for an expert on average, up to `MOST_ROWS`. How many there are at most follows from
the sizes alone; what is left of a tile, and tiles that are left, hold the first token and are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, ceildiv, maximum, minimum
from tilewright.ops import elementwise as ew
from tilewright.ops.index import gather, scatter_elements
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.scan import cumsum
from tilewright.ops.source import dim_value, full, iota
from tilewright.ops.view import reshape, shape_of

MOST_ROWS = 8
"""Rows of a tile: as many as one pass over narrow weights serves (measured: tiles of 32 rows take twice as long)."""

Layers = Callable[[Value, Value], Value]
"""[tiles, height, width] of rows and i64[tiles] of their experts to [tiles, height, out]."""


def mixed_experts(x: Value, chosen: Value, weights: Value, experts: int, layers: Layers) -> Value:
    """[tokens, out]: of each token of x [tokens, width] the sum of what `layers` make of it for the experts `chosen`
    i64[tokens, each], times their weights [tokens, each]. Experts are numbers from 0 on, as of `topk`: those below 0
    do not count from the end, and give sums of other tokens."""
    tokens, width = shape_of(x)
    tiles = _Tiles.of(chosen, tokens, experts)
    rows = gather(x, tiles.tokens, axis=0, in_range=True)
    found = layers(reshape(rows, shape=(tiles.count, tiles.height, width)), tiles.experts)
    flat = reshape(found, shape=(tiles.count * tiles.height, shape_of(found)[2]))
    each = shape_of(chosen)[1]
    taken = gather(flat, reshape(tiles.places, shape=(tokens, each)), axis=0, in_range=True)
    return reduce_sum(ew.mul(taken, reshape(weights, shape=(tokens, each, 1))), axes=(1,), keepdims=False)


@dataclass(frozen=True)
class _Tiles:
    """`count` tiles of `height` rows: the expert of each tile, the token of each row, and the row of each pair of a
    token and an expert."""

    count: Sym
    height: Sym
    experts: Value
    tokens: Value
    places: Value

    @classmethod
    def of(cls, chosen: Value, tokens: Sym, experts: int) -> _Tiles:
        each = shape_of(chosen)[1]
        pairs = tokens * each
        height = minimum(maximum(ceildiv(pairs, experts), 1), MOST_ROWS)
        most = (pairs + minimum(pairs, experts) * (height - 1)) // height  # each expert leaves less than a tile
        count = maximum(most, 1)
        flat = reshape(chosen, shape=(pairs,))
        takes = ew.cast(ew.eq(reshape(flat, shape=(pairs, 1)), iota(shape=(experts,), axis=0)), dtype=dt.i64)
        before = cumsum(takes, axis=0, exclusive=True)
        own = reduce_sum(ew.mul(before, takes), axes=(1,), keepdims=False)
        tall = dim_value(height)
        filled = ew.div(ew.add(reduce_sum(takes, axes=(0,), keepdims=False), dim_value(height - 1)), tall)
        ends = cumsum(filled, axis=0)
        first = gather(ew.sub(ends, filled), flat, axis=0)
        places = ew.add(ew.mul(first, tall), own)
        done = ew.le(reshape(ends, shape=(1, experts)), reshape(iota(shape=(count,), axis=0), shape=(count, 1)))
        of_tile = reduce_sum(ew.cast(done, dtype=dt.i64), axes=(1,), keepdims=False)
        last = full(value=experts - 1, dtype=dt.i64, shape=())
        token = ew.div(iota(shape=(pairs,), axis=0), dim_value(each))
        none = full(value=0, dtype=dt.i64, shape=(count * height,))
        rows = scatter_elements(none, places, token, axis=0)
        return cls(count, height, ew.min_(of_tile, last), rows, places)
