"""Convolutions with one filter, whose block of channels would hold one number: positions take the place of channels.

The positions b * j + q, q in 0..b, of the last axis are computed as b filters at position j. Filter q is the given one
moved on by q strides, so all of them together are (b - 1) * stride taps longer, which long filters hardly notice:

    y[b * j + q] = sum over u of x[b * stride * j + u] * w[u - q * stride]

Every element of x is then broadcast to a whole vector of results, however far apart the elements lie; and what comes
out, [.., j, q], is the plain result already.
"""

from __future__ import annotations

import numpy as np

from tilewright.cost.conv.layouts import positions_as_channels
from tilewright.graph.layout.conv_window import ConvWindow, has_known_filters, pad_space
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.graph.match import shape_of
from tilewright.ir.core import Op
from tilewright.ir.sym import ceildiv
from tilewright.ops.blocked import conv_blocked
from tilewright.ops.view import reshape, slice_
from tilewright.target.target import Target


def suits_positions(conv: Op, block: int, target: Target | None) -> bool:
    """Whether a convolution has one filter, which is long enough for positions in the place of channels."""
    if target is None or conv.attrs["sums"] or not has_known_filters(conv):
        return False
    filters, _, *kernel = shape_of(conv.operands[1])
    window = ConvWindow(conv)
    if filters != 1 or window.dilations[-1] != 1:
        return False
    positions = shape_of(conv.result)[-1]
    count = positions.value if positions.is_const else None
    return positions_as_channels(count, kernel[-1].value, window.strides[-1], block, target)


def conv_by_positions(conv: Op, layouts: LayoutMap) -> None:
    """Emit a convolution that `suits_positions`; its result is plain."""
    window = ConvWindow(conv)
    x, block, stride = layouts.plain(conv.operands[0]), layouts.block, window.strides[-1]
    filters = _moved(layouts.array(conv.operands[1]), block, stride)
    shape = shape_of(conv.result)
    groups = ceildiv(shape[-1], block)
    reach = (groups - 1) * (block * stride) + filters.shape[-1]
    behind = reach - window.before[-1] - shape_of(x)[-1]
    made = conv_blocked(
        pad_space(x, window.before, (*window.after[:-1], behind)),
        layouts.filters(filters, conv.operands[1]),
        block=block,
        strides=(*window.strides[:-1], block * stride),
        dilations=window.dilations,
    )
    whole = reshape(made, shape=(*shape[:-1], groups * block))
    layouts.set_plain(conv.result, slice_(whole, starts=(0,) * len(shape), sizes=shape))


def _moved(w: np.ndarray, block: int, stride: int) -> np.ndarray:
    """w [1, c, *kernel] as `block` filters, each moved on by one stride more than the one before it."""
    taps = w.shape[-1]
    filters = np.zeros((block, *w.shape[1:-1], taps + (block - 1) * stride), w.dtype)
    for q in range(block):
        filters[q, ..., q * stride : q * stride + taps] = w[0]
    return filters
