"""Regions of images: each becomes a grid of cells, whatever its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import TensorType
from tilewright.ops.define import irregular
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.image import wide_dtype
from tilewright.ops.shape import require, require_equal_dim, require_rank
from tilewright.ops.traits.facts import FIRST, Traits


def _roi_align_types(
    x: TensorType,
    rois: TensorType,
    batch: TensorType,
    *,
    size: tuple[int, int],
    samples: int,
    scale: float = 1.0,
    offset: float = 0.5,
    mode: str = "avg",
) -> tuple[TensorType, ...]:
    require_rank(x, 4, "the image")
    require_rank(rois, 2, "the regions")
    require_rank(batch, 1, "the images of the regions")
    require_equal_dim(rois.shape[1], sym(4), "the numbers of a region and 4")
    require_equal_dim(batch.shape[0], rois.shape[0], "the numbers of regions and of their images")
    _require_images(x, rois)
    if samples < 0 or mode not in ("avg", "max"):
        raise ValueError(f"there is no mode '{mode}' with {samples} samples")
    if min(size) < 0:
        raise ValueError(f"there are no {size[0]} x {size[1]} cells")
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *map(sym, size))),)


@irregular(_roi_align_types)
def roi_align(
    t: ScalarBuilder,
    inputs: list[Array],
    outputs: list[Array],
    *,
    size: tuple[int, int],
    samples: int,
    scale: float = 1.0,
    offset: float = 0.5,
    mode: str = "avg",
) -> None:
    """Regions of x [n, c, h, w] as `size` cells, each the mean (or greatest) of samples x samples points; with 0
    samples of as many as a cell of the region has elements along each axis, rounded up.

    `rois` [k, 4] holds x1, y1, x2, y2 (times `scale`, minus `offset`), `batch` [k] the image of each region.
    Points are interpolated linearly (He et al., Mask R-CNN, 2017).
    """
    (x, rois, batch), (y,) = inputs, outputs
    wide = wide_dtype(rois, x)
    start = 0.0 if mode == "avg" else float("-inf")
    with t.loop(rois.shape[0], "region", "parallel") as k:
        n = _image_of(t, batch[k].cast(dt.i64), x.shape[0])
        rows, columns = (
            _Taps.of(_Side.of(t, rois, k, axis, x.shape[2 + axis], size[axis], scale, offset, wide), samples, mode)
            for axis in (0, 1)
        )
        points = t.apply("max", rows.points * columns.points, 1.0)
        line = t.alloc(wide, (max(1, size[1]),))
        with t.loop(x.shape[1], "c") as c, t.loop(size[0], "row") as row:
            with t.loop(size[1], "column") as column:
                line.store((column,), start)
            with t.loop(rows.count, "tap") as tap:
                before = (n, c, t.bind(rows.places[tap, row], "p"))
                columns.combine(x, before, rows.weights[tap, row], line, mode)
            with t.loop(size[1], "column") as column:
                total = line[column]
                found = total / points if mode == "avg" else t.select(total > start, total, 0.0)
                y.store((k, c, row, column), found.cast(x.dtype))


roi_align.declares(Traits(continuous=FIRST))


def _image_of(t: ScalarBuilder, image: Scalar, images: Sym) -> Sym:
    inside = (image >= 0) & (image < t.index(images))
    t.check(inside, "ExecutionError", "a region names an image that does not exist")
    return t.bind(t.select(inside, image, 0), "image")


@dataclass(frozen=True)
class _Side:
    """A region along one axis of an image of `length` elements: where it begins, and how long each of its cells is."""

    trace: ScalarBuilder
    start: Scalar
    step: Scalar
    length: Sym
    cells: int

    @classmethod
    def of(
        cls,
        t: ScalarBuilder,
        rois: Array,
        k: Sym,
        axis: int,
        length: Sym,
        cells: int,
        scale: float,
        offset: float,
        wide: dt.DType,
    ) -> _Side:
        start = rois[k, 1 - axis].cast(wide) * scale - offset
        extent = rois[k, 3 - axis].cast(wide) * scale - offset - start
        if offset == 0.0:
            extent = t.apply("max", extent, 1.0)
        return cls(t, start, extent / float(max(1, cells)), length, cells)

    @property
    def wide(self) -> dt.DType:
        return self.start.dtype

    def between(self, at: Scalar) -> tuple[tuple[Scalar, Scalar], tuple[Scalar, Scalar]]:
        """The two elements that a point lies between, with their weights (0 outside of the image)."""
        t = self.trace
        last = t.index(self.length).cast(self.wide) - 1
        visible = (at >= -1.0) & (at <= last + 1)
        inside = t.apply("min", t.apply("max", t.select(at.eq(at), at, 0.0), 0.0), last)
        low = t.apply("floor", inside)
        share = inside - low
        second = t.apply("min", low + 1, last)
        one, none = t.const(1.0, self.wide), t.const(0.0, self.wide)
        return (
            (low.cast(dt.i64), t.select(visible, one - share, none)),
            (second.cast(dt.i64), t.select(visible, share, none)),
        )

    @property
    def most_points(self) -> Sym:
        """Points of a cell that may lie in the image: these are more than half an element apart."""
        return 2 * self.length + 5

    def seen(self, cell: Sym, points: Scalar, apart: Scalar) -> tuple[Scalar, Scalar, Scalar]:
        """Where a cell begins; the first of its points that is not before the image; and how many from there may lie
        in it, as an integer."""
        t = self.trace
        begin = self.start + self.step * t.index(cell).cast(self.wide)
        pace = t.apply("max", apart, 0.5)
        end = t.index(self.length).cast(self.wide)
        first = t.apply("min", t.apply("max", t.apply("floor", (-1.0 - begin) / pace - 1.0), 0.0), points)
        reach = t.apply("min", t.apply("max", t.apply("ceil", (end - begin) / pace + 1.0), 0.0), points)
        count = t.apply("min", t.apply("max", reach - first, 0.0), t.index(self.most_points).cast(self.wide))
        return begin, first, t.select(count.eq(count), count, 0.0).cast(dt.i64)


@dataclass(frozen=True)
class _Taps:
    """The elements along an axis that the points of each cell lie between, with their weights: for each point two or,
    of points as dense as elements that are added up, each element once. `count` are those of every cell, some perhaps
    of weight 0; `points` are those of a cell, be they in the image or not."""

    side: _Side
    places: Array
    weights: Array
    count: Sym
    points: Scalar

    @classmethod
    def of(cls, side: _Side, samples: int, mode: str) -> _Taps:
        t, cells = side.trace, max(1, side.cells)
        most = sym(2 * samples) if samples else 2 * side.most_points
        places, weights = t.alloc(dt.i64, (most, cells)), t.alloc(side.wide, (most, cells))
        if not samples:
            return cls._as_many_as_elements(side, places, weights, mode)
        taps = cls(side, places, weights, most, t.const(float(samples), side.wide))
        with t.loop(side.cells, "cell") as cell, t.loop(samples, "sample") as sample:
            within = (t.index(sample).cast(side.wide) + 0.5) * (1.0 / samples) + t.index(cell).cast(side.wide)
            taps._write(2 * sample, cell, side.start + side.step * within)
        return taps

    @classmethod
    def _as_many_as_elements(cls, side: _Side, places: Array, weights: Array, mode: str) -> _Taps:
        """As many points as a cell has elements, of which those outside of the image are left out: that may be most."""
        t = side.trace
        points = t.apply("max", t.apply("ceil", side.step), 0.0)
        apart = side.step / t.apply("max", points, 1.0)
        counts, most = t.alloc(dt.i64, (max(1, side.cells),)), t.alloc(dt.i64, (1,))
        most.store((0,), 0)
        with t.loop(side.cells, "cell") as cell:
            _, _, count = side.seen(cell, points, apart)
            counts.store((cell,), count)
            most.store((0,), t.apply("max", most[0], count))
        if mode == "avg":  # points are no further apart than elements: of n of them, these are n + 1
            taken = most[0] + 1
        else:  # one more than are seen, where there are more: what lies outside counts as 0 among the greatest
            taken = t.apply("min", most[0] + 1, t.apply("min", points, 2.0**30).cast(dt.i64)) * 2
        taps_of_each = s.minimum(t.bind(t.select(points.eq(points), taken, 0), "taps"), places.shape[0])
        taps = cls(side, places, weights, taps_of_each, points)
        with t.loop(taps_of_each, "tap") as tap, t.loop(side.cells, "cell") as cell:
            places.store((tap, cell), 0)
            weights.store((tap, cell), 0.0)
        with t.loop(side.cells, "cell") as cell:
            begin, first, _ = side.seen(cell, points, apart)
            seen = s.minimum(t.bind(counts[cell], "seen"), side.most_points)
            with t.loop(seen, "sample") as sample:
                at = begin + apart * (first + t.index(sample).cast(side.wide) + 0.5)
                if mode == "avg":
                    taps._add(cell, at, begin + apart * (first + 0.5))
                else:
                    taps._write(2 * sample, cell, at)
        return taps

    def _write(self, tap: Sym, cell: Sym, at: Scalar) -> None:
        """The two elements that a point lies between."""
        for k, (element, weight) in enumerate(self.side.between(at)):
            self.places.store((tap + k, cell), element)
            self.weights.store((tap + k, cell), weight)

    def _add(self, cell: Sym, at: Scalar, start: Scalar) -> None:
        """Take a point's weights to those of its elements, which are counted from the first of the point at `start`."""
        t = self.side.trace
        (low, _), _ = self.side.between(start)
        for element, weight in self.side.between(at):
            last = t.index(self.places.shape[0] - 1)
            own = t.bind(t.apply("min", t.apply("max", element - low, 0), last), "own")
            self.places.store((own, cell), element)
            self.weights.store((own, cell), self.weights[own, cell] + weight)

    def combine(self, x: Array, before: Sequence[Sym], weight: Scalar, line: Array, mode: str) -> None:
        """Take what lies along a line of x, `weight` times, to the totals of the cells in `line`."""
        t = self.side.trace

        def term(tap: Sym | int, cell: Sym) -> Scalar:
            at = t.bind(self.places[tap, cell], "q")
            return x[(*before, at)].cast(weight.dtype) * (weight * self.weights[tap, cell])

        def both(a: Scalar, b: Scalar) -> Scalar:
            return a + b if mode == "avg" else t.apply("max", a, b)

        if self.count.is_const and self.count.value <= MOST_UNROLLED:
            with t.loop(self.side.cells, "column") as cell:
                terms = [term(tap, cell) for tap in range(self.count.value)]
                pairs = [both(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
                line.store((cell,), both(line[cell], reduce(both, pairs)))
            return
        with t.loop(self.count, "tap") as tap, t.loop(self.side.cells, "column") as cell:
            line.store((cell,), both(line[cell], term(tap, cell)))


MOST_UNROLLED = 8
"""Elements of a cell along a line that are written out one by one."""


def _require_images(x: Array | TensorType, rois: Array | TensorType) -> None:
    """Elements that regions can be of."""
    are_some = s.logical_and(*(s.ge(x.shape[k], 1) for k in (0, 2, 3)))
    require(s.logical_or(s.eq(rois.shape[0], 0), are_some), "there are regions, but no images, or these are empty")


def _max_roi_types(
    x: TensorType, rois: TensorType, *, size: tuple[int, int], scale: float = 1.0
) -> tuple[TensorType, ...]:
    if x.rank != 4 or rois.rank != 2 or rois.dtype != x.dtype or min(size) < 1:
        raise ValueError(f"regions {rois} of images {x} as {size[0]} x {size[1]} cells")
    require_equal_dim(rois.shape[1], sym(5), "the numbers of a region and 5")
    _require_images(x, rois)
    return (TensorType(x.dtype, (rois.shape[0], x.shape[1], *map(sym, size))),)


@irregular(_max_roi_types)
def max_roi_pool(
    t: ScalarBuilder, inputs: list[Array], outputs: list[Array], *, size: tuple[int, int], scale: float = 1.0
) -> None:
    """Regions of x [n, c, h, w] as `size` cells, each the greatest element that touches it, 0 where none does.

    `rois` [k, 5] holds the image and x1, y1, x2, y2 (times `scale`, rounded; the last pixel is inside) of each region
    (Girshick, Fast R-CNN, 2015).
    """
    (x, rois), (y,) = inputs, outputs
    with t.loop(rois.shape[0], "region", "parallel") as k:
        image = rois[k, 0].cast(dt.i64)
        inside = (image >= 0) & (image < t.index(x.shape[0]))
        t.check(inside, "ExecutionError", "a region names an image that does not exist")
        n = t.bind(t.select(inside, image, 0), "image")
        with t.loop(size[0], "row") as row, t.loop(size[1], "column") as column:
            (top, height), (left, width) = (
                _roi_cells(t, rois, k, axis, cell, size[axis], scale, x.shape[2 + axis])
                for axis, cell in ((0, row), (1, column))
            )
            with t.loop(x.shape[1], "c") as c:
                place = (k, c, row, column)
                y.store(place, 0)
                with t.loop(height, "p") as p, t.loop(width, "q") as q:
                    element = x[n, c, top + p, left + q]
                    is_first = t.index(p + q).eq(0)
                    y.store(place, t.select(is_first, element, t.apply("max", y[place], element)))


max_roi_pool.declares(Traits(continuous=FIRST))


def _roi_cells(
    t: ScalarBuilder, rois: Array, k: Sym, axis: int, cell: Sym, count: int, scale: float, length: Sym
) -> tuple[Sym, Sym]:
    """The first element of a cell along an axis, and how many there are."""
    wide = wide_dtype(rois)
    start, end = (_rounded(t, rois[k, column].cast(wide) * scale) for column in (2 - axis, 4 - axis))
    step = t.apply("max", end - start + 1, 1.0) / float(count)
    number, last = t.index(cell).cast(wide), t.index(length).cast(wide)
    low = t.apply("floor", number * step) + start
    high = t.apply("ceil", (number + 1.0) * step) + start
    low, high = (t.apply("min", t.apply("max", v, 0.0), last).cast(dt.i64) for v in (low, high))
    return t.bind(low, "first"), s.minimum(t.bind(t.apply("max", high - low, 0), "count"), length)


def _rounded(t: ScalarBuilder, x: Scalar) -> Scalar:
    """The nearest integer, of two the one further from 0."""
    return t.select(x >= 0.0, t.apply("floor", x + 0.5), t.apply("ceil", x - 0.5))
