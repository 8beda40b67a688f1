"""Transposed convolutions as convolutions of their phases (`graph/layout/phases.py`), whose results are interleaved;
or, where these would mostly multiply padding, as blocks that overlap (`graph/layout/overlapped_blocks.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.cost.conv.layouts import fills_blocks
from tilewright.graph.layout.conv_window import has_known_filters, pad_space
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.graph.layout.overlapped_blocks import as_blocks_that_overlap, suits_blocks_that_overlap
from tilewright.graph.layout.phases import OfArrays, OfValues, Phases, Taps, phases_of
from tilewright.graph.match import shape_of
from tilewright.ir.core import Op, Value
from tilewright.ir.rewrite import defining
from tilewright.ir.sym import sym
from tilewright.ops.blocked import conv_blocked, unblock_channels
from tilewright.ops.contract import conv
from tilewright.ops.view import concat, reshape
from tilewright.passes import PassContext


def layout_conv_transpose(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    """Emit the convolutions of all phases: in blocks of channels where these suit them, else between plain values,
    whose groups then become an axis. Or blocks that overlap, of small images."""
    phases = phases_of(op)
    if phases is None:
        return False
    if suits_blocks_that_overlap(op, phases, ctx.target):
        as_blocks_that_overlap(op, phases, layouts)
        message = "each position gives a block of the result"
        ctx.remark("block-channels", f"conv_transpose {op.loc}", message, applied=True)
    elif _suits_blocks(op, phases, layouts.block):
        _in_blocks(op, phases, layouts)
    else:
        _plain(op, phases, layouts)
    return True


def _suits_blocks(op: Op, phases: Phases, block: int) -> bool:
    """Whether all phases are filters of one convolution, which are known, of one group or of whole blocks of the
    channels of each."""
    if not has_known_filters(op) or len(phases.parts) > 1:
        return False
    c, o = (d.value for d in shape_of(op.operands[1])[:2])
    return phases.groups == 1 or all(n % block == 0 for n in (c // phases.groups, o * phases.number))


def _in_blocks(op: Op, phases: Phases, layouts: LayoutMap) -> None:
    """Few filters, and those of groups that are no whole blocks, give a plain result, so that lanes hold phases too."""
    (part,) = phases.parts
    w, block = layouts.array(op.operands[1]), layouts.block
    o = w.shape[1]
    keeps_blocks = fills_blocks(o) if phases.groups == 1 else o % block == 0
    filters = phases.filters(w, list(map(sym, w.shape)), part, OfArrays())
    filters = _filled(filters, {2: o if not keeps_blocks else layouts.filled(o), 3: layouts.filled(filters.shape[3])})
    filters = filters.reshape(-1, *filters.shape[3:])
    number = len(filters)
    y = conv_blocked(
        pad_space(layouts.blocked(op.operands[0]), *phases.padding(part), 1),
        layouts.filters(_filled(filters, {0: layouts.filled(number)}), op.operands[1]),
        dilations=tuple(taps.dilation for taps in part),
        groups=phases.groups,
        block=block,
    )
    if keeps_blocks:
        layouts.set_blocked(op.result, phases.interleaved(y, 1))
    else:
        layouts.set_plain(op.result, phases.interleaved(unblock_channels(y, channels=sym(number)), 0))


def _filled(filters: np.ndarray, counts: Mapping[int, int]) -> np.ndarray:
    """The filters with zeros up to so many elements along some axes."""
    return np.pad(filters, [(0, counts.get(axis, n) - n) for axis, n in enumerate(filters.shape)])


def _plain(op: Op, phases: Phases, layouts: LayoutMap) -> None:
    x, made = layouts.plain(op.operands[0]), []
    for part in phases.parts:
        filters = _filters(op.operands[1], phases, part, layouts)
        groups, number, outputs, *rest = shape_of(filters)
        before, after = phases.padding(part)
        window = {"pads_begin": before, "pads_end": after, "dilations": tuple(taps.dilation for taps in part)}
        merged = reshape(filters, shape=(groups * number * outputs, *rest))
        made.append(conv(x, merged, groups=phases.groups, **window))
    y = concat(*made, axis=1) if len(made) > 1 else made[0]
    layouts.set_plain(op.result, phases.interleaved(y, 0))


def _filters(w: Value, phases: Phases, part: Sequence[Taps], layouts: LayoutMap) -> Value:
    """Those of one part; filters of the call are taken apart in the call."""
    if defining(w, "constant") is None:
        return phases.filters(layouts.plain(w), shape_of(w), part, OfValues())
    return layouts.filters(phases.filters(layouts.array(w), shape_of(w), part, OfArrays()), w)
