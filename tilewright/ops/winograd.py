"""Convolutions of stride 1 by fewer products: transforms of tiles of data, products, and their inverse.

All data is in blocked channels, of images or of lines. Along an axis with r taps, a tile of m results needs m + r - 1
elements of data and as many products, in place of m * r; an axis with one tap has tiles of one result. `points` below
counts the products of a tile for a pair of channels, and `tiles` the tiles of an image, row by row.

A number of the data reaches all results of its tile, and cancels in those that do not read it but for roundings: those
of an infinity, NaN or very large number would spoil them. Tiles with a number beyond `LARGEST` are marked by NaN in
their transform, and their results are the direct sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product as product_of
from math import prod
from operator import add

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, ceildiv, sym
from tilewright.ir.types import product
from tilewright.ops.contract import widened_product
from tilewright.ops.cook_toom import Interpolation, Row, interpolation
from tilewright.ops.define import Compute, Replacement, compute, compute_tiles, primitive, traced_again
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, require_equal_dim, require_rank, require_same_dtype
from tilewright.ops.window import Window

LARGEST = 2.0**12
"""Where the squares of a channel's data in a tile add up to more than the square of this, the tile is out of range."""

SQUARES_AT_ONCE = 2
"""Sums of squares that are computed independently of each other."""

PRODUCT_AT_ONCE = 1 << 18
"""Multiplications of one product of filters with the transform, at most. Their float64 form stays in the cache, and
OpenBLAS gives so few to one thread: for such thin products its threads wait for each other twenty times as long as they
compute."""


def tile_counts(space: Sequence[Sym], m: Sequence[int]) -> tuple[Sym, ...]:
    """Tiles along each axis of an image of results."""
    return tuple(ceildiv(d, n) for d, n in zip(space, m, strict=True))


@primitive
def winograd_input(
    x: Array,
    *,
    m: Sequence[int],
    taps: Sequence[int],
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
) -> Compute:
    """The transformed tiles of blocked x [n, c / b, *space, b], padded with zeros: [n, c / b, points, tiles, b].

    The first point of a tile out of range is NaN.
    """
    require_rank(x, len(m) + 3, "the data")
    rules = _rules(m, taps)
    sizes = [rule.size for rule in rules]
    window = Window(x.shape[2:-1], taps, (), pads_begin, pads_end, ())
    counts = tile_counts(window.counts, m)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> list[Scalar]:
        n, cb, _, tile, lane = i
        corner = [at * rule.m - p for at, rule, p in zip(_position(tile, counts), rules, window.before, strict=True)]
        places = [_places(*axis) for axis in zip(corner, window.sizes, rules, strict=True)]

        squares: list[Scalar] = []

        def element(at: tuple[int, ...]) -> Scalar:  # squared while it is in a register
            loaded = _padded(x, (n, cb), places, at, lane)
            _add_square(squares, loaded)
            return loaded

        first, *others = _along_axes(t, _interpolated, rules, sizes, element)
        in_range = reduce(add, squares) <= LARGEST**2
        return [t.select(in_range, first, t.const(math.nan, x.dtype)), *others]

    points = prod(sizes)
    shape = [x.shape[0], x.shape[1], sym(points), product(counts), x.shape[-1]]
    return compute_tiles([x], shape, (1, 1, points, 1, 1), body)


def _rules(m: Sequence[int], taps: Sequence[int]) -> list[Interpolation]:
    return [interpolation(a, b) for a, b in zip(m, taps, strict=True)]


def _position(tile: Sym, counts: Sequence[Sym]) -> list[Sym]:
    """The position of a tile along each axis."""
    position: list[Sym] = []
    for count in reversed(counts[1:]):
        position.insert(0, tile % count)
        tile = tile // count
    return [tile, *position]


def _places(first: Sym, extent: Sym, rule: Interpolation) -> list[tuple[Sym, tuple[Sym, Sym]]]:
    """The positions of a tile along one axis, and the conditions for them to be in the image: the last tiles reach
    beyond its padding too."""
    return [(first + k, (s.ge0(first + k), s.lt(first + k, extent))) for k in range(rule.size)]


def _padded(
    x: Array,
    image: tuple[Sym, Sym],
    places: Sequence[Sequence[tuple[Sym, tuple[Sym, Sym]]]],
    at: tuple[int, ...],
    lane: Sym,
) -> Scalar:
    """Element `at` of a tile, at the `places` along each axis; 0 in the padding."""
    found = [axis[k] for axis, k in zip(places, at, strict=True)]
    inside = [condition for _, conditions in found for condition in conditions]
    return x.load((*image, *(place for place, _ in found), lane), inside)


def _add_square(sums: list[Scalar], x: Scalar) -> None:
    """Add the square of x to one of several sums, which do not wait for each other: the one that waits longest."""
    sums.append(sums.pop(0) + x * x if len(sums) == SQUARES_AT_ONCE else x * x)


def _along_axes(
    t: ScalarBuilder,
    transform: Callable[[ScalarBuilder, Interpolation, Sequence[Scalar]], list[Scalar]],
    rules: Sequence[Interpolation],
    lengths: Sequence[int],
    element: Callable[[tuple[int, ...]], Scalar],
) -> list[Scalar]:
    """A one-dimensional transform along each axis in turn of a tile of `lengths`, whose elements `element` gives: the
    result row by row."""
    sizes = list(lengths)
    for axis, rule in enumerate(rules):
        found: dict[tuple[int, ...], Scalar] = {}
        for at in product_of(*(range(n) for k, n in enumerate(sizes) if k != axis)):
            before, after = at[:axis], at[axis:]
            line = transform(t, rule, [element((*before, k, *after)) for k in range(sizes[axis])])
            found.update({(*before, k, *after): v for k, v in enumerate(line)})
        sizes[axis] = len(line)
        element = found.__getitem__
    return [element(at) for at in product_of(*map(range, sizes))]


@primitive
def winograd_product(v: Array, u: Array) -> Compute:
    """Sums over channels for each point: v [n, c / b, points, tiles, b], u [points, o, c] -> [n, o / b, points,
    tiles, b]."""
    require_same_dtype(v, u)
    require_rank(v, 5, "the transformed data")
    require_rank(u, 3, "the transformed filters")
    block = v.shape[4]
    require_equal_dim(u.shape[0], v.shape[2], "the points of the filters and of the data")
    require_equal_dim(u.shape[2], v.shape[1] * block, "the channels of the filters and of the data")
    require_equal_dim(
        u.shape[1] % block, sym(0), f"the remainder of {u.shape[1]} filters in blocks of {block}"
    )

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        (n, ob, point, tile, lane), (cb, ci) = i, r
        return widened_product(v[(n, cb, point, tile, ci)], u[(point, ob * block + lane, cb * block + ci)])

    shape = [v.shape[0], u.shape[1] // block, v.shape[2], v.shape[3], block]
    return compute([v, u], shape, body, reduce=[v.shape[1], block], combine="add", dtype=v.dtype)


@primitive
def winograd_output(
    p: Array,
    x: Array,
    u: Array,
    *,
    m: Sequence[int],
    taps: Sequence[int],
    space: Sequence[Dim],
    pads_begin: Sequence[Dim] = (),
) -> Compute:
    """The results of all tiles from their sums p [n, o / b, points, tiles, b]: [n, o / b, *space, b].

    Those of tiles out of range are the direct sums over the data x and the filters u [points, o, c], which the other
    two operators have read as well.
    """
    require_same_dtype(p, x)
    require_same_dtype(p, u)
    require_rank(p, 5, "the sums")
    require_rank(x, len(m) + 3, "the data")
    require_rank(u, 3, "the transformed filters")
    require_equal_dim(x.shape[0], p.shape[0], "the images of the data and of the sums")
    require_equal_dim(u.shape[0], p.shape[2], "the points of the filters and of the sums")
    require_equal_dim(u.shape[1], p.shape[1] * p.shape[4], "the filters and the channels of the sums")
    require_equal_dim(u.shape[2], x.shape[1] * x.shape[-1], "the channels of the filters and of the data")
    rules = _rules(m, taps)
    sizes = [rule.size for rule in rules]
    extents = tuple(map(sym, space))
    counts = tile_counts(extents, m)
    require_equal_dim(p.shape[2], sym(prod(sizes)), "the points of the sums and of the tiles")
    require_equal_dim(p.shape[3], product(counts), "the tiles of the sums and of the image")

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> list[Scalar]:
        n, ob, *at, lane = i
        sums = [p[(n, ob, k, _tile_at(at, counts), lane)] for k in range(prod(sizes))]
        places = dict(zip(product_of(*map(range, sizes)), sums, strict=True))
        return _along_axes(t, _evaluated, rules, sizes, places.__getitem__)

    tiles = (1, 1, *m, 1)
    shape = [*p.shape[:2], *extents, p.shape[4]]
    replacement = _direct_sums([p, x, u], rules, shape, tiles, pads_begin)
    return compute_tiles([p], shape, tiles, body, replacement=replacement)


def _tile_at(at: Sequence[Sym], counts: Sequence[Sym]) -> Sym:
    """The number of the tile at a position."""
    tile = at[0]
    for position, count in zip(at[1:], counts[1:], strict=True):
        tile = tile * count + position
    return tile


def _direct_sums(
    operands: Sequence[Array],
    rules: Sequence[Interpolation],
    shape: Sequence[Sym],
    tiles: Sequence[int],
    pads_begin: Sequence[Dim],
) -> Replacement:
    """The sums over channels and taps, for tiles whose first point is NaN."""
    counts = tile_counts(shape[2:-1], tiles[2:-1])
    before = tuple(map(sym, pads_begin)) or (sym(0),) * len(rules)
    block = shape[-1]
    taps = list(product_of(*(range(rule.taps) for rule in rules)))

    def is_marked(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        n, ob, *at, _ = i
        first = sums[(n, ob, 0, _tile_at(at, counts), 0)]
        return first.ne(first)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> list[Scalar]:
        (n, ob, *at, lane), (cb, ci) = i, r
        corner = [k * rule.m - p for k, rule, p in zip(at, rules, before, strict=True)]
        places = [_places(*axis) for axis in zip(corner, x.shape[2:-1], rules, strict=True)]
        data = {k: _padded(x, (n, cb), places, k, ci) for k in product_of(*(range(rule.size) for rule in rules))}
        filters = _filters(t, u, rules, ob * block + lane, cb * block + ci)
        elements = []
        for result in product_of(*(range(rule.m) for rule in rules)):
            terms = [data[tuple(map(add, result, tap))] * w for tap, w in zip(taps, filters, strict=True)]
            elements.append(reduce(add, terms))
        return elements

    sums, *_ = traced_again(operands)
    where = compute([sums], [*shape[:2], *counts, 1], is_marked)
    _, x, u = traced_again(operands)
    return Replacement(where, compute_tiles([x], shape, tiles, body, reduce=[x.shape[1], block]))


def _filters(t: ScalarBuilder, u: Array, rules: Sequence[Interpolation], output: Sym, channel: Sym) -> list[Scalar]:
    """The taps of a filter from its transform, row by row."""
    used = [[k for k in range(rule.size) if any(row[k] for row in rule.taps_of_filters)] for rule in rules]

    def element(at: tuple[int, ...]) -> Scalar:
        point = 0
        for k, points, rule in zip(at, used, rules, strict=True):
            point = point * rule.size + points[k]
        return u[(point, output, channel)]

    return _along_axes(t, _recovered, rules, [len(points) for points in used], element)


def transformed_filters(w: np.ndarray, m: Sequence[int]) -> np.ndarray:
    """The transforms of filters w [o, c, *taps] as [points, o, c]: computed in float64, rounded once to the dtype of
    w."""
    every = np.ones((1, 1))
    for rule in _rules(m, w.shape[2:]):
        every = np.kron(every, np.array([[float(c) for c in row] for row in rule.filters]))
    taps = w.reshape(w.shape[0] * w.shape[1], every.shape[1])
    u = np.empty((len(every), len(taps)), w.dtype)
    count = max(1, PRODUCT_AT_ONCE // every.size)
    for begin in range(0, len(taps), count):
        u[:, begin : begin + count] = every @ taps[begin : begin + count].astype(np.float64).T
    return u.reshape(len(every), *w.shape[:2])


# One-dimensional transforms, written out: rows of opposite points share the sums of their even and odd terms


def _interpolated(t: ScalarBuilder, rule: Interpolation, d: Sequence[Scalar]) -> list[Scalar]:
    """B^T d."""
    if rule.size == 1:
        return list(d)
    found = [_sum(t, rule.inputs[0], d)]
    for k in range(1, rule.size - 1, 2):
        row, opposite = rule.inputs[k : k + 2]
        even = _sum(t, tuple((a + b) / 2 for a, b in zip(row, opposite, strict=True)), d)
        odd = _sum(t, tuple((a - b) / 2 for a, b in zip(row, opposite, strict=True)), d)
        found += [even + odd, even - odd]
    return [*found, _sum(t, rule.inputs[-1], d)]


def _evaluated(t: ScalarBuilder, rule: Interpolation, p: Sequence[Scalar]) -> list[Scalar]:
    """A^T p."""
    if rule.size == 1:
        return list(p)
    pairs = range(1, rule.size - 1, 2)
    sums = [p[k] + p[k + 1] for k in pairs]
    differences = [p[k] - p[k + 1] for k in pairs]
    found = []
    for i, row in enumerate(rule.outputs):
        terms = [p[0], *(differences if i % 2 else sums), p[-1]]
        coefficients = (row[0], *(row[k] for k in pairs), row[-1])
        found.append(_sum(t, coefficients, terms))
    return found


def _recovered(t: ScalarBuilder, rule: Interpolation, u: Sequence[Scalar]) -> list[Scalar]:
    """The taps from those of their transforms that `taps_of_filters` uses."""
    used = [k for k in range(rule.size) if any(row[k] for row in rule.taps_of_filters)]
    return [_sum(t, tuple(row[k] for k in used), u) for row in rule.taps_of_filters]


def _sum(t: ScalarBuilder, coefficients: Row, terms: Sequence[Scalar]) -> Scalar:
    """The sum of coefficient * term; a term of coefficient 1 first, so that the others are fused multiply-adds."""
    pairs = [(c, x) for c, x in zip(coefficients, terms, strict=True) if c != 0]
    pairs.sort(key=lambda pair: pair[0] != 1)
    first, x = pairs[0]
    total = _times(first, x)
    for c, x in pairs[1:]:
        total = total - x if c == -1 else total + _times(c, x)
    return total


def _times(c: Fraction, x: Scalar) -> Scalar:
    return x if c == 1 else x * float(c)
