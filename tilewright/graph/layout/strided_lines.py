"""Convolutions between plain values whose lanes are positions with a stride: the elements of a line that the same taps
read are brought together once, so that vectors of them lie side by side.

Position j reads x[s j + d k]. With g the greatest common divisor of stride and dilation, taps k = (s / g) q + p read
x[d p + s (j + (d / g) q)]: for each p every s-th element from d p on, with stride 1 and dilation d / g. These lines are
channels beside each other, whose filters have zeros where there are fewer taps. One pass over the image takes less time
than what each line of results would copy of the lines that it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import ClassVar

from tilewright.graph.layout.conv_window import ConvWindow, is_of_unit, pad_space
from tilewright.graph.match import shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.dtype import DType
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule, rewrite
from tilewright.ops.contract import conv
from tilewright.ops.view import concat, pad, reshape, slice_, transpose
from tilewright.passes import PassContext


@dataclass(frozen=True)
class StridedLines:
    """Give the convolutions that are left to lanes of positions lines without strides."""

    name: ClassVar[str] = "strided-lines"
    units: frozenset[DType] = frozenset()
    """Of 16-bit floats that units of the machine multiply."""

    def run(self, module: Module, ctx: PassContext) -> None:
        def rewritten(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
            return None if is_of_unit(op, self.units) else lines_without_strides(op, b, ctx)

        rule = Rule("lines_without_strides", ("conv",), rewritten)
        if rewrite(module.main, [rule], module, ctx.remarks, stage=self.name, within=ctx):
            drop_dead(module)


@dataclass(frozen=True)
class _Line:
    """The last axis of a convolution: its `taps` in `phases`, `count` of each, which lie `apart` in a line of these."""

    stride: int
    dilation: int
    taps: int

    @property
    def phases(self) -> int:
        return min(self.stride // gcd(self.stride, self.dilation), self.taps)

    @property
    def count(self) -> int:
        return -(-self.taps // self.phases)

    @property
    def apart(self) -> int:
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def beyond(self) -> int:
        """Elements that the last of the filled-up taps read beyond the last of the taps."""
        last = (self.phases - 1) * self.dilation + (self.count - 1) * self.apart * self.stride
        return last - (self.taps - 1) * self.dilation


def lines_without_strides(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """The convolution of lines that are taken apart."""
    x, w = op.operands
    window = ConvWindow(op)
    kernel = window.kernel
    if window.strides[-1] == 1 or not all(k.is_const for k in kernel) or not prod(k.value for k in kernel):
        return None
    line = _Line(window.strides[-1], window.dilations[-1], kernel[-1].value)
    return conv(
        _apart(op, x, window, line),
        _filters(w, line),
        strides=(*window.strides[:-1], 1),
        dilations=(*window.dilations[:-1], line.apart),
        groups=op.attrs["groups"],
        sums=op.attrs["sums"],
    )


def _apart(op: Op, x: Value, window: ConvWindow, line: _Line) -> Value:
    """Padded x as [n, channels * phases, ...]."""
    padded = pad_space(x, window.before, (*window.after[:-1], window.after[-1] + line.beyond))
    n, c, *space, _ = shape_of(padded)
    size = shape_of(op.result)[-1] + (line.count - 1) * line.apart
    ones = (1,) * (len(space) + 2)
    parts = [
        slice_(padded, starts=(*[0] * len(ones), phase * line.dilation), sizes=(n, c, *space, size),
               steps=(*ones, line.stride))
        for phase in range(line.phases)
    ]  # fmt: skip
    beside = [reshape(part, shape=(n, c, 1, *space, size)) for part in parts]
    joined = concat(*beside, axis=2) if len(beside) > 1 else beside[0]
    return reshape(joined, shape=(n, c * line.phases, *space, size))


def _filters(w: Value, line: _Line) -> Value:
    """w [o, c, *kernel] as [o, c * phases, ..., count]."""
    o, c, *kernel, _ = shape_of(w)
    more = line.phases * line.count - line.taps
    rank = len(kernel) + 3
    if more:
        w = pad(w, before=(0,) * rank, after=(*[0] * (rank - 1), more))
    parted = reshape(w, shape=(o, c, *kernel, line.count, line.phases))
    turned = transpose(parted, perm=(0, 1, rank, *range(2, rank)))
    return reshape(turned, shape=(o, c * line.phases, *kernel, line.count))
