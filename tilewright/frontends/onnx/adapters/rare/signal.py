"""Fourier transforms, of frames too, and the weights of mel scales."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.axes import around_axis, require
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.fourier import real_inverse, resized, transformed
from tilewright.ops.composites.shapes import checked_shape
from tilewright.ops.index import gather
from tilewright.ops.reduce import as_dtype, widened
from tilewright.ops.source import dim_value, iota
from tilewright.ops.view import reshape, section, shape_of, transpose

PARTS = "the last axis holds one or two parts of a number"


def _of_parts(node: Node, x: Value) -> Value:
    """x, whose last axis holds the parts of numbers: both of them, where it is not known how many there are."""
    *_, parts = shape_of(x)
    if parts.is_const and parts.value in (1, 2):
        return x
    found = s.logical_or(s.eq(parts, 1), s.eq(parts, 2))
    require(node.translation, found, f"{node.op} of {node.type(0)}: {PARTS}")
    return resized(x, len(shape_of(x)) - 1, sym(2))


@adapter("DFT", since=17)
def dft(node: Node) -> Value:
    """The axis is an attribute before opset 20, and an operand from then on."""
    rank = node.rank(0)
    axes = (sym(node.axis_attr()),) if node.version < 20 else node.axes("axis", 2) or (sym(max(rank - 2, 0)),)
    if rank < 2 or len(axes) != 1 or axes[0] == rank - 1:
        raise ModelError(f"DFT of {node.type(0)} along axis {axes[0]}: {PARTS}")
    (axis,) = axes
    x = _of_parts(node, widened(node.input(0)))
    *signal, parts = shape_of(x)
    if axis.is_const:
        return as_dtype(_along(node, x, axis.value), node.dtype(0))
    require(node.translation, s.lt(axis, rank - 1), "DFT goes along the axis of the parts of a number")
    result = _along(node, reshape(x, shape=(*around_axis(signal, axis), parts)), 1)
    _, size, _, parts = shape_of(result)
    dims = [s.select(s.eq(axis, k), size, d) for k, d in enumerate(signal)]
    return as_dtype(reshape(result, shape=(*dims, parts)), node.dtype(0))


def _along(node: Node, x: Value, axis: int) -> Value:
    """The transform of x along an axis that is not the last."""
    rank = len(shape_of(x))
    length = None if node.optional(1) is None else node.one_symbol(1)
    order = (*[k for k in range(rank - 1) if k != axis], axis, rank - 1)
    inverse, onesided = node.flag("inverse"), node.flag("onesided")
    result = _transformed(transpose(x, perm=order), length, inverse=inverse, onesided=onesided)
    return transpose(result, perm=tuple(order.index(k) for k in range(rank)))


def _transformed(x: Value, length: Sym | None, *, inverse: bool, onesided: bool) -> Value:
    size = shape_of(x)[-2]
    is_mirrored = inverse and onesided
    n = length if length is not None else 2 * (size - 1) if is_mirrored else size
    if n.is_const and n.value < 1:
        raise ModelError(f"a Fourier transform of {n} elements is not possible")
    if is_mirrored:
        return real_inverse(resized(x, len(shape_of(x)) - 2, n // 2 + 1), n)
    x = resized(x, len(shape_of(x)) - 2, n)
    return transformed(x, inverse=inverse, bins=n // 2 + 1 if onesided else None)


@adapter("STFT", since=17)
def stft(node: Node) -> Value:
    """Frames [batch, frames, length] of the signal, times the window, transformed."""
    if node.rank(0) not in (2, 3):
        raise ModelError(
            f"STFT of {node.type(0)}: the signal has the axes batch and time, and the parts of a number"
        )
    x = widened(node.input(0))
    batch, size = shape_of(x)[:2]
    signal = reshape(x, shape=(batch, size, 1)) if node.rank(0) == 2 else _of_parts(node, x)
    window, step = node.optional(2), node.one_symbol(1)
    known = node.shape(2)[0] if window is not None else size
    length = known if node.optional(3) is None else node.one_symbol(3)
    if (step.is_const and step.value < 1) or (length.is_const and length.value < 1):
        raise ModelError(f"STFT with frames of {length} elements that are {step} apart")
    for d in (step, length):
        require(node.translation, s.le(1, d), "STFT: steps and frames are of one element at least")
    if window is not None:
        node.demand(s.eq(known, length), f"the window {node.type(2)} is not of {length} elements")
    count = s.floordiv(size - length, step) + 1
    first = ew.mul(iota(shape=(count, 1), axis=0), dim_value(step))
    frames = gather(signal, ew.add(first, iota(shape=(1, length), axis=1)), axis=1)
    if window is not None:
        frames = ew.mul(frames, reshape(widened(window), shape=(length, 1)))
    bins = length // 2 + 1 if node.flag("onesided") else None
    return as_dtype(transformed(frames, bins=bins), node.dtype(0))


@adapter("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> Value:
    """Triangles over the bins of a spectrum, between frequencies that lie on the mel scale at equal distances; computed
    in f64."""
    count, length = node.whole_number(0), node.whole_number(1)
    rate, low, high = (ew.cast(node.scalar(k), dtype=dt.f64) for k in range(2, 5))
    known = [node.translation.constant_of(v) for v in (rate, low, high)]
    given = [None if v is None else v.item() for v in known]
    shape = checked_shape((s.floordiv(length, 2) + 1, count), "MelWeightMatrix")
    is_wrong = any(d.is_const and d.value < 1 for d in (count, length)) or (
        None not in given and not (given[0] > 0 and 0 <= given[1] < given[2])  # type: ignore[operator]
    )
    if is_wrong:
        bands = [*map(str, (count, length)), *map(str, given)]
        raise ModelError("MelWeightMatrix: {0} bands from {3} to {4} Hz of {1} samples at {2} Hz".format(*bands))
    edges = _band_edges(count, length, rate, low, high)
    found = node.translation.constant_of(edges)
    if found is not None and shape[0].is_const and found[-1] > shape[0].value:
        raise ModelError(f"MelWeightMatrix: {given[2]} Hz are beyond half of the rate, {given[0]} Hz")
    left, centre, right = (section(edges, 0, k, count) for k in range(3))
    bins = iota(shape=(shape[0], 1), axis=0, dtype=dt.f64)
    widths = [ew.max_(ew.sub(b, a), 1.0) for a, b in ((left, centre), (centre, right))]
    rising = ew.select(ew.gt(centre, left), ew.div(ew.sub(bins, left), widths[0]), 1.0)
    falling = ew.div(ew.sub(right, bins), widths[1])
    before = ew.and_(ew.ge(bins, left), ew.le(bins, centre))
    behind = ew.and_(ew.ge(bins, centre), ew.lt(bins, right))
    weights = ew.select(behind, falling, ew.select(before, rising, 0.0))
    return ew.cast(weights, dtype=node.dtype_attr("output_datatype"))


def _band_edges(count: Sym, length: Sym, rate: Value, low: Value, high: Value) -> Value:
    """The bins, as f64, where the triangles of so many bands begin, have their tops and end."""
    first, last = (ew.mul(ew.log(ew.add(ew.div(f, 700.0), 1.0)), 2595 / np.log(10)) for f in (low, high))
    bands = ew.cast(dim_value(count + 2), dtype=dt.f64)
    step = ew.div(ew.sub(last, first), bands)
    mels = ew.add(ew.mul(iota(shape=(count + 2,), axis=0, dtype=dt.f64), step), first)
    frequencies = ew.mul(ew.sub(ew.exp(ew.mul(mels, np.log(10) / 2595)), 1.0), 700.0)
    samples = ew.cast(dim_value(length + 1), dtype=dt.f64)
    return ew.floor(ew.div(ew.mul(frequencies, samples), rate))
