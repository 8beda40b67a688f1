"""Fourier transforms, and those of frames of a signal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.frontends.torch.adapters.frames import frames_of, overlapped
from tilewright.frontends.torch.node import AtenNode, Number, whole
from tilewright.frontends.torch.registry import aten, on_complex
from tilewright.frontends.translation import type_of
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym, sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops.composites import complex as cx
from tilewright.ops.composites.complex import ComplexPair
from tilewright.ops.composites.fourier import fft, irfft
from tilewright.ops.source import full
from tilewright.ops.view import expand, pad, reshape, shape_of, slice_, transpose

Held = Value | ComplexPair

_POWERS = (0.0, 0.5, 1.0)
"""For each way to normalise, which power of the number of elements divides the sum."""


def _scale_of(node: AtenNode, sizes: Sequence[Sym], normalization: int, inverse: bool = False) -> float | None:
    """What the sum is multiplied with, where it is one number: None for inverse transforms that each axis divides."""
    count = product(sizes)
    if not normalization:
        return 1.0
    if inverse and normalization == len(_POWERS) - 1:
        return None
    if not count.is_const:
        raise node.refuse("a normalised Fourier transform along an axis of unknown size")
    return 1.0 / float(count.value) ** _POWERS[normalization]


def _sizes(node: AtenNode, x: Held, dim: Sequence[int]) -> tuple[list[int], list[Sym]]:
    shape = shape_of(cx.real_of(x))
    axes = [node.axis(int(d), len(shape)) for d in dim]
    return axes, [shape[a] for a in axes]


@on_complex("_fft_c2c")
def c2c(node: AtenNode, self: ComplexPair, dim: Sequence[int], normalization: int, forward: bool) -> ComplexPair:
    """Axis by axis."""
    axes, sizes = _sizes(node, self, dim)
    scale, found = _scale_of(node, sizes, normalization, not forward), self
    for axis in reversed(axes):
        found = fft(found, axis, inverse=not forward, scale=scale)
        scale = None if scale is None else 1.0
    return found


@on_complex("_fft_r2c")
def r2c(node: AtenNode, self: Value, dim: Sequence[int], normalization: int, onesided: bool) -> ComplexPair:
    """The last axis first, of which half may be left out."""
    axes, sizes = _sizes(node, self, dim)
    *others, last = axes
    scale = _scale_of(node, sizes, normalization)
    found = fft(self, last, bins=sizes[-1] // 2 + 1 if onesided else None, scale=scale)
    for axis in reversed(others):
        found = fft(found, axis, scale=1.0)
    return found


@on_complex("_fft_c2r")
def c2r(
    node: AtenNode, self: ComplexPair, dim: Sequence[int], normalization: int, last_dim_size: Number
) -> Value:
    axes, sizes = _sizes(node, self, dim)
    *others, last = axes
    size = whole(last_dim_size)
    scale, found = _scale_of(node, [*sizes[:-1], size], normalization, True), self
    for axis in others:
        found = fft(found, axis, inverse=True, scale=None if scale is None else 1.0)
    half = size // 2 + 1
    if shape_of(found.real)[last] != half:
        shape = tuple(half if k == last else d for k, d in enumerate(shape_of(found.real)))
        found = cx.each(found, lambda v: slice_(v, starts=(0,) * len(shape), sizes=shape, steps=(1,) * len(shape)))
    return irfft(found, last, size, scale=scale)


# Frames


def _window(node: AtenNode, window: Held | None, length: Number | None, size: Sym, like: Value) -> Held | None:
    """The window with as many elements as a frame, zeros around it."""
    own = size if length is None else whole(length)
    dtype = type_of(like).dtype
    if window is None and own == size:
        return None
    window = full(value=1.0, dtype=dtype, shape=(own,)) if window is None else window
    before = s.floordiv(size - own, 2)

    def wide(v: Value) -> Value:
        v = node.value(v, dtype)
        return v if own == size else pad(v, before=(before,), after=(size - own - before,))

    return cx.each(window, wide) if isinstance(window, ComplexPair) else wide(window)


@aten("stft")
def stft(node: AtenNode, self: Held, n_fft: Number, hop_length: Number | None = None, win_length: Number | None = None,
         window: Held | None = None, normalized: bool = False, onesided: bool | None = None,
         return_complex: bool | None = None, align_to_window: bool | None = None, center: bool = False,
         pad_mode: str = "reflect") -> Held:  # fmt: skip
    """[batch, time] -> [batch, bins, frames]."""
    size = whole(n_fft)
    step = s.floordiv(size, 4) if hop_length is None else whole(hop_length)
    if center or align_to_window:
        raise node.refuse("transforms of frames that begin elsewhere", "pad the signal before, and give center=False")
    real = cx.real_of(self)
    shape = shape_of(real)
    batched = len(shape) == 2
    weights = _window(node, window, win_length, size, real)

    def framed(x: Value) -> Value:
        # Frames are the last axis from here on, along which all kernels compute, and which is that of the result.
        return transpose(frames_of(x if batched else reshape(x, shape=(1, *shape)), size, step), perm=(0, 2, 1))

    found: Held = cx.each(self, framed) if isinstance(self, ComplexPair) else framed(self)
    if weights is not None:
        weights = _column(weights)
        found = cx.mul(found, weights) if ComplexPair in (type(found), type(weights)) else ew.mul(found, weights)
    is_half = onesided is not False and isinstance(found, Value)
    scale = _normalised(node, size) if normalized else 1.0
    bins = fft(found, 1, bins=size // 2 + 1 if is_half else None, scale=scale)
    if not batched:
        bins = cx.each(bins, lambda v: reshape(v, shape=shape_of(v)[1:]))
    return bins if node.is_complex else cx.joined(bins)


def _column(x: Held) -> Held:
    """A window along the axis before the last."""
    if isinstance(x, ComplexPair):
        return cx.each(x, lambda v: reshape(v, shape=(*shape_of(v), 1)))
    return reshape(x, shape=(*shape_of(x), 1))


def _normalised(node: AtenNode, size: Sym) -> float:
    if not size.is_const:
        raise node.refuse("normalised frames of unknown size")
    return float(1.0 / math.sqrt(size.value))


@on_complex("stft")
def complex_stft(node: AtenNode, **how: object) -> Held:
    return stft(node, **how)


@on_complex("istft")
def istft(node: AtenNode, self: ComplexPair, n_fft: Number, hop_length: Number | None = None,
          win_length: Number | None = None, window: Held | None = None, center: bool = True,
          normalized: bool = False, onesided: bool | None = None, length: Number | None = None,
          return_complex: bool = False) -> Held:  # fmt: skip
    """[batch, bins, frames] -> [batch, time]: frames are added where they overlap, and divided by the sum of the
    squares of the windows there."""
    size = whole(n_fft)
    step = s.floordiv(size, 4) if hop_length is None else whole(hop_length)
    batched = len(shape_of(self.real)) == 3
    bins = self if batched else cx.each(self, lambda v: reshape(v, shape=(1, *shape_of(v))))
    scale = 1.0 / (size.value * _normalised(node, size)) if normalized else None
    window = _window(node, window, win_length, size, self.real)
    is_half = onesided is not False and not return_complex
    found: Held = irfft(bins, 1, size, scale=scale) if is_half else fft(bins, 1, inverse=True, scale=scale)
    if isinstance(window, ComplexPair):
        raise node.refuse("a complex window")
    if not return_complex:
        found = cx.real_of(found)
    count = shape_of(bins.real)[2]
    one = full(value=1.0, dtype=type_of(self.real).dtype, shape=(size,))
    squares = one if window is None else ew.mul(window, window)
    level = overlapped(_repeated(squares, count), step)
    total = shape_of(level)[1]
    start = s.floordiv(size, 2) if center else sym(0)
    end = start + whole(length) if length is not None else total - start if center else total
    beyond = s.maximum(end - total, 0)

    def joined(v: Value) -> Value:
        weighted = v if window is None else ew.mul(v, _column(window))
        whole_ = overlapped(transpose(weighted, perm=(0, 2, 1)), step)
        quotient = ew.div(_between(whole_, start, end - beyond), _between(level, start, end - beyond))
        if beyond != 0:
            quotient = pad(quotient, before=(sym(0), sym(0)), after=(sym(0), beyond))
        return quotient if batched else reshape(quotient, shape=shape_of(quotient)[1:])

    return cx.each(found, joined) if isinstance(found, ComplexPair) else joined(found)


def _repeated(x: Value, count: Sym) -> Value:
    """The window in each frame."""
    return expand(x, shape=(1, count, shape_of(x)[0]))


def _between(x: Value, start: Sym, end: Sym) -> Value:
    return slice_(x, starts=(sym(0), start), sizes=(shape_of(x)[0], end - start), steps=(1, 1))


@aten("unfold_backward")
def unfold_backward(
    node: AtenNode, grad_in: Value, input_sizes: Sequence[Number], dim: int, size: Number, step: Number
) -> Value:
    """What windows of an axis, which are the last one, add up to where they overlap."""
    rank = len(input_sizes)
    axis = node.axis(dim, rank)
    order = (*[k for k in range(rank) if k != axis], axis, rank)
    moved = transpose(grad_in, perm=order)
    *outer, count, width = shape_of(moved)
    flat = overlapped(reshape(moved, shape=(product(outer), count, width)), whole(step))
    wanted = whole(input_sizes[axis])
    rest = wanted - shape_of(flat)[1]
    if rest != 0:
        flat = pad(flat, before=(sym(0), sym(0)), after=(sym(0), rest))
    found = reshape(flat, shape=(*outer, wanted))
    last = [k for k in range(rank) if k != axis] + [axis]
    return transpose(found, perm=tuple(last.index(k) for k in range(rank)))


