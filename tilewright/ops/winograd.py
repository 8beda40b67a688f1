"""Convolutions with kernels of 3x3 by fewer products: transforms of tiles of data, products, and their inverse.

All data is in blocked channels. A tile of m x m results needs size x size elements of data (size = m + 2) and as many
products for each pair of channels, in place of 9 * m * m. `points` below counts the size * size products of a tile,
and `tiles` the tiles of an image, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, ceildiv, sym
from tilewright.ops.contract import widened_product
from tilewright.ops.cook_toom import TAPS, Interpolation, Row, interpolation
from tilewright.ops.define import Compute, compute, compute_tiles, primitive
from tilewright.ops.shape import Dim, require_equal_dim, require_rank, require_same_dtype
from tilewright.ops.trace import Array, Scalar, Trace
from tilewright.ops.window import Window

FILTERS_AT_ONCE = 32
"""Filters that are transformed in one step, so that their float64 form stays small."""


def tile_counts(space: Sequence[Sym], m: int) -> tuple[Sym, Sym]:
    """Tiles of m x m results along both axes of an image of results."""
    return ceildiv(space[0], m), ceildiv(space[1], m)


@primitive
def winograd_input(
    x: Array, *, m: int, pads_begin: Sequence[Dim] = (), pads_end: Sequence[Dim] = ()
) -> Compute:
    """B^T d B of the tiles of blocked x [n, c / b, h, w, b], padded with zeros: [n, c / b, points, tiles, b]."""
    require_rank(x, 5, "the data")
    rule = interpolation(m)
    window = Window(x.shape[2:4], (TAPS, TAPS), (), pads_begin, pads_end, ())
    down, across = tile_counts(window.counts, m)
    before = tuple(map(sym, window.before))

    def body(t: Trace, i: Sequence[Sym], r: Sequence[Sym]) -> list[Scalar]:
        n, cb, _, tile, lane = i
        rows = _positions(tile // across * m - before[0], x.shape[2], rule)
        columns = _positions(tile % across * m - before[1], x.shape[3], rule)

        def element(j: int, k: int) -> Scalar:
            (row, above), (column, beside) = rows[j], columns[k]
            return x.load((n, cb, row, column, lane), (*above, *beside))

        return _transformed(t, rule, element)

    shape = [x.shape[0], x.shape[1], sym(rule.size**2), down * across, x.shape[4]]
    return compute_tiles([x], shape, (1, 1, rule.size**2, 1, 1), body)


def _positions(first: Sym, extent: Sym, rule: Interpolation) -> list[tuple[Sym, tuple[Sym, Sym]]]:
    """The positions of a tile along one axis, and the conditions for them to be in the image: the last tiles reach
    beyond its padding too."""
    return [(first + k, (s.ge0(first + k), s.lt(first + k, extent))) for k in range(rule.size)]


def _transformed(t: Trace, rule: Interpolation, element: Callable[[int, int], Scalar]) -> list[Scalar]:
    """B^T d B row by row, where `element(j, k)` is d."""
    size = rule.size
    columns = [_interpolated(t, rule, [element(j, k) for j in range(size)]) for k in range(size)]
    rows = [_interpolated(t, rule, [columns[k][j] for k in range(size)]) for j in range(size)]
    return [v for row in rows for v in row]


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

    def body(t: Trace, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        (n, ob, point, tile, lane), (cb, ci) = i, r
        return widened_product(v[(n, cb, point, tile, ci)], u[(point, ob * block + lane, cb * block + ci)])

    shape = [v.shape[0], u.shape[1] // block, v.shape[2], v.shape[3], block]
    return compute([v, u], shape, body, reduce=[v.shape[1], block], combine="add", dtype=v.dtype)


@primitive
def winograd_output(p: Array, *, m: int, height: Dim, width: Dim) -> Compute:
    """A^T p A of the sums p [n, o / b, points, tiles, b] of all tiles: [n, o / b, height, width, b]."""
    require_rank(p, 5, "the sums")
    rule = interpolation(m)
    space = (sym(height), sym(width))
    down, across = tile_counts(space, m)
    require_equal_dim(p.shape[2], sym(rule.size**2), "the points of the sums and of the tiles")
    require_equal_dim(p.shape[3], down * across, "the tiles of the sums and of the image")

    def body(t: Trace, i: Sequence[Sym], r: Sequence[Sym]) -> list[Scalar]:
        n, ob, row, column, lane = i
        sums = [p[(n, ob, k, row * across + column, lane)] for k in range(rule.size**2)]
        size = rule.size
        columns = [_evaluated(t, rule, [sums[j * size + k] for j in range(size)]) for k in range(size)]
        rows = [_evaluated(t, rule, [columns[k][j] for k in range(size)]) for j in range(m)]
        return [v for row in rows for v in row]

    return compute_tiles([p], [*p.shape[:2], *space, p.shape[4]], (1, 1, m, m, 1), body)


def transformed_filters(w: np.ndarray, m: int) -> np.ndarray:
    """G g G^T of filters w [o, c, 3, 3] as [points, o, c]: computed in float64, rounded once to the dtype of w."""
    g = np.array([[float(c) for c in row] for row in interpolation(m).filters])
    both = np.kron(g, g)
    u = np.empty((len(both), *w.shape[:2]), w.dtype)
    for begin in range(0, len(w), FILTERS_AT_ONCE):
        part = w[begin : begin + FILTERS_AT_ONCE].astype(np.float64)
        u[:, begin : begin + len(part)] = (both @ part.reshape(-1, TAPS**2).T).reshape(-1, *part.shape[:2])
    return u


# One-dimensional transforms, written out: rows of opposite points share the sums of their even and odd terms


def _interpolated(t: Trace, rule: Interpolation, d: Sequence[Scalar]) -> list[Scalar]:
    """B^T d."""
    found = [_sum(t, rule.inputs[0], d)]
    for k in range(1, rule.size - 1, 2):
        row, opposite = rule.inputs[k : k + 2]
        even = _sum(t, tuple((a + b) / 2 for a, b in zip(row, opposite, strict=True)), d)
        odd = _sum(t, tuple((a - b) / 2 for a, b in zip(row, opposite, strict=True)), d)
        found += [even + odd, even - odd]
    return [*found, _sum(t, rule.inputs[-1], d)]


def _evaluated(t: Trace, rule: Interpolation, p: Sequence[Scalar]) -> list[Scalar]:
    """A^T p."""
    pairs = range(1, rule.size - 1, 2)
    sums = [p[k] + p[k + 1] for k in pairs]
    differences = [p[k] - p[k + 1] for k in pairs]
    found = []
    for i, row in enumerate(rule.outputs):
        terms = [p[0], *(differences if i % 2 else sums), p[-1]]
        coefficients = (row[0], *(row[k] for k in pairs), row[-1])
        found.append(_sum(t, coefficients, terms))
    return found


def _sum(t: Trace, coefficients: Row, terms: Sequence[Scalar]) -> Scalar:
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
