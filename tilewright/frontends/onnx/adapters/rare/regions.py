"""Operators on images; Resize has a file of its own."""

from __future__ import annotations

import functools

import numpy as np

from tilewright.frontends.onnx.adapters.window import window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import image, regions
from tilewright.ops.composites.products import with_bias
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.composites.windows import WindowAttributes
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import scatter_elements
from tilewright.ops.reduce import dtype_of, reduce_sum
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.view import concat, expand, pad, reshape, shape_of, slice_, squeeze, transpose, unsqueeze
from tilewright.ops.window import Window

MOST_OFFSETS = 64
"""Of a block of Col2Im along an axis, and its strides: each is an operator of its own."""
MOST_SAMPLES = 1 << 10
"""Samples of a cell of RoiAlign along each axis at most: some hundred times as many as detectors take."""


@adapter("GridSample")
def grid_sample(node: Node) -> Value:
    modes = ("bilinear", "linear", "nearest", "bicubic", "cubic")
    mode = node.one_of("mode", *modes, default="linear").removeprefix("bi")
    align, padding = node.flag("align_corners", 0), node.attr("padding_mode", "zeros")
    node.known_dim(1, -1)  # coordinates of a position
    return image.sampled(*node.operands, mode=mode, padding=padding, align_corners=align)


@adapter("RoiAlign")
def roi_align(node: Node) -> Value:
    samples = max(0, node.attr("sampling_ratio"))
    if samples > MOST_SAMPLES:
        most = f"at most {MOST_SAMPLES} are possible along each axis"
        raise ModelError(f"RoiAlign with {samples} x {samples} samples in each cell would not end; {most}")
    return regions.roi_align(
        *node.operands,
        size=(node.attr("output_height"), node.attr("output_width")),
        samples=samples,
        scale=node.attr("spatial_scale"),
        offset=0.5 if node.attr("coordinate_transformation_mode", "") == "half_pixel" else 0.0,
        mode=node.attr("mode"),
    )


@adapter("MaxRoiPool")
def max_roi_pool(node: Node) -> Value:
    size = node.attr("pooled_shape")
    if len(size) != 2:
        raise ModelError(f"MaxRoiPool to the shape {list(size)}")
    return regions.max_roi_pool(*node.operands, size=size, scale=node.attr("spatial_scale"))


@adapter("MaxUnpool", since=9)
def max_unpool(node: Node) -> Value:
    """Places where MaxPool found its elements; positions count in the tensor that the window gives. Windows that
    overlap may have found one element, which is put there once."""
    kernel = tuple(map(sym, node.attr("kernel_shape")))
    window = window_of(node, kernel)
    shape = list(node.shape(0))
    for k, size in enumerate(node.shape(0)[2:]):
        shape[2 + k] = (size - 1) * window.strides[k] + kernel[k] - window.pads_begin[k] - window.pads_end[k]
    flat, size = (product(node.shape(0)),), product(checked_shape(tuple(shape), "MaxUnpool"))
    nothing = expand(constant(np.zeros(1, node.dtype(0).storage), "zero"), shape=(size,))
    positions, values = (reshape(node.input(k), shape=flat) for k in (1, 0))
    placed = scatter_elements(nothing, positions, values, axis=0)
    result = reshape(placed, shape=tuple(shape))
    if node.optional(2) is None:
        return result
    wanted = node.symbols(2)
    if len(wanted) != len(shape):
        raise ModelError(f"MaxUnpool: the output shape has {len(wanted)} dims for {node.type(0)}")
    return pad(
        result, before=(sym(0),) * len(shape), after=tuple(w - d for w, d in zip(wanted, shape, strict=True))
    )


@adapter("Col2Im", since=18)
def col2im(node: Node) -> Value:
    """Columns [n, c * prod(block), positions] summed to the image that they were cut from."""
    image_shape, block = node.symbols(1), node.symbols(2)
    count = len(block)
    strides, dilations = node.attr("strides", (1,) * count), node.attr("dilations", (1,) * count)
    pads = node.attr("pads", (0,) * 2 * count)
    n, rows, _ = node.shape(0)
    channels = s.floordiv(rows, product(block))
    padded = tuple(image_shape[k] + pads[k] + pads[count + k] for k in range(count))
    cells = [s.floordiv(padded[k] - dilations[k] * (block[k] - 1) - 1, strides[k]) + 1 for k in range(count)]
    wide = reshape(node.input(0), shape=(n, channels, *block, *cells))
    for k in range(count):
        wide = _overlapped(wide, 2 + count, padded[k], strides[k], dilations[k])
    checked_shape((n, channels, *image_shape), "Col2Im")
    starts = (sym(0), sym(0), *map(sym, pads[:count]))
    return slice_(wide, starts=starts, sizes=(n, channels, *image_shape), steps=(1,) * (count + 2))


def _overlapped(x: Value, cell_axis: int, size: Sym, stride: int, dilation: int) -> Value:
    """Axes (offset in the block, at axis 2, and cell) made one of `size` positions, where the cell axis is, what falls
    on one position summed.

    The positions of each phase, as many as the stride, take what the same offsets give to cells one after the other.
    """
    block = shape_of(x)[2]
    if not block.is_const or max(block.value, stride) > MOST_OFFSETS:
        return _spread(x, cell_axis, size, stride, dilation)
    runs, axis = s.ceildiv(size, stride), cell_axis - 1
    phases = []
    for phase in range(stride):
        offsets = [o for o in range(block.value) if o * dilation % stride == phase]
        moves = [(o, (o * dilation - phase) // stride) for o in offsets]
        phases.append(_sum_of_offsets(x, moves, axis, runs))
    if stride == 1:
        return phases[0]
    shape = shape_of(phases[0])
    beside = concat(*[unsqueeze(v, axes=(axis + 1,)) for v in phases], axis=axis + 1)
    flat = reshape(beside, shape=(*shape[:axis], runs * stride, *shape[axis + 1 :]))
    sizes = (*shape[:axis], size, *shape[axis + 1 :])
    return slice_(flat, starts=(sym(0),) * len(shape), sizes=sizes, steps=(1,) * len(shape))


def _spread(x: Value, cell_axis: int, size: Sym, stride: int, dilation: int) -> Value:
    """As `_overlapped`, for offsets of any number: each position takes what falls on it of all elements."""
    shape = (*shape_of(x), size)
    rank = len(shape) - 1

    def along(k: int) -> Value:
        return iota(shape=tuple(d if n == k else sym(1) for n, d in enumerate(shape)), axis=k)

    place = ew.add(ew.mul(along(2), dilation), ew.mul(along(cell_axis), stride))
    spread = ew.select(ew.eq(place, along(rank)), unsqueeze(x, axes=(rank,)), 0)
    summed = reduce_sum(spread, axes=(2, cell_axis), keepdims=False)
    order = list(range(rank - 2))
    order.insert(cell_axis - 1, rank - 2)
    return transpose(summed, perm=tuple(order))


def _sum_of_offsets(x: Value, moves: list[tuple[int, int]], axis: int, runs: Sym) -> Value:
    """The elements of these offsets (axis 2 of x), each moved by so many positions of what is then `axis`, added up
    along `runs` positions."""
    shape = (*shape_of(x)[:2], *shape_of(x)[3:])
    terms = []
    for offset, moved in moves:
        starts = tuple(sym(offset if k == 2 else 0) for k in range(len(shape) + 1))
        sizes = (*shape[:2], sym(1), *shape[2:])
        one = squeeze(slice_(x, starts=starts, sizes=sizes, steps=(1,) * (len(shape) + 1)), axes=(2,))
        before = tuple(moved if k == axis else 0 for k in range(len(shape)))
        after = tuple(runs - shape[axis] - moved if k == axis else sym(0) for k in range(len(shape)))
        terms.append(pad(one, before=before, after=after))
    if not terms:
        none = ew.cast(constant(np.zeros((1,) * len(shape)), "none"), dtype=dtype_of(x))
        return expand(none, shape=(*shape[:axis], runs, *shape[axis + 1 :]))
    return functools.reduce(ew.add, terms)


@adapter("AffineGrid", since=20)
def affine_grid(node: Node) -> Value:
    """theta [n, d, d + 1] times the centres of the cells of an image."""
    space, align = node.symbols(1)[2:], node.attr("align_corners", 0)
    if len(space) not in (2, 3) or any(d.is_const and d.value < 1 for d in space):
        raise ModelError(f"AffineGrid for an image of [{', '.join(map(str, space))}]")
    rank = len(space)
    ones = [sym(1)] * (rank + 1)
    columns = [*(_centres(d, bool(align)) for d in reversed(space)), constant(np.ones(1), "one")]
    cells = []
    for k, column in enumerate(columns):
        place = rank - 1 - k if k < rank else 0
        lanes = [*ones[:place], shape_of(column)[0], *ones[place + 1 :]]
        cells.append(expand(reshape(column, shape=tuple(lanes)), shape=(*space, sym(1))))
    base = reshape(concat(*cells, axis=rank), shape=(product(space), sym(rank + 1)))
    result = matmul(ew.cast(base, dtype=node.dtype(0)), node.input(0), transpose_b=True)
    return reshape(result, shape=(node.shape(0)[0], *space, sym(rank)))


def _centres(size: Sym, align: bool) -> Value:
    """Where the cells of an axis lie between -1 and 1, in f64; with `align` the first and the last at the ends."""
    at = iota(shape=(size,), axis=0, dtype=dt.f64)
    count = ew.cast(sym_tensor(values=(size,), scalar=True), dtype=dt.f64)
    if align:
        return ew.sub(ew.div(ew.mul(at, 2.0), ew.max_(ew.sub(count, 1.0), 1.0)), 1.0)
    return ew.sub(ew.div(ew.add(ew.mul(at, 2.0), 1.0), count), 1.0)


@adapter("DeformConv", since=19)
def deform_conv(node: Node) -> Value:
    """A convolution of images whose window reads, at each of its positions, beside the places that it has by itself.

    Operands: images [n, c, h, w], filters [m, c / group, kh, kw], offsets [n, groups of them * kh * kw * 2, rows,
    columns] in pixels (y, x), bias, and a factor of each element that is read.
    """
    if node.rank(0) != 4 or node.rank(1) != 4 or node.rank(2) != 4:
        raise UnsupportedError(f"DeformConv of {node.type(0)} is not supported: images have four axes")
    window, (n, c) = window_of(node, node.shape(1)[2:]), node.shape(0)[:2]
    parts, group = node.attr("offset_group"), node.attr("group")
    count, filters, (rows, columns) = product(window.kernel), node.shape(1)[0], node.shape(2)[2:]
    node.demand(parts > 0 and group > 0, f"{group} groups, {parts} of offsets")
    counts = Window(node.shape(0)[2:], window.kernel, *window.sliding.values()).counts
    for k, d in {2: parts * 2 * count, 4: parts * count}.items():
        if node.optional(k) is not None:
            wrong = f"input {k}, {node.type(k)}, does not fit {node.type(0)} and filters {node.type(1)}"
            node.demand_shape(k, (n, d, *counts), wrong)
    cells = reshape(node.input(2), shape=(n * parts, count, 2, rows, columns))
    grid = [_window_places(node, window, cells, axis) for axis in (1, 0)]
    places = transpose(concat(*grid, axis=4), perm=(0, 2, 3, 1, 4))
    places = reshape(places, shape=(n * parts, rows * columns, count, 2))
    apart = reshape(node.input(0), shape=(n * parts, c // parts, *node.shape(0)[2:]))
    read = image.grid_sample_rows(image.channels_last(apart), places, mode="linear", padding="zeros", pixels=True)
    if (factors := node.optional(4)) is not None:
        factors = transpose(reshape(factors, shape=(n * parts, count, rows * columns, 1)), perm=(0, 2, 1, 3))
        read = ew.mul(read, factors)
    read = reshape(read, shape=(n, parts, rows * columns, count, c // parts))
    read = reshape(transpose(read, perm=(0, 2, 3, 1, 4)), shape=(n, rows * columns, count, group, c // group))
    read = reshape(transpose(read, perm=(0, 3, 1, 2, 4)), shape=(n, group, rows * columns, count * (c // group)))
    weights = reshape(node.input(1), shape=(group, filters // group, c // group, count))
    weights = reshape(transpose(weights, perm=(0, 3, 2, 1)), shape=(group, count * (c // group), filters // group))
    result = transpose(matmul(read, weights), perm=(0, 1, 3, 2))
    result = reshape(result, shape=(n, filters, rows, columns))
    return with_bias(result, node.optional(3))


def _window_places(node: Node, window: WindowAttributes, cells: Value, axis: int) -> Value:
    """Where windows read along a spatial axis, [images, kernel, rows, columns, 1] in pixels."""
    images, count, _, *space = shape_of(cells)
    offsets = reshape(_at(cells, 2, axis), shape=(images, count, *space))
    dtype, kernel = dtype_of(cells), window.kernel
    along = tuple(d if k == axis else sym(1) for k, d in enumerate(space))
    first = ew.sub(
        ew.mul(iota(shape=along, axis=axis, dtype=dtype), window.strides[axis]),
        image.size_scalar(window.pads_begin[axis], dtype),
    )
    own = iota(shape=tuple(d if k == axis else sym(1) for k, d in enumerate(kernel)), axis=axis, dtype=dtype)
    taps = reshape(expand(ew.mul(own, window.dilations[axis]), shape=kernel), shape=(count, 1, 1))
    place = ew.add(offsets, ew.add(first, taps))
    return reshape(place, shape=(images, count, *space, 1))


def _at(x: Value, axis: int, position: int) -> Value:
    """One element along an axis, which stays."""
    shape = shape_of(x)
    starts = tuple(position if k == axis else 0 for k in range(len(shape)))
    sizes = tuple(sym(1) if k == axis else d for k, d in enumerate(shape))
    return slice_(x, starts=starts, sizes=sizes, steps=(1,) * len(shape))
