"""Fourier transforms, of frames too, and the weights of mel scales."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.composites.axes import apart, require
from tilewright.frontends.composites.fourier import real_inverse, resized, transformed
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.reduce import as_dtype, widened
from tilewright.ops.source import iota, sym_tensor
from tilewright.ops.view import concat, reshape, shape_of, transpose


@adapter("DFT", since=17)
def dft(node: Node) -> Value:
    """The axis is an attribute before opset 20, and an operand from then on."""
    rank = node.rank(0)
    axes = (sym(node.axis()),) if node.version < 20 else node.axes("axis", 2) or (sym(max(rank - 2, 0)),)
    parts = node.shape(0)[-1] if rank else s.sym(0)
    if rank < 2 or len(axes) != 1 or axes[0] == rank - 1 or parts not in (1, 2):
        raise ModelError(
            f"DFT of {node.type(0)} along axis {axes[0]}: the last axis holds one or two parts of a number"
        )
    (axis,) = axes
    x, (*signal, _) = widened(node.input(0)), node.shape(0)
    if axis.is_const:
        return as_dtype(_along(node, x, axis.value), node.dtype(0))
    require(node.translation, s.lt(axis, rank - 1), "DFT goes along the axis of the parts of a number")
    result = _along(node, reshape(x, shape=(*apart(signal, axis), parts)), 1)
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
    if inverse and onesided:
        n = 2 * (size - 1) if length is None else length
        return real_inverse(resized(x, len(shape_of(x)) - 2, n // 2 + 1), n)
    n = size if length is None else length
    if n.is_const and n.value < 1:
        raise ModelError(f"a Fourier transform of {n} elements is not possible")
    x = resized(x, len(shape_of(x)) - 2, n)
    return transformed(x, inverse=inverse, bins=n // 2 + 1 if onesided else None)


@adapter("STFT", since=17)
def stft(node: Node) -> Value:
    """Frames [batch, frames, length] of the signal, times the window, transformed."""
    if node.rank(0) not in (2, 3) or (node.rank(0) == 3 and node.shape(0)[2] not in (1, 2)):
        raise ModelError(
            f"STFT of {node.type(0)}: the signal has the axes batch and time, and the parts of a number"
        )
    x = widened(node.input(0))
    batch, size = shape_of(x)[:2]
    signal = reshape(x, shape=(batch, size, 1)) if node.rank(0) == 2 else x
    window, step = node.optional(2), node.one_symbol(1)
    known = node.shape(2)[0] if window is not None else size
    length = known if node.optional(3) is None else node.one_symbol(3)
    if (step.is_const and step.value < 1) or (length.is_const and length.value < 1):
        raise ModelError(f"STFT with frames of {length} elements that are {step} apart")
    if window is not None and known.is_const and length.is_const and known != length:
        raise ModelError(f"STFT: the window {node.type(2)} is not of {length} elements")
    count = s.floordiv(size - length, step) + 1
    first = ew.mul(iota(shape=(count, 1), axis=0), sym_tensor(values=(step,), scalar=True))
    frames = gather(signal, ew.add(first, iota(shape=(1, length), axis=1)), axis=1)
    if window is not None:
        frames = ew.mul(frames, reshape(widened(window), shape=(length, 1)))
    bins = length // 2 + 1 if node.flag("onesided") else None
    return as_dtype(transformed(frames, bins=bins), node.dtype(0))


@adapter("MelWeightMatrix", since=17)
def mel_weight_matrix(node: Node) -> Value:
    """Triangles over the bins of a spectrum, between frequencies that lie on the mel scale at equal distances."""
    if any(node.constant_or_none(k) is None for k in range(5)):
        together = concat(*[reshape(ew.cast(x, dtype=dt.f32), shape=(1,)) for x in node.operands], axis=0)
        raise node.translation.must_be_known(together, "MelWeightMatrix needs its inputs at compile time")
    if any(node.constant(k).size != 1 for k in range(5)):
        raise ModelError("MelWeightMatrix takes single numbers")
    count, length, rate, low, high = (node.constant(k).reshape(()).item() for k in range(5))
    if not (0 < count <= 2**16 and 0 < length <= 2**24 and rate > 0 and 0 <= low < high):
        raise ModelError(
            f"MelWeightMatrix: {count} bands from {low} to {high} Hz of {length} samples at {rate} Hz"
        )
    mels = np.array([2595 * np.log10(1 + f / 700) for f in (low, high)])
    places = mels[0] + np.arange(count + 2) * (mels[1] - mels[0]) / (count + 2)
    edges = ((length + 1) * (700 * (10 ** (places / 2595) - 1)) // rate).astype(int)
    bins = np.arange(length // 2 + 1)[:, None]
    if edges[-1] > len(bins):
        raise ModelError(f"MelWeightMatrix: {high} Hz are beyond half of the rate, {rate} Hz")
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    rising = np.where(centre > left, (bins - left) / np.maximum(centre - left, 1), 1.0)
    falling = (right - bins) / np.maximum(right - centre, 1)
    weights = np.where((bins >= left) & (bins <= centre), rising, 0.0)
    weights = np.where((bins >= centre) & (bins < right), falling, weights)
    return constant(weights.astype(node.dtype_attr("output_datatype").storage), "mel")
