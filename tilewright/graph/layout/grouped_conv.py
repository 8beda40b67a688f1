"""Grouped convolutions between plain values: the groups become an axis, so that a register tile lies within one.

Lanes are positions, and rows of a tile the filters of one group, which all read the same channels. Where lines are
much shorter than whole vectors, positions are counted over the lines of the padded image one after the other:

    y[h * pitch + w] = sum over ky, kx of x[h * pitch + w + ky * pitch + kx] * w[ky, kx]

Those at the end of a line that read into the next one are computed in vain, and cut off.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from tilewright.cost.conv.layouts import GroupedLines, blocks_lie_within_groups, positions_over_lines
from tilewright.graph.layout.conv_window import ConvWindow, pad_space
from tilewright.graph.match import dtype_of, shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import NoMatch, Replacement, RewriteContext, Rule, rewrite
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops.contract import conv_flat, conv_grouped, matmul
from tilewright.ops.traits.pairing import is_elementwise
from tilewright.ops.view import reshape, slice_
from tilewright.passes import PassContext
from tilewright.target.target import Target


@dataclass(frozen=True)
class GroupedConv:
    """Give the convolutions that still have groups of several channels or filters an axis for these."""

    name: ClassVar[str] = "grouped-conv"

    def run(self, module: Module, ctx: PassContext) -> None:
        rule = Rule("groups_as_an_axis", ("conv",), partial(groups_as_an_axis, ctx.target))
        if rewrite(module.main, [rule], module, ctx.remarks, stage=self.name, within=ctx):
            drop_dead(module)


def groups_as_an_axis(target: Target | None, op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The convolution over groups."""
    x, w = op.operands
    groups = op.attrs["groups"]
    filters, channels, *kernel = shape_of(w)
    if groups == 1 or (channels == 1 and filters == groups):
        return None
    if blocks_lie_within_groups(filters // groups) and _becomes_blocks(op.result):
        return NoMatch("its kernel writes blocks of channels, each of filters of one group")
    window = ConvWindow(op)
    each = (groups, filters // groups)
    if window.is_pointwise:
        y = matmul(reshape(w, shape=(*each, channels)), _by_groups(x, groups, product(shape_of(x)[2:])))
    elif _is_flat(op, window, target):
        return _flat(op, window, reshape(w, shape=(*each, channels, *kernel)))
    else:
        y = conv_grouped(
            _by_groups(x, groups, *shape_of(x)[2:]),
            reshape(w, shape=(*each, channels, *kernel)),
            pads_begin=window.before,
            pads_end=window.after,
            **window.attrs,
        )
    return reshape(y, shape=shape_of(op.result))


def _becomes_blocks(value: Value) -> bool:
    """Whether the result, or elementwise work on it, is brought into blocks of channels."""
    waiting, seen = [value], {value}
    while waiting:
        for user in waiting.pop().users:
            if user.name == "block_channels":
                return True
            if is_elementwise(user) and user.result not in seen:
                seen.add(user.result)
                waiting.append(user.result)
    return False


def _by_groups(x: Value, groups: int, *space: Sym) -> Value:
    n, c, *_ = shape_of(x)
    return reshape(x, shape=(n, groups, c // groups, *space))


def _is_flat(op: Op, window: ConvWindow, target: Target | None) -> bool:
    """Whether positions over all lines fill so many more lanes than those of single lines that it pays for writing the
    padded data, and cutting the result."""
    shape = shape_of(op.result)
    known = all(d.is_const for d in (*shape, *shape_of(op.operands[0]), *window.before, *window.after))
    if not known or any(s != 1 for s in window.strides) or len(shape) < 4 or not product(shape).value:
        return False
    line, pitch = shape[-1].value, _padded_space(op, window)[-1].value
    element = dtype_of(op.result).bytes
    filters, channels, *kernel = shape_of(op.operands[1])
    groups = op.attrs["groups"]
    lines = GroupedLines(
        groups=groups * shape[0].value,
        rows=filters.value // groups,
        lines=product(shape[2:-1]).value,
        line=line,
        pitch=pitch,
        channels=channels.value,
        depth=(channels * product(kernel)).value,
        element=element,
    )
    return positions_over_lines(lines, target)


def _padded_space(op: Op, window: ConvWindow) -> tuple[Sym, ...]:
    """The spatial extents of the padded data."""
    space = shape_of(op.operands[0])[2:]
    return tuple(b + d + a for b, d, a in zip(window.before, space, window.after, strict=True))


def _flat(op: Op, window: ConvWindow, w: Value) -> Value:
    """Positions follow one another through all of the padded image; one more line lets the last ones read on."""
    x = op.operands[0]
    n, filters, *out = shape_of(op.result)
    padded = pad_space(x, window.before, (window.after[0] + 1, *window.after[1:]))
    space = shape_of(padded)[2:]
    pitches = [product(space[k + 1 :]) for k in range(len(space))]
    y = conv_flat(
        _by_groups(padded, op.attrs["groups"], product(space)),
        w,
        pitches=tuple(p * d for p, d in zip(pitches, window.dilations, strict=True)),
        count=out[0] * pitches[0],
    )
    lines = reshape(y, shape=(n, filters, out[0], *space[1:]))
    return slice_(lines, starts=(0,) * (2 + len(out)), sizes=(n, filters, *out))
