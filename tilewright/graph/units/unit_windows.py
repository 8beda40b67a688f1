"""Windows as elementwise work, for vector units, whose lanes are elements that follow each other.

    max_pool(x)              becomes    max(max(x from 0 on, x from 1 on), x from 2 on), along one axis after the other
    depthwise conv(x, w)     becomes    x from (0, 0) on * w[0, 0] + x from (0, 1) on * w[0, 1] + ...

What a tap reads is one slice of whole planes, from its place on: lanes go on from line to line, and compute some
elements beyond the end of each line, which are left out at the end. Where windows have strides, planes are taken apart
once, into those of each remainder along all axes, so that what a tap reads follows each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as positions
from math import prod

from tilewright.cost.machine.vector_blocks import MOST_TAPS
from tilewright.graph.layout.conv_window import ConvWindow
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule
from tilewright.ir.scalar import identity
from tilewright.ir.types import product
from tilewright.ops.define import OPERATORS
from tilewright.ops.elementwise import add, mul
from tilewright.ops.view import pad, reshape, slice_, transpose
from tilewright.ops.window import Window

_COMBINED = {"max_pool": "max", "sum_pool": "add"}

def pool_by_axes(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A pool of known sizes as elementwise work along one axis after the other."""
    x = op.operands[0]
    if not x.tensor.is_static or not op.result.tensor.is_static or not product(shape_of(op.result)).value:
        return None
    names = ("strides", "pads_begin", "pads_end", "dilations")
    window = Window(shape_of(x)[2:], op.attrs["kernel"], *(op.attrs[name] for name in names))
    kernel = [k.value for k in window.kernel if k.is_const]
    if len(kernel) != len(window.kernel) or max(kernel) > MOST_TAPS or not all(kernel):
        return None
    combine, nothing = OPERATORS[_COMBINED[op.name]], identity(_COMBINED[op.name], dtype_of(x))
    for axis, taps in enumerate(kernel):
        space = [d.value for d in shape_of(x)[2:]]
        if taps == window.strides[axis] == 1 and window.counts[axis] == space[axis] and window.before[axis] == 0:
            continue
        lines = [_Line(size, 1, 1, 1, 0, size) for size in space]
        lines[axis] = _line(window, axis, space[axis])
        planes = Planes.of(x, lines, nothing)
        tap = [0] * len(lines)
        total = planes.read(tap)
        for tap[axis] in range(1, taps):
            total = combine(total, planes.read(tap))
        x = planes.result(total)
    return x


def depthwise_conv_as_sum(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """A convolution with a filter for each channel, of known sizes, as the sum of what its taps read times their
    weights, in the order in which the convolution adds up."""
    x, w = op.operands
    shapes = (shape_of(x), shape_of(w), shape_of(op.result))
    if op.attrs.get("sums") is not None or not all(d.is_const and d.value > 0 for s in shapes for d in s):
        return None
    (_, c, *_), (o, _, *kernel), _ = shapes
    if op.attrs["groups"] != c.value or o != c or c == 1 or product(kernel).value > MOST_TAPS:
        return None
    window = ConvWindow(op)
    planes = Planes.of_window(x, window)
    total: Value | None = None
    for tap in positions(*(range(k.value) for k in kernel)):
        weight = slice_(w, starts=(0, 0, *tap), sizes=(o, 1, *(1 for _ in kernel)))
        term = planes.read(tap)
        term = mul(term, reshape(weight, shape=(1, c, *(1 for _ in shape_of(term)[2:]))))
        total = term if total is None else add(total, term)
    assert total is not None
    return planes.result(total)


WINDOW_RULES = (
    Rule("pools_by_axes", tuple(_COMBINED), pool_by_axes),
    Rule("depthwise_convs_as_sums", ("conv",), depthwise_conv_as_sum),
)


@dataclass(frozen=True)
class _Line:
    """Windows along an axis: the size of the operand there, what a window reads, and how many windows there are."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    count: int

    @property
    def length(self) -> int:
        """Elements of each remainder that windows read."""
        return (self.count - 1) + ((self.taps - 1) * self.dilation) // self.stride + 1

    def at(self, tap: int) -> tuple[int, int]:
        """From which element on, and of which remainder, the windows read a tap."""
        return divmod(tap * self.dilation, self.stride)


def _line(window: Window, axis: int, size: int) -> _Line:
    kernel, before, count = window.kernel[axis].value, window.before[axis].value, window.counts[axis].value
    return _Line(size, kernel, window.strides[axis], window.dilations[axis], before, count)


@dataclass(frozen=True, eq=False)
class Planes:
    """What windows read: `x` is [n, c, planes], of each remainder one after the other, or, where only axes before the
    last have strides, padded as it was."""

    x: Value
    lines: Sequence[_Line]
    lengths: tuple[int, ...]
    is_flat: bool

    @classmethod
    def of(cls, x: Value, lines: Sequence[_Line], nothing: float) -> Planes:
        """The planes of x, with `nothing` around them, and where the last of them is read beyond its end."""
        n, c, *_ = shape_of(x)
        strides = [line.stride for line in lines]
        is_flat = strides[-1] > 1 or all(s == 1 for s in strides)
        beyond = is_flat and any(line.taps > 1 for line in lines[1:])
        lengths = (lines[0].length + beyond, *(line.length for line in lines[1:]))
        before = [line.before for line in lines]
        after = [m * o.stride - o.before - o.size for m, o in zip(lengths, lines, strict=True)]
        if any((*before, *after)):
            x = pad(x, before=(0, 0, *before), after=(0, 0, *after), value=nothing)
        if is_flat and any(s > 1 for s in strides):
            apart = reshape(x, shape=(n, c, *(d for pair in zip(lengths, strides, strict=True) for d in pair)))
            rank = len(lines)
            x = transpose(apart, perm=(0, 1, *(3 + 2 * k for k in range(rank)), *(2 + 2 * k for k in range(rank))))
        if is_flat:
            x = reshape(x, shape=(n, c, prod(strides) * prod(lengths)))
        return cls(x, lines, lengths, is_flat)

    @classmethod
    def of_window(cls, x: Value, window: Window) -> Planes:
        """Those of padding with zeros."""
        space = shape_of(x)[2:]
        return cls.of(x, [_line(window, axis, size.value) for axis, size in enumerate(space)], 0)

    def lines_at(self, tap: Sequence[int]) -> Value:
        """What all windows read at a position of the kernel, [n, c, *counts]; of planes that are taken apart."""
        n, c, *_ = shape_of(self.x)
        places = [line.at(k) for line, k in zip(self.lines, tap, strict=True)]
        remainder, counts = 0, [line.count for line in self.lines]
        for line, (_, which) in zip(self.lines, places, strict=True):
            remainder = remainder * line.stride + which
        apart = reshape(self.x, shape=(n, c, prod(line.stride for line in self.lines), *self.lengths))
        starts = (0, 0, remainder, *(first for first, _ in places))
        part = slice_(apart, starts=starts, sizes=(n, c, 1, *counts), steps=(1,) * len(starts))
        return reshape(part, shape=(n, c, *counts))

    def read(self, tap: Sequence[int]) -> Value:
        """What all windows read at a position of the kernel, [n, c, elements] where planes are flat."""
        n, c, *_ = shape_of(self.x)
        places = [line.at(k) for line, k in zip(self.lines, tap, strict=True)]
        if not self.is_flat:
            starts = [line.dilation * k for line, k in zip(self.lines, tap, strict=True)]
            sizes, steps = (tuple(v) for v in zip(*((o.count, o.stride) for o in self.lines), strict=True))
            return slice_(self.x, starts=(0, 0, *starts), sizes=(n, c, *sizes), steps=(1, 1, *steps))
        remainder, at = 0, 0
        for line, length, (first, which) in zip(self.lines, self.lengths, places, strict=True):
            remainder, at = remainder * line.stride + which, at * length + first
        start = remainder * prod(self.lengths) + at
        return slice_(self.x, starts=(0, 0, start), sizes=(n, c, self.elements), steps=(1, 1, 1))

    @property
    def elements(self) -> int:
        return self.lines[0].count * prod(self.lengths[1:])

    def result(self, total: Value) -> Value:
        """What was computed of all windows, without what lies beyond the ends of lines: [n, c, *counts]."""
        if not self.is_flat:
            return total
        n, c, *_ = shape_of(total)
        counts = [line.count for line in self.lines]
        whole = reshape(total, shape=(n, c, counts[0], *self.lengths[1:]))
        if counts[1:] == [*self.lengths[1:]]:
            return whole
        ones = (1,) * (len(counts) + 2)
        return slice_(whole, starts=(0,) * len(ones), sizes=(n, c, *counts), steps=ones)
