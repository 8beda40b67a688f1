"""Convolutions whose results are in blocks of channels, or lie beside such."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.cost.conv.layouts import blocks_fill_lanes, fills_blocks, leaves_blocks, writes_padding
from tilewright.graph.algorithms.winograd import MOST_GROWTH
from tilewright.graph.layout.conv_window import ConvWindow, has_known_filters, pad_space
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.graph.layout.spatial_blocking import conv_by_positions, suits_positions
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops.blocked import conv_blocked, depthwise_blocked
from tilewright.ops.contract import matmul
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import pad, reshape, slice_
from tilewright.passes import PassContext
from tilewright.target.target import Target

STAGE = "block-channels"


def starts_blocks(op: Op, block: int, target: Target | None) -> bool:
    """Whether an op asks for blocks by itself: other operators only continue them."""
    if op.name == "conv":
        return suits_positions(op, block, target) or has_blocked_result(op, block)
    return op.name == "conv_transpose"


def has_blocked_result(op: Op, block: int) -> bool:
    """Whether a convolution can have a blocked result."""
    if not has_known_filters(op):
        return False
    filters = [d.value for d in shape_of(op.operands[1])]
    return filters_suit_blocks(filters, op.attrs["groups"], block)


def filters_suit_blocks(filters: Sequence[int], groups: int, block: int) -> bool:
    """Whether a convolution with filters of this shape can have a blocked result."""
    o, i = filters[:2]
    if groups == 1:
        return fills_blocks(o)
    is_depthwise = i == 1 and groups == o and fills_blocks(o)
    return is_depthwise or (i % block == 0 and o // groups % block == 0)


def sums_all_channels(op: Op, value: Value, block: int) -> bool:
    """Whether an op is a convolution that sums over all channels of `value`, in its blocked form."""
    if op.name != "conv" or op.operands[0] is not value or op.attrs["groups"] != 1:
        return False
    return has_blocked_result(op, block) or _is_projection(op)


def layout_conv(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    """Emit a convolution in the layout that suits it; False when it stays as it is."""

    def remark(message: str, applied: bool = False) -> None:
        ctx.remark(STAGE, f"conv {op.loc}", message, applied=applied)

    if suits_positions(op, layouts.block, ctx.target):
        conv_by_positions(op, layouts)
        remark("positions take the place of its one channel", applied=True)
        return True
    reads_blocked = layouts.has_blocked(op.operands[0])
    if not has_blocked_result(op, layouts.block) and not (reads_blocked and _is_projection(op)):
        remark("its weights, groups or dtype do not allow whole blocks of channels")
        return False
    window = ConvWindow(op)
    if _is_depthwise(op):
        _depthwise(op, window, layouts)
    elif _stays_plain(op, window, layouts, ctx.target) and not _fills_lanes(op, layouts, ctx.target):
        remark("plain values come in and the result leaves: lanes are positions")
        if not window.is_single:
            return False
        _product(op, window, layouts)
    else:
        _dense(op, window, layouts, ctx.target)
    return True


def _is_projection(op: Op) -> bool:
    """A 1x1 convolution: with few filters too, blocks with empty lanes cost less than another layout of the data."""
    is_known = has_known_filters(op) and op.attrs["groups"] == 1
    return is_known and all(d == 1 for d in shape_of(op.operands[1])[2:])


def _is_depthwise(op: Op) -> bool:
    o, i = (d.value for d in shape_of(op.operands[1])[:2])
    return i == 1 and op.attrs["groups"] == o and fills_blocks(o)


def _reads_blocks(op: Op, layouts: LayoutMap) -> bool:
    """Whether a convolution reads blocked data: all but those of few channels, as images have."""
    return layouts.has_blocked(op.operands[0]) or shape_of(op.operands[1])[1].value >= layouts.block


def _stays_plain(op: Op, window: ConvWindow, layouts: LayoutMap, target: Target | None) -> bool:
    """Whether changing the layout of the result would cost more than blocks save: it only leaves, and the data are
    plain, with single positions, or few terms to be summed and lines of known length that lanes read unspread."""
    if op.attrs["groups"] != 1 or op.attrs["sums"] or layouts.has_blocked(op.operands[0]) or not _leaves(op):
        return False
    if window.is_single:
        return True
    in_lanes = window.strides[-1] == 1 and shape_of(op.result)[-1].is_const
    filters, *summed = (d.value for d in shape_of(op.operands[1]))
    has_many_terms = target is not None and leaves_blocks(prod(summed), filters, target)
    return in_lanes and not has_many_terms and not _reads_blocks(op, layouts)


def _fills_lanes(op: Op, layouts: LayoutMap, target: Target | None) -> bool:
    """Whether a product for an image of unknown size is better computed in blocks, as it is expected to be small."""
    space = shape_of(op.result)[2:]
    if target is None or all(d.is_const for d in space):
        return False
    outputs, inputs = (d.value for d in shape_of(op.operands[1])[:2])
    return blocks_fill_lanes([prod(extents) for extents in layouts.typical.of(space)], inputs, outputs, target)


def _leaves(op: Op) -> bool:
    """Whether only elementwise work follows before the function returns."""
    users = [u for v in op.results for u in v.users]
    return all(u.name == "return" or (is_elementwise(u) and _leaves(u)) for u in users)


def _dense(op: Op, window: ConvWindow, layouts: LayoutMap, target: Target | None) -> None:
    """A convolution over all channels, or over those of a group; few channels are read plain: images have three."""
    x, groups = op.operands[0], op.attrs["groups"]
    attrs = {"block": layouts.block, "sums": op.attrs["sums"]}
    is_blocked = _reads_blocks(op, layouts)
    is_flat = window.is_pointwise and len(window.kernel) > 1
    w = _filled_weights(op, layouts, is_blocked and groups == 1, 1 if is_flat else len(window.kernel))
    if is_flat:
        data = layouts.flat(x) if is_blocked else _merged(layouts.plain(x))
        layouts.set_flat(op.result, conv_blocked(data, w, groups=groups, **attrs))
        return
    data = window.padded(layouts.blocked(x) if is_blocked else layouts.plain(x), int(is_blocked))
    if not is_blocked and op.attrs["sums"]:
        data, w = _whole_groups(data, w, window, target, layouts)
    made = conv_blocked(data, w, groups=groups, **attrs, **window.attrs)
    layouts.set_blocked(op.result, made)


def _whole_groups(
    x: Value, w: Value, window: ConvWindow, target: Target | None, layouts: LayoutMap
) -> tuple[Value, Value]:
    """Plain data and filters with zeros behind their lines: neighbours along a line, the last axis of more than one
    element, are multiplied in groups."""
    shape = shape_of(x)
    axis = max((k for k in range(2, len(shape)) if shape[k] != 1), default=len(shape) - 1)
    if window.dilations[axis - 2] != 1:
        return x, w
    narrow = (dtype_of(x), dtype_of(w))
    dots = () if target is None else target.dots
    group = next((dot.group for dot in dots if (dot.left, dot.right) == narrow), 1)
    more = -shape_of(w)[axis].value % group
    if not more:
        return x, w
    behind = [more if k == axis else 0 for k in range(len(shape))]
    padded = pad(x, before=(0,) * len(shape), after=behind)
    return padded, layouts.filters(np.pad(layouts.array(w), [(0, n) for n in behind]), w)


def _depthwise(op: Op, window: ConvWindow, layouts: LayoutMap) -> None:
    """Conditions cost little in lines of known length: each load serves one product, and padding apart would be another
    pass."""
    x, w = layouts.blocked(op.operands[0]), _filled_weights(op, layouts, False, len(window.kernel))
    before, after = list(window.before), list(window.after)
    if not shape_of(op.result)[-1].is_const and writes_padding(window.kernel[-1].value):
        others = [sym(0)] * (len(before) - 1)
        x = pad_space(x, [*others, before[-1]], [*others, after[-1]], 1)
        before[-1] = after[-1] = sym(0)
    pads = {"pads_begin": tuple(before), "pads_end": tuple(after)}
    made = depthwise_blocked(x, w, **pads, sums=op.attrs["sums"], **window.attrs)
    layouts.set_blocked(op.result, made)


def _product(op: Op, window: ConvWindow, layouts: LayoutMap) -> None:
    """A convolution of single positions between plain tensors is a product of matrices: no layout changes."""
    x, w = layouts.plain(op.operands[0]), layouts.plain(op.operands[1])
    if not window.is_pointwise:
        sizes = (*shape_of(x)[:2], *shape_of(op.result)[2:])
        x = slice_(x, starts=(0,) * len(sizes), sizes=sizes, steps=(1, 1, *window.strides))
    y = matmul(reshape(w, shape=shape_of(w)[:2]), _merged(x))
    layouts.set_plain(op.result, reshape(y, shape=shape_of(op.result)))


def _merged(x: Value) -> Value:
    """Plain x with its spatial axes as one."""
    n, c, *space = shape_of(x)
    return reshape(x, shape=(n, c, product(space)))


# Filters


def _filled_weights(op: Op, layouts: LayoutMap, fill_inputs: bool, spatial: int) -> Value:
    """The filters with zeros up to whole blocks, with `fill_inputs` up to the input channels that are summed, and
    with `spatial` kernel axes."""
    value = op.operands[1]
    array = layouts.array(value)
    slots = layouts.slots(op.operands[0])
    if slots is not None:
        spread = np.zeros((len(array), slots[-1] + 1, *array.shape[2:]), array.dtype)
        spread[:, list(slots)] = array
        array = spread
    o, i, *kernel = array.shape
    grow_o = layouts.filled(o) - o
    grow_i = _summed_channels(op, i, layouts.block) - i if fill_inputs else 0
    if not grow_o and not grow_i and len(kernel) == spatial and slots is None:
        return layouts.plain(value)
    shape = (o, i, *kernel) if len(kernel) == spatial else (o, i, 1)
    grown = np.pad(array.reshape(shape), ((0, grow_o), (0, grow_i), *((0, 0) for _ in shape[2:])))
    return layouts.filters(grown, value)


def _summed_channels(op: Op, count: int, block: int) -> int:
    """Input channels with those beyond the last that are summed with them: as few as leave runs of a fair length, but
    whole blocks where Winograd's algorithm, which transforms whole ones, may take over."""
    window = ConvWindow(op)
    unit = all(n == 1 for n in (*window.strides, *window.dilations))
    may_transform = unit and bool(tile_lengths(tuple(n.value for n in window.kernel), MOST_GROWTH))
    runs = (block,) if may_transform else (block, block // 2, block // 4)
    return min(-(-count // run) * run for run in runs)
