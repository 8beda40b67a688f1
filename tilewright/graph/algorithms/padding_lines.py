"""Convolutions whose windows mostly lie in the padding (dilated far, or larger than the image), without its lines.

Lines of the result that read the same lines of a window inside of the image are a convolution of their own, by these
lines of the filters, and the results follow one another:

    y[0:15] = conv(x[0:33], w[1:3]), y[15:18] = conv(x[15:18], w[1:2]), y[18:33] = conv(x[0:33], w[0:2])

for 33 lines, windows of three lines, 18 apart, and as much padding. Where that would be many parts, the padding of
lines is left to the convolution, which skips the lines of a window that are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from tilewright.cost.conv.padding import MOST_PARTS, leaves_padding_out, skips_lines
from tilewright.graph.algorithms.winograd import MOST_GROWTH
from tilewright.graph.match import shape_of, type_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Block, Builder, Module, Op, Value, replace_in_block
from tilewright.ir.rewrite import defining
from tilewright.ops.blocked import conv_blocked
from tilewright.ops.cook_toom import tile_lengths
from tilewright.ops.define import constant
from tilewright.ops.view import concat, pad, slice_
from tilewright.passes import PassContext


@dataclass(frozen=True)
class PaddingLines:
    """Leave lines of padding out of convolutions of blocked channels where many lines that their windows read are
    padding: take them apart, or leave the lines to conditions."""

    name: ClassVar[str] = "padding-lines"

    def run(self, module: Module, ctx: PassContext) -> None:
        if ctx.target is None:
            return
        ops: list[Op] = []
        for op in module.main.body.ops:
            ops.append(op)
            conv = _candidate(op, module)
            if conv is None:
                continue
            parts = conv.parts
            inside = sum(part.lines * part.taps for part in parts) / (conv.lines * conv.taps)
            filters = conv.filters.size * sum(part.taps for part in parts) // conv.taps
            if all(part.taps > 0 for part in parts) and leaves_padding_out(
                inside, conv.products, conv.results, filters, len(parts), ctx.target
            ):
                ctx.remark(self.name, f"conv {op.loc}", f"{inside:.0%} of the lines are inside", applied=True)
                ops += _replace(conv, module)
            elif conv.has_rows and len(parts) > MOST_PARTS and skips_lines(inside):
                ctx.remark(self.name, f"conv {op.loc}", f"{inside:.0%} of the lines are read", applied=True)
                ops += _skip(conv, module)
        if len(ops) > len(module.main.body.ops):
            replace_in_block(module.main.body, ops)
            drop_dead(module)


@dataclass(frozen=True)
class _Part:
    """`lines` of the result from `start` on, which read `taps` lines of a window, from line `first` on."""

    start: int
    lines: int
    first: int
    taps: int


@dataclass(frozen=True, eq=False)
class _Conv:
    """A convolution that may be taken apart: its data without padding, the filters, all sizes known."""

    op: Op
    x: Value
    filters: np.ndarray

    @property
    def taps(self) -> int:
        return self.filters.shape[2]

    @property
    def lines(self) -> int:
        return shape_of(self.op.result)[2].value

    @property
    def results(self) -> int:
        return prod(d.value for d in shape_of(self.op.result))

    @property
    def products(self) -> int:
        return self.results * prod(self.filters.shape[1:])

    @property
    def stride(self) -> int:
        return self.op.attrs["strides"][0] if self.op.attrs["strides"] else 1

    @property
    def dilation(self) -> int:
        return self.op.attrs["dilations"][0] if self.op.attrs["dilations"] else 1

    @property
    def has_rows(self) -> bool:
        """Whether there are lines of more than one position, which a register tile runs over."""
        space = shape_of(self.op.result)[2:-1]
        return len(space) > 1 and space[-1] != 1

    @property
    def before(self) -> int:
        """Lines of padding before the first."""
        padded = self.op.operands[0].op
        assert padded is not None
        return int(padded.attrs["before"][2])

    @property
    def parts(self) -> list[_Part]:
        size = shape_of(self.x)[2].value
        found: list[_Part] = []
        for line in range(self.lines):
            at = line * self.stride - self.before
            first = max(0, -(at // self.dilation))
            last = min(self.taps - 1, (size - 1 - at) // self.dilation)
            taps = max(0, last - first + 1)
            if found and (found[-1].first, found[-1].taps) == (first, taps):
                found[-1] = _Part(found[-1].start, found[-1].lines + 1, first, taps)
            else:
                found.append(_Part(line, 1, first, taps))
        return found


def _candidate(op: Op, module: Module) -> _Conv | None:
    """A convolution of padded data, all sizes known, that Winograd's algorithm does not compute."""
    if op.name != "conv_blocked" or any(p != 0 for p in (*op.attrs["pads_begin"], *op.attrs["pads_end"])):
        return None
    padded, w = (defining(v, name) for v, name in zip(op.operands, ("pad", "constant"), strict=True))
    if padded is None or w is None:
        return None
    padding = padded.attrs
    ends = (*padding["before"], *padding["after"])
    if padding["mode"] != "constant" or padding["value"] or not type_of(op.result).is_static:
        return None
    if not type_of(padded.operands[0]).is_static or any(not isinstance(p, int) and not p.is_const for p in ends):
        return None
    if any(int(p) < 0 for p in ends) or not prod(d.value for d in shape_of(op.result)):
        return None
    filters = module.constants[w.attrs["name"]]
    unit = all(n == 1 for n in (*op.attrs["strides"], *op.attrs["dilations"]))
    if unit and tile_lengths(filters.shape[2:], MOST_GROWTH):
        return None
    return _Conv(op, padded.operands[0], filters)


def _replace(conv: _Conv, module: Module) -> list[Op]:
    """The ops that take the place of the convolution, which is dead then."""
    op = conv.op
    (padded, w), attrs = op.operands, op.attrs
    assert padded.op is not None
    before, after = (list(padded.op.attrs[name]) for name in ("before", "after"))
    before[2] = after[2] = 0
    emitted = Block()
    with Builder(emitted, module, op.loc):
        made = []
        for part in conv.parts:
            start = part.start * conv.stride + part.first * conv.dilation - conv.before
            reach = (part.lines - 1) * conv.stride + (part.taps - 1) * conv.dilation + 1
            shape = shape_of(conv.x)
            lines = slice_(
                conv.x,
                starts=[start if axis == 2 else 0 for axis in range(len(shape))],
                sizes=[reach if axis == 2 else d for axis, d in enumerate(shape)],
            )
            data = pad(lines, before=before, after=after) if any((*before, *after)) else lines
            taps = np.ascontiguousarray(conv.filters[:, :, part.first : part.first + part.taps])
            made.append(conv_blocked(data, constant(taps, w.name or "w"), **attrs))
        y = concat(*made, axis=2) if len(made) > 1 else made[0]
    y.name = op.result.name
    op.result.replace_by(y)
    return list(emitted.ops)


def _skip(conv: _Conv, module: Module) -> list[Op]:
    """The ops that take the place of the convolution: one whose own padding is that of lines."""
    op = conv.op
    (padded, w), attrs = op.operands, dict(op.attrs)
    assert padded.op is not None
    before, after = (list(padded.op.attrs[name]) for name in ("before", "after"))
    others = [0] * (len(shape_of(w)) - 3)
    attrs |= {"pads_begin": (before[2], *others), "pads_end": (after[2], *others)}
    before[2] = after[2] = 0
    emitted = Block()
    with Builder(emitted, module, op.loc):
        data = pad(conv.x, before=before, after=after) if any((*before, *after)) else conv.x
        y = conv_blocked(data, w, **attrs)
    y.name = op.result.name
    op.result.replace_by(y)
    return list(emitted.ops)
