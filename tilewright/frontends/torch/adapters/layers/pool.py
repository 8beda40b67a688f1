"""Pooling, of fixed windows and of windows that follow from the size of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.node import AtenNode, Number, whole
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, ceildiv, maximum
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import pool
from tilewright.ops import reduce as rd
from tilewright.ops.composites.windows import WindowAttributes, rounded_up
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.image import size_scalar
from tilewright.ops.index import gather
from tilewright.ops.source import iota
from tilewright.ops.view import reshape, shape_of, transpose


def _per_axis(
    values: Sequence[Number] | Number | None, space: int, default: tuple[Any, ...]
) -> tuple[Any, ...]:
    if values is None or (isinstance(values, tuple) and not values):
        return default
    listed = (values,) if not isinstance(values, tuple) else values
    return tuple(listed) * (space if len(listed) == 1 else 1)


def _window(
    kernel: Sequence[Number], stride: Any, padding: Any, dilation: Any, space: int
) -> WindowAttributes:
    sizes = tuple(whole(k) for k in _per_axis(kernel, space, ()))
    pads = tuple(whole(p) for p in _per_axis(padding, space, (0,) * space))
    strides = tuple(int(s) for s in _per_axis(stride, space, tuple(k.value for k in sizes)))
    return WindowAttributes(
        sizes, strides, pads, pads, tuple(int(d) for d in _per_axis(dilation, space, (1,) * space))
    )


def _space(op: str) -> int:
    return next(n for n in (1, 2, 3) if f"{n}d" in op)


def _batched(x: Value, space: int) -> Value:
    """x with a batch in front of its channels."""
    shape = shape_of(x)
    return x if len(shape) == space + 2 else reshape(x, shape=(1, *shape))


def _unbatched(found: Value, x: Value) -> Value:
    return found if len(shape_of(found)) == len(shape_of(x)) else reshape(found, shape=shape_of(found)[1:])


@aten(
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool2d_with_indices",
    "max_pool3d_with_indices",
    "max_pool1d_with_indices",
    "mkldnn_max_pool2d",
    "mkldnn_max_pool3d",
)
def max_pool(
    node: AtenNode, self: Value, kernel_size: Sequence[Number], stride: Any = (), padding: Any = (0,),
    dilation: Any = (1,), ceil_mode: bool = False,
) -> Any:  # fmt: skip
    space = _space(node.op)
    x = _batched(self, space)
    window = _window(kernel_size, stride, padding, dilation, space)
    window = rounded_up(window, shape_of(x)[2:]) if ceil_mode else window
    attrs = {"kernel": window.kernel, **window.sliding}
    found = pool.max_pool(x, **attrs)
    if "with_indices" not in node.op:
        return _unbatched(found, self)
    places = pool.max_pool_positions(x, found, **attrs)
    plane = size_scalar(product(shape_of(x)[2:]), dt.i64)
    return _unbatched(found, self), _unbatched(ew.rem(places, plane), self)


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def average_pool(
    node: AtenNode, self: Value, kernel_size: Sequence[Number], stride: Any = (), padding: Any = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:  # fmt: skip
    space = _space(node.op)
    x = _batched(self, space)
    asked = _window(kernel_size, stride, padding, None, space)
    window = rounded_up(asked, shape_of(x)[2:]) if ceil_mode else asked
    overhang = tuple(w - a for w, a in zip(window.pads_end, asked.pads_end, strict=True))
    attrs = {"kernel": asked.kernel, **asked.sliding}
    if divisor_override is not None:
        total = pool.sum_pool(rd.widened(x), **{**attrs, "pads_end": window.pads_end})
        found = rd.as_dtype(ew.div(total, node.value(divisor_override, type_of(total).dtype)), node.dtype)
    else:
        found = pool.average_pool(x, **attrs, overhang=overhang, include_pad=count_include_pad)
    return _unbatched(found, self)


@aten(
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
)
def adaptive_average(node: AtenNode, self: Value, output_size: Sequence[Number]) -> Value:
    """Window i of n along an axis of s elements goes from floor(i * s / n) to ceil((i + 1) * s / n)."""
    space = _space(node.op)
    sizes = [whole(n) for n in output_size]
    x = _batched(self, space)
    if all(n == 1 for n in sizes):
        return _unbatched(rd.reduce_mean(x, axes=tuple(range(2, 2 + space))), self)
    window = _even_windows(shape_of(x)[2:], sizes)
    if window is not None:
        found = pool.average_pool(x, kernel=window, strides=window)
        return _unbatched(found, self)
    for k, n in enumerate(sizes):
        x = _averaged(node, x, 2 + k, n)
    return _unbatched(x, self)


def _even_windows(space: Sequence[Sym], sizes: Sequence[Sym]) -> tuple[int, ...] | None:
    """The size of windows that divide each axis evenly; None where they do not."""
    if not all(
        d.is_const and n.is_const and n.value and d.value % n.value == 0
        for d, n in zip(space, sizes, strict=True)
    ):
        return None
    return tuple(max(d.value // n.value, 1) for d, n in zip(space, sizes, strict=True))


def _averaged(node: AtenNode, x: Value, axis: int, count: Sym) -> Value:
    """The means of windows along an axis: a product with a matrix of weights, or where sizes are not known, of what is
    gathered."""
    size = shape_of(x)[axis]
    if not (size.is_const and count.is_const):
        return _averaged_by_gather(x, axis, count)
    weights = np.zeros((size.value, count.value))
    for i in range(count.value):
        begin, end = i * size.value // count.value, -(-(i + 1) * size.value // count.value)
        weights[begin:end, i] = 1 / (end - begin)
    dtype = type_of(x).dtype
    matrix = constant(weights.astype(dtype.storage), "averages")
    rank = len(shape_of(x))
    order = (*[k for k in range(rank) if k != axis], axis)
    back = tuple(order.index(k) for k in range(rank))
    return transpose(matmul(transpose(x, perm=order), matrix), perm=back)


def _starts_and_ends(size: Sym, count: Sym) -> tuple[Value, Value]:
    """Where the windows of an axis begin and end: vectors of i64."""
    number = iota(shape=(count,), axis=0)
    long, windows = (size_scalar(d, dt.i64) for d in (size, maximum(count, 1)))
    begin = ew.div(ew.mul(number, long), windows)
    end = ew.div(ew.add(ew.mul(ew.add(number, 1), long), ew.sub(windows, 1)), windows)
    return begin, end


def _places(size: Sym, count: Sym) -> Value:
    """The positions that the windows of an axis read [windows, elements]: as many as the widest may have, of which the
    last ones may be repeated."""
    if size.is_const and count.is_const:
        numbers = np.arange(count.value)
        first, last = numbers * size.value // count.value, -(-(numbers + 1) * size.value // count.value)
        widest = int((last - first).max(initial=1))
        return constant(np.minimum(first[:, None] + np.arange(widest), last[:, None] - 1), "windows")
    begin, end = (reshape(v, shape=(count, 1)) for v in _starts_and_ends(size, count))
    across = iota(shape=(1, ceildiv(size, maximum(count, 1)) + 1), axis=1)
    return ew.min_(ew.add(begin, across), ew.sub(end, 1))


def _averaged_by_gather(x: Value, axis: int, count: Sym) -> Value:
    places, (begin, end) = _places(shape_of(x)[axis], count), _starts_and_ends(shape_of(x)[axis], count)
    behind = len(shape_of(x)) - axis - 1
    taken = rd.widened(gather(x, places, axis=axis))
    lengths = ew.sub(end, begin)
    width = shape_of(places)[1]
    is_own = ew.lt(iota(shape=(1, width), axis=1), reshape(lengths, shape=(count, 1)))
    own = reshape(is_own, shape=(count, width, *[1] * behind))
    total = rd.reduce_sum(ew.select(own, taken, 0.0), axes=(axis + 1,), keepdims=False)
    counts = ew.cast(reshape(lengths, shape=(count, *[1] * behind)), dtype=type_of(total).dtype)
    return rd.as_dtype(ew.div(total, counts), type_of(x).dtype)


@aten("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max(node: AtenNode, self: Value, output_size: Sequence[Number]) -> tuple[Value, Value]:
    space = _space(node.op)
    x, sizes = _batched(self, space), [whole(n) for n in output_size]
    window = _even_windows(shape_of(x)[2:], sizes)
    if window is None:
        found, places = _greatest(node, x, sizes)
        return _unbatched(found, self), _unbatched(places, self)
    found = pool.max_pool(x, kernel=window, strides=window)
    places = pool.max_pool_positions(x, found, kernel=window, strides=window)
    plane = size_scalar(product(shape_of(x)[2:]), dt.i64)
    return _unbatched(found, self), _unbatched(ew.rem(places, plane), self)


def _greatest(node: AtenNode, x: Value, sizes: Sequence[Sym]) -> tuple[Value, Value]:
    """The greatest elements of windows that overlap unevenly, and their positions in the plane: a gather of as many
    elements as the greatest window has, of which the last ones may be repeated."""
    space = shape_of(x)[2:]
    plane = constant(np.zeros((1, 1), np.int64), "windows")  # positions [windows, elements] of the axes so far
    for d, n in zip(space, sizes, strict=True):
        (before, reach), at = shape_of(plane), _places(d, n)
        width = shape_of(at)[1]
        whole_rows = ew.mul(reshape(plane, shape=(before, 1, reach, 1)), size_scalar(d, dt.i64))
        both = ew.add(whole_rows, reshape(at, shape=(1, n, 1, width)))
        plane = reshape(both, shape=(before * n, reach * width))
    windows, width = shape_of(plane)
    outer = shape_of(x)[:2]
    flat = reshape(x, shape=(*outer, product(space)))
    taken = gather(flat, plane, axis=2)
    best = rd.argmax(taken, axis=3, keepdims=True)
    found = rd.reduce_max(taken, axes=(3,), keepdims=False)
    table = reshape(plane, shape=(windows * width,))
    row = reshape(iota(shape=(windows,), axis=0), shape=(windows, 1))
    at_ = ew.add(ew.mul(row, size_scalar(width, dt.i64)), best)
    places = reshape(gather(table, at_, axis=0), shape=(*outer, windows))
    shape = (*outer, *sizes)
    return reshape(found, shape=shape), reshape(places, shape=shape)
