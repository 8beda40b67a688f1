"""Sampling of images: resizing along axes, and reading at computed coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType, product
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.define import Compute, compute, constant, irregular, op, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.index import gather
from tilewright.ops.reduce import as_dtype, dtype_of
from tilewright.ops.shape import Dim, checked_axis, require, require_equal_dim, require_rank
from tilewright.ops.sort import unflattened
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.traits.facts import FIRST, Traits
from tilewright.ops.view import expand, reshape, shape_of, transpose

MAX_GATHERED_TAPS = 4
"""Where an element is made of more elements than these, the matrix of weights is multiplied by."""

MANY_CHANNELS = 4
"""From so many channels on images are read at coordinates by rows of channels: transposing image and result takes less
than positions and weights for each channel anew, and elements one by one (measured for 2 to 256 channels)."""


@op
def repeat_elements(x: Value, *, axis: int, count: int) -> Value:
    """Each element along `axis` `count` times, one after the other: an index map."""
    shape = shape_of(x)
    a = checked_axis(axis, len(shape))
    apart = (*shape[: a + 1], sym(1), *shape[a + 1 :])
    wide = (*shape[: a + 1], sym(count), *shape[a + 1 :])
    return reshape(
        expand(reshape(x, shape=apart), shape=wide), shape=(*shape[:a], shape[a] * count, *shape[a + 1 :])
    )


@op
def weighted_gather(x: Value, indices: Value, weights: Value, *, axis: int) -> Value:
    """Along `axis`, the sum over t of x[indices[:, t]] * weights[:, t] (both [size, taps]); all indices are known to
    lie in 0..size of the axis."""
    a = checked_axis(axis, len(shape_of(x)))
    size, taps = shape_of(indices)
    wide = as_dtype(x, dtype_of(weights))
    lanes = tuple(size if k == a else sym(1) for k in range(len(shape_of(x))))
    total: Value | None = None
    for t in range(taps.value):
        term = ew.mul(gather(wide, column(indices, t), axis=a, in_range=True), reshape(column(weights, t), shape=lanes))
        total = term if total is None else ew.add(total, term)
    assert total is not None
    return as_dtype(total, dtype_of(x))


def column(x: Value, k: int) -> Value:
    """Column k of a matrix, as a vector."""
    rows, columns = shape_of(x)
    if columns == 1:
        return reshape(x, shape=(rows,))
    return gather(x, constant(np.array(k), "column"), axis=1)


def resample(x: Value, axis: int, indices: np.ndarray, weights: np.ndarray) -> Value:
    """`weighted_gather` with known positions: few taps are gathered, many are a matrix product."""
    shape = shape_of(x)
    wide = dt.f64 if dtype_of(x) == dt.f64 else dt.f32
    if indices.shape[1] <= MAX_GATHERED_TAPS or not shape[axis].is_const:
        taken = known_places(indices, "taps")
        return weighted_gather(x, taken, constant(weights.astype(wide.storage), "weights"), axis=axis)
    matrix = np.zeros((len(indices), shape[axis].value))
    np.add.at(matrix, (np.arange(len(indices))[:, None], indices), weights)
    order = (*[k for k in range(len(shape)) if k != axis], axis)
    back = tuple(order.index(k) for k in range(len(shape)))
    rows = transpose(as_dtype(x, wide), perm=order)
    result = matmul(rows, constant(matrix.T.astype(wide.storage).copy(), "weights"))
    return as_dtype(transpose(result, perm=back), dtype_of(x))


def known_places(places: np.ndarray, name: str) -> Value:
    """Positions as a constant of the narrower type where that holds them, of which vectors have more."""
    narrow = places.size == 0 or places.max() <= np.iinfo(np.int32).max
    return constant(places.astype(np.int32 if narrow else np.int64), name)


def size_scalar(d: Sym, dtype: dt.DType) -> Value:
    """A dim as a rank-0 tensor."""
    return ew.cast(sym_tensor(values=(d,), scalar=True), dtype=dtype)


@op
def linear_along(x: Value, coordinates: Value, *, axis: int) -> Value:
    """Along `axis`, x between its elements at float `coordinates`; beyond the ends the last element."""
    shape = shape_of(x)
    a = checked_axis(axis, len(shape))
    wide = dtype_of(x) if dtype_of(x) in (dt.f32, dt.f64) else dt.f32
    below = ew.floor(coordinates)
    share = ew.cast(ew.sub(coordinates, below), dtype=wide)
    lanes = tuple(shape_of(coordinates)[0] if k == a else sym(1) for k in range(len(shape)))
    first = ew.cast(below, dtype=dt.i64)
    low = gather(as_dtype(x, wide), clamped(first, shape[a]), axis=a, in_range=True)
    high = gather(as_dtype(x, wide), clamped(ew.add(first, 1), shape[a]), axis=a, in_range=True)
    weight = reshape(share, shape=lanes)
    return as_dtype(ew.add(low, ew.mul(ew.sub(high, low), weight)), dtype_of(x))


def clamped(positions: Value, size: Sym) -> Value:
    """Positions made to lie in 0..size."""
    return ew.max_(ew.min_(positions, sym_tensor(values=(size - 1,), scalar=True)), 0)


@op
def nearest_along(x: Value, positions: Value, *, axis: int) -> Value:
    """Along `axis`, the elements at integer `positions`; beyond the ends the last element."""
    a = checked_axis(axis, len(shape_of(x)))
    return gather(x, clamped(ew.cast(positions, dtype=dt.i64), shape_of(x)[a]), axis=a, in_range=True)


def counter(size: Dim) -> Value:
    """0, 1, ... size - 1 in f64."""
    return iota(shape=(size,), axis=0, dtype=dt.f64)


@primitive
def blend(
    x: Array, rows: Array, row_weights: Array, columns: Array, column_weights: Array, *, axes: tuple[int, int]
) -> Compute:
    """Along two axes, each element made of four: those in `rows` [2, n] and `columns` [2, m], with the products of
    their weights, of the same shapes. Added up in f32 in the order of the elements, each product and each sum rounded
    (none is fused), and truncated: integers as engines have them to the last bit."""
    first, second = (checked_axis(a, x.rank) for a in axes)
    if first >= second or x.dtype.is_float:
        raise ValueError(f"integers are blended along two axes in their order, not {x.dtype} along {axes}")
    for a, (places, weights) in ((first, (rows, row_weights)), (second, (columns, column_weights))):
        require_rank(places, 2, "the places")
        require_equal_dim(places.shape[0], sym(2), "the places of an element and 2")
        require_rank(weights, 2, "the weights")
        for k in (0, 1):
            require_equal_dim(weights.shape[k], places.shape[k], "the weights and the places")
        require(s.logical_or(s.eq(places.shape[1], 0), s.ge(x.shape[a], 1)), "an empty axis has no elements to blend")
    shape = list(x.shape)
    shape[first], shape[second] = rows.shape[1], columns.shape[1]

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        at = list(i)
        total: Scalar | None = None
        for p, q in itertools.product((0, 1), repeat=2):
            at[first] = _place(t, rows[p, i[first]], x.shape[first])
            at[second] = _place(t, columns[q, i[second]], x.shape[second])
            weight = column_weights[q, i[second]] * row_weights[p, i[first]]
            term = _not_fused(t, weight * x[tuple(at)].cast(dt.f32))
            total = term if total is None else total + term
        assert total is not None
        if x.dtype.bits <= 16:
            ends = np.iinfo(x.dtype.storage)
            total = t.apply("max", t.apply("min", total, float(ends.max)), float(ends.min))
        return total.cast(x.dtype)

    return compute([x, rows, row_weights, columns, column_weights], tuple(shape), body)


def _place(t: ScalarBuilder, place: Scalar, size: Sym) -> Sym:
    return t.bind(t.apply("max", t.apply("min", place, t.index(size) - 1), 0), "place")


def _not_fused(t: ScalarBuilder, product: Scalar) -> Scalar:
    """A product of f32 that is rounded before it is added to: one that is limited is no part of a fused sum."""
    return t.apply("min", product, float(np.finfo(np.float32).max))


# Reading at coordinates of the caller's


@primitive
def grid_sample(
    x: Array,
    grid: Array,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    pixels: bool = False,
) -> Compute:
    """x [n, c, *space] read at `grid` [n, *out, d]: coordinates in -1..1, that of the last axis first.

    Modes: "nearest", "linear", "cubic". Outside of x, `padding` is "zeros", "border" (the nearest element) or
    "reflection". With `align_corners` -1 and 1 are the centres of the outermost elements, else their edges; with
    `pixels` coordinates count elements, from 0 on.
    """
    space = x.shape[2:]
    _check_grid(x, grid, space, mode, padding)
    wide = wide_dtype(x, grid)

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        n, c, *out = i
        axes = _axes_of(t, grid, (n, *out), space, wide, mode, padding, align_corners, pixels)
        return _weighted(t, axes, lambda places, guard: x.load((n, c, *places), guard)).cast(x.dtype)

    return compute([x, grid], (x.shape[0], x.shape[1], *grid.shape[1:-1]), body)


def _sampled_rows_types(
    x: TensorType,
    grid: TensorType,
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    pixels: bool = False,
) -> tuple[TensorType, ...]:
    _check_grid(x, grid, x.shape[1:-1], mode, padding)
    return (TensorType(x.dtype, (*grid.shape[:-1], x.shape[-1])),)


@irregular(_sampled_rows_types)
def grid_sample_rows(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    mode: str = "linear",
    padding: str = "zeros",
    align_corners: bool = False,
    pixels: bool = False,
) -> None:
    """`grid_sample` of x [n, *space, c], whose channels come last, as they do in the result [n, *out, c]: positions and
    weights are computed once for all channels, and these are read beside each other."""
    (x, grid), (y,) = inputs, outputs
    space, wide = x.shape[1:-1], wide_dtype(x, grid)
    with t.loop(product(grid.shape[:-1]), "point", "parallel") as point:
        at = unflattened(point, grid.shape[:-1])
        axes = _axes_of(t, grid, at, space, wide, mode, padding, align_corners, pixels)
        with t.loop(x.shape[-1], "c") as c:

            def load(places: Sequence[Sym], guard: Sequence[Sym], c: Sym = c) -> Scalar:
                return x.load((at[0], *places, c), guard)

            y.store((*at, c), _weighted(t, axes, load).cast(x.dtype))


grid_sample_rows.declares(Traits(continuous=FIRST, linear=FIRST))


def sampled(x: Value, grid: Value, **how: Any) -> Value:
    """`grid_sample`, by rows of channels where these are many."""
    shape = shape_of(x)
    if len(shape) < 3 or not shape[1].is_const or shape[1].value < MANY_CHANNELS:
        return grid_sample(x, grid, **how)
    rows = grid_sample_rows(channels_last(x), grid, **how)
    rank = len(shape_of(rows))
    return transpose(rows, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Value) -> Value:
    """[n, c, *space] as [n, *space, c]."""
    return transpose(x, perm=(0, *range(2, len(shape_of(x))), 1))


def _check_grid(x: TensorType | Array, grid: TensorType | Array, space: Sequence[Sym], mode: str, padding: str) -> None:
    require_rank(grid, x.rank, "the grid")
    require_equal_dim(grid.shape[0], x.shape[0], "the images of the grid and of the data")
    if not grid.shape[-1].is_const or grid.shape[-1].value != len(space):
        raise ValueError(f"the grid has {grid.shape[-1]} coordinates for {len(space)} spatial axes")
    if not grid.dtype.is_float:
        raise ValueError(f"coordinates of a grid are floats, not {grid.dtype}")
    if mode not in ("nearest", "linear", "cubic") or padding not in ("zeros", "border", "reflection"):
        raise ValueError(f"there is no mode '{mode}' with padding '{padding}'")
    if not space:
        raise ValueError("a grid samples tensors with spatial axes")


def _axes_of(
    t: ScalarBuilder,
    grid: Array,
    at: Sequence[Sym],
    space: Sequence[Sym],
    wide: dt.DType,
    mode: str,
    padding: str,
    align_corners: bool,
    pixels: bool,
) -> list[_Taps]:
    """What the result at a position of the grid is made of, along each axis."""
    axes = []
    for k, size in enumerate(space):
        raw = grid[(*at, len(space) - 1 - k)].cast(wide)
        if not pixels:
            raw = _in_pixels(t, raw, size, align_corners)
        axes.append(_Taps(t, raw, size, mode, padding, align_corners))
    return axes


def wide_dtype(*arrays: Array | TensorType) -> dt.DType:
    """What positions and sums of elements are computed in: f64 where an operand is of that."""
    return dt.f64 if any(a.dtype == dt.f64 for a in arrays) else dt.f32


def _in_pixels(t: ScalarBuilder, raw: Scalar, size: Sym, align: bool) -> Scalar:
    """A coordinate in -1..1 as the number of an element."""
    length = t.index(size, dt.i64).cast(raw.dtype)
    return (raw + 1) * 0.5 * (length - 1) if align else ((raw + 1) * length - 1) * 0.5


class _Taps:
    """Positions and weights of the elements along one axis that a coordinate is made of."""

    def __init__(self, t: ScalarBuilder, at: Scalar, size: Sym, mode: str, padding: str, align: bool) -> None:
        length = t.index(size, dt.i64).cast(at.dtype)
        self.low = t.const(0.0 if align else -0.5, at.dtype)
        self.span = length - 1 if align else length
        self._t, self._size, self._length, self._padding = t, size, length, padding
        if padding == "border" and mode != "cubic":
            at = self._limited(at)
        if padding == "reflection" and mode != "cubic":
            at = self._reflected(at)
        weights: list[Scalar | None]
        if mode == "nearest":
            start, weights = t.apply("round", at), [None]
        else:
            start = t.apply("floor", at)
            share = at - start
            weights = [1 - share, share] if mode == "linear" else [*cubic_weights(share)]
            start = start if mode == "linear" else start - 1
        self.taps = [(self._bound(start + float(k)), w) for k, w in enumerate(weights)]

    def _limited(self, at: Scalar) -> Scalar:
        return self._t.apply("min", self._t.apply("max", at, 0.0), self._length - 1)

    def _reflected(self, at: Scalar) -> Scalar:
        """Folded back at both ends as often as needed."""
        t, period = self._t, self.span * 2
        safe = t.apply("max", period, 1e-6)
        phase = t.apply("mod", at - self.low, safe)
        folded = t.apply("min", phase, period - phase) + self.low
        return t.select(self.span > 0, folded, 0.0)

    def _bound(self, at: Scalar) -> Sym:
        """A position as an index; with zeros one beyond each end stands for all that lies outside."""
        t = self._t
        if self._padding == "reflection":
            at = t.apply("round", self._reflected(at))
        if self._padding != "zeros":
            at = self._limited(at)
        at = t.select(at.eq(at), at, -1.0)  # NaN
        at = t.apply("min", t.apply("max", at, -1.0), self._length)
        return t.bind(at.cast(dt.i64), "p", -1)

    def guard(self, position: Sym) -> list[Sym]:
        return [s.ge0(position), s.lt(position, self._size)]


def cubic_weights(share: Scalar, a: float = -0.75) -> list[Scalar]:
    """Weights of the four elements around a position `share` beyond the second (Keys, 1981)."""

    def near(d: Scalar) -> Scalar:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Scalar) -> Scalar:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(share + 1), near(share), near(1 - share), far(2 - share)]


def _weighted(
    t: ScalarBuilder, axes: Sequence[_Taps], load: Callable[[Sequence[Sym], Sequence[Sym]], Scalar]
) -> Scalar:
    """The sum of the elements that `load` gives for positions along the axes and for what must hold of these."""
    total: Scalar | None = None
    for chosen in itertools.product(*[a.taps for a in axes]):
        guard = [g for axis, (p, _) in zip(axes, chosen, strict=True) for g in axis.guard(p)]
        term = load([p for p, _ in chosen], guard)
        for _, w in chosen:
            term = term if w is None else term.cast(w.dtype) * w
        total = term if total is None else total + term
    assert total is not None
    return total
