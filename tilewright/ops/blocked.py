"""Blocked channels [n, c / b, *space, b]: the layout for vectors along channels. Missing ones are zeros."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.ir import sym as s
from tilewright.ir.dtype import DType
from tilewright.ir.sym import Sym, ceildiv, sym
from tilewright.ops.contract import checked_groups, group_of, products
from tilewright.ops.define import Compute, compute, primitive
from tilewright.ops.define.scalar_builder import Array, Scalar, ScalarBuilder
from tilewright.ops.shape import Dim, require_equal_dim, require_rank
from tilewright.ops.window import Window


def _exists(channel: Sym, channels: Sym, block: Sym | int) -> list[Sym]:
    """The condition that a channel of the last block is there, where it may not be."""
    return [] if channels % block == 0 else [s.lt(channel, channels)]


@primitive
def block_channels(x: Array, *, block: int) -> Compute:
    """[n, c, *space] as [n, ceil(c / block), *space, block], filled up with zeros."""
    if x.rank < 2:
        raise ValueError(f"the data must have a batch and a channel axis, not {x.rank} axes")
    channels = x.shape[1]

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        n, cb, *space, lane = i
        channel = cb * block + lane
        return x.load((n, channel, *space), _exists(channel, channels, block))

    return compute([x], [x.shape[0], ceildiv(channels, block), *x.shape[2:], block], body)


@primitive
def unblock_channels(x: Array, *, channels: Dim) -> Compute:
    """[n, c / b, *space, b] as [n, channels, *space]."""
    if x.rank < 3:
        raise ValueError(f"blocked data must have 3 axes at least, not {x.rank}")
    block = x.shape[-1]
    require_equal_dim(
        ceildiv(sym(channels), block), x.shape[1], "the number of blocks of the channels and of the data"
    )

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        n, c, *space = i
        return x[(n, c // block, *space, c % block)]

    return compute([x], [x.shape[0], sym(channels), *x.shape[2:-1]], body)


@primitive
def conv_blocked(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
    groups: int = 1,
    block: int = 16,
    sums: DType | None = None,
) -> Compute:
    """`conv` with a blocked result; w is plain [o, i, *kernel], and x is blocked where it has one axis more than w.

    In a grouped convolution the channels of a group must be whole blocks.
    """
    multiply, dtype = products(x, w, sums)
    filters, summed = w.shape[:2]
    channels, is_blocked = summed * groups, x.rank > w.rank
    require_rank(x, w.rank + is_blocked, "the data")
    if is_blocked:
        require_equal_dim(x.shape[-1], sym(block), "the block of the data and of the result")
    blocks = ceildiv(channels, block) if is_blocked else channels
    require_equal_dim(x.shape[1], blocks, "the channels of the data and of the filters (times groups)")
    per_group = checked_groups(channels, summed, filters, groups)
    if groups > 1 and (summed % block != 0 or per_group % block != 0):
        raise ValueError(f"{summed} channels and {per_group} filters a group are not whole blocks of {block}")
    window = Window(x.shape[2 : w.rank], w.shape[2:], strides, pads_begin, pads_end, dilations)
    run = gcd(summed.value, block)  # channels of a block that follow each other: the last may be shorter

    def body(t: ScalarBuilder, i: Sequence[Sym], r: Sequence[Sym]) -> Scalar:
        n, ob, *out, lane = i
        o = ob * block + lane
        group = group_of(ob, per_group // block, groups)  # the same for all lanes
        if is_blocked:
            c, *k, ci = r
            at = window.positions(out, k)
            c = c * run
            place = (n, group * (summed // block) + c // block, *at, c % block + ci)
            c = c + ci
        else:
            c, *k = r
            at = window.positions(out, k)
            place = (n, group * summed + c, *at)
        data = x.load(place, window.guard(at))
        return multiply(data, w.load((o, c, *k), _exists(o, filters, block)))

    shape = [x.shape[0], ceildiv(filters, block), *window.counts, sym(block)]
    inner = [summed // run, *window.kernel, sym(run)] if is_blocked else [summed, *window.kernel]
    return compute([x, w], shape, body, reduce=inner, combine="add", dtype=dtype)


@primitive
def depthwise_blocked(
    x: Array,
    w: Array,
    *,
    strides: Sequence[int] = (),
    pads_begin: Sequence[Dim] = (),
    pads_end: Sequence[Dim] = (),
    dilations: Sequence[int] = (),
    sums: DType | None = None,
) -> Compute:
    """A convolution of each channel of blocked x with its own filter: w is plain [channels, 1, *kernel]."""
    multiply, dtype = products(x, w, sums)
    require_rank(x, w.rank + 1, "the data")
    channels, block = w.shape[0], x.shape[-1]
    require_equal_dim(x.shape[1], ceildiv(channels, block), "the blocks of the data and of the filters")
    require_equal_dim(w.shape[1], sym(1), "the channels of a filter and 1")
    window = Window(x.shape[2:-1], w.shape[2:], strides, pads_begin, pads_end, dilations)

    def body(t: ScalarBuilder, i: Sequence[Sym], k: Sequence[Sym]) -> Scalar:
        n, cb, *out, lane = i
        at = window.positions(out, k)
        c = cb * block + lane
        data = x.load((n, cb, *at, lane), window.guard(at))
        return multiply(data, w.load((c, 0, *k), _exists(c, channels, block)))

    shape = [x.shape[0], x.shape[1], *window.counts, block]
    return compute([x, w], shape, body, reduce=window.kernel, combine="add", dtype=dtype)
