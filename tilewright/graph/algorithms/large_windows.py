"""Pooling with large windows, whose direct sums would read each element as often as there are windows over it.

Windows over several axes are reduced along one axis after the other, where they lie so close to each other that this
reads fewer elements. Along an axis large ones grow by doubling: the windows of 2n elements are those of n joined with
those n positions further. A sum takes disjoint windows, whose sizes are the binary digits of the kernel's; a maximum
takes two that may overlap. Nothing is subtracted, so that infinities and NaN reach the windows that they are in and no
others, and fewer additions follow one after the other than in the direct sum, which is less exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import prod
from typing import ClassVar

from tilewright.cost.windows import (
    doubling_reads,
    grows_by_doubling,
    is_worth_taking_apart,
    reads_of_line,
)
from tilewright.graph.match import dtype_of, shape_of
from tilewright.graph.rewrites.dead import drop_dead
from tilewright.ir.core import Builder, Module, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, Rule, defining, rewrite
from tilewright.ir.scalar import SCALAR_OPS, identity
from tilewright.ir.sym import Sym, sym
from tilewright.ops.define import OPERATORS
from tilewright.ops.shape import Dim
from tilewright.ops.view import pad, slice_
from tilewright.ops.window import Window
from tilewright.passes import PassContext

_Pads = tuple[tuple[Sym, ...], tuple[Sym, ...]]


@dataclass(frozen=True)
class _Axis:
    """Windows along one spatial axis, all sizes known."""

    axis: int
    size: int
    kernel: int
    stride: int
    before: int
    dilation: int
    count: int

    @property
    def reach(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    @property
    def line(self) -> int:
        """Elements from the first that a window covers to the last, padding included."""
        return (self.count - 1) * self.stride + self.reach

    @property
    def visits(self) -> int:
        """Elements that one window reads where it visits those inside of the operand."""
        return max(min(self.kernel, -(-self.size // self.dilation)), 1)

    @property
    def changes_anything(self) -> bool:
        return self.kernel > 1 or self.stride > 1 or self.count != self.size or self.before > 0


@dataclass(frozen=True)
class PlainWindows:
    """Take pools apart that are left when blocks of channels are decided: the lanes of their kernels are positions, and
    lines of them with strides are costly to read."""

    name: ClassVar[str] = "plain-windows"

    def run(self, module: Module, ctx: PassContext) -> None:
        rule = Rule("plain_windows", tuple(_COMBINED), partial(large_windows, True))
        if rewrite(module.main, [rule], module, stage=self.name, within=ctx):
            drop_dead(module)


def large_windows(plain: bool, op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """pool(x) -> pools along single axes, and windows that grow by doubling, where that reads far fewer elements.
    `plain` says that lanes are known to be positions."""
    x, pads = _before_padding(op)
    if not x.tensor.is_static or not op.result.tensor.is_static:
        return _along_axes(op, x, pads, plain)
    axes = [a for a in _axes(op, x, pads) if a.changes_anything]
    shape = [d.value for d in shape_of(x)]
    if not axes or not prod(shape) or not prod(d.value for d in shape_of(op.result)):
        return None
    last = len(shape) - 3
    axes.sort(key=lambda a: a.count / a.size)  # what shrinks comes first
    apart = stored = 0
    for a in axes:
        stored += prod(shape) if a is not axes[0] else 0
        others = prod(shape) // shape[2 + a.axis]
        reads = reads_of_line(a.visits, a.stride if plain and a.axis == last else 1)
        apart += others * (doubling_reads(a.line, a.kernel) if _by_doubling(a) else a.count * reads)
        shape[2 + a.axis] = a.count
    step = next((a.stride for a in axes if plain and a.axis == last), 1)
    direct = prod(shape) * reads_of_line(prod(a.visits for a in axes), step)
    if len(axes) == 1 and not _by_doubling(axes[0]):
        return None
    if not is_worth_taking_apart(direct, apart, stored, len(axes) - 1):
        return None
    for a in axes:
        x = _doubled(x, a, op.name) if _by_doubling(a) else _direct(x, a, op.name)
    return x


def _along_axes(op: Op, x: Value, pads: _Pads, plain: bool) -> Replacement:
    """Windows of known extents over a tensor of unknown size, along one axis after the other."""
    window = Window(shape_of(x)[2:], op.attrs["kernel"], op.attrs["strides"], *pads, op.attrs["dilations"])
    if not all(k.is_const for k in window.kernel):
        return None
    kernel, strides = [k.value for k in window.kernel], window.strides
    last = len(kernel) - 1
    axes = [axis for axis, k in enumerate(kernel) if k > 1]
    if len(axes) < 2:
        return None
    apart = stored = 0
    for axis in axes:  # for each result: those of the axes before it are as many as the strides behind it leave
        many = prod(strides[axis + 1 :])
        apart += many * reads_of_line(kernel[axis], strides[axis] if plain and axis == last else 1)
        stored += many if axis != axes[-1] else 0
    direct = reads_of_line(prod(kernel), strides[last] if plain else 1)
    if not is_worth_taking_apart(direct, apart, stored, 0):
        return None
    for axis, dilation in enumerate(window.dilations):
        before, after = window.before[axis], window.after[axis]
        if kernel[axis] == 1 and strides[axis] == 1 and before == 0 and after == 0:
            continue
        if axis == last:  # else every tile of a line has masks
            x = _padded_along(x, axis, op.name, before, after)
            before = after = sym(0)
        x = _pool_along(x, axis, op.name, kernel[axis], strides[axis], before, after, dilation)
    return x


def _padded_along(x: Value, axis: int, name: str, before: Sym, after: Sym) -> Value:
    """x with elements at the ends of a spatial axis that no window notices."""
    if before == 0 and after == 0:
        return x
    rank = len(shape_of(x))
    at = [(before, after) if k == 2 + axis else (sym(0), sym(0)) for k in range(rank)]
    nothing = identity(_COMBINED[name], dtype_of(x))
    return pad(x, before=[b for b, _ in at], after=[a for _, a in at], value=nothing)


def _before_padding(op: Op) -> tuple[Value, _Pads]:
    """What is pooled, and how far windows reach beyond its ends: of elements that were added and change nothing, what
    was there before."""
    x = op.operands[0]
    rank = len(shape_of(x)) - 2
    before, after = (tuple(map(sym, op.attrs[name])) or (sym(0),) * rank for name in ("pads_begin", "pads_end"))
    inner, nothing = defining(x, "pad"), identity(_COMBINED[op.name], dtype_of(x))
    if inner is None or inner.attrs["mode"] != "constant" or inner.attrs["value"] != nothing:
        return x, (before, after)
    first, last = (tuple(map(sym, inner.attrs[name])) for name in ("before", "after"))
    if any(p != 0 for p in (*first[:2], *last[:2])) or not all(p.is_const and p.value >= 0 for p in (*first, *last)):
        return x, (before, after)
    wider = tuple(
        tuple(p + more for p, more in zip(own, added[2:], strict=True))
        for own, added in ((before, first), (after, last))
    )
    return inner.operands[0], (wider[0], wider[1])


def _axes(op: Op, x: Value, pads: _Pads) -> list[_Axis]:
    """The windows of a pool of `x` along each axis; none where they are not known."""
    window = Window(shape_of(x)[2:], op.attrs["kernel"], op.attrs["strides"], *pads, op.attrs["dilations"])
    if not all(v.is_const for v in (*window.kernel, *window.before, *window.after)):
        return []
    rows = zip(window.sizes, window.kernel, window.strides, window.before, window.dilations, window.counts, strict=True)
    return [
        _Axis(axis, size.value, k.value, stride, before.value, dilation, count.value)
        for axis, (size, k, stride, before, dilation, count) in enumerate(rows)
    ]


def _by_doubling(a: _Axis) -> bool:
    return grows_by_doubling(a.count, a.visits, a.line, a.kernel)


def _direct(x: Value, a: _Axis, name: str) -> Value:
    """The pool along one axis alone."""
    return _pool_along(x, a.axis, name, a.kernel, a.stride, a.before, max(a.line - a.before - a.size, 0), a.dilation)


def _pool_along(
    x: Value, axis: int, name: str, kernel: Dim, stride: int, before: Dim, after: Dim, dilation: int
) -> Value:
    rank = len(shape_of(x)) - 2

    def only(value: Dim, other: int) -> tuple[Dim, ...]:
        return tuple(value if k == axis else other for k in range(rank))

    attrs = {
        "kernel": only(kernel, 1), "strides": only(stride, 1), "pads_begin": only(before, 0),
        "pads_end": only(after, 0), "dilations": only(dilation, 1),
    }  # fmt: skip
    return OPERATORS[name](x, **attrs)


def _doubled(x: Value, a: _Axis, name: str) -> Value:
    """The windows along one axis, grown from single elements."""
    combine = _COMBINED[name]
    join, is_sum = OPERATORS[combine], SCALAR_OPS[combine].linear == "together"
    wide = _padded(x, a, identity(combine, dtype_of(x)))
    positions = a.line - a.reach + 1
    found: Value | None = None
    size, done = 1, 0
    while True:
        if is_sum and a.kernel & size:
            part = _from(wide, a, done * a.dilation, positions)
            found = part if found is None else join(found, part)
            done += size
        if 2 * size > a.kernel:
            break
        left = a.line - (2 * size - 1) * a.dilation
        wide = join(_from(wide, a, 0, left), _from(wide, a, size * a.dilation, left))
        size *= 2
    if found is None:
        found = _from(wide, a, 0, positions)
        if size < a.kernel:
            found = join(found, _from(wide, a, (a.kernel - size) * a.dilation, positions))
    return found if a.stride == 1 else _from(found, a, 0, a.count, a.stride)


def _padded(x: Value, a: _Axis, value: float) -> Value:
    at, rank = 2 + a.axis, len(shape_of(x))
    before = tuple(a.before if k == at else 0 for k in range(rank))
    after = tuple(a.line - a.before - a.size if k == at else 0 for k in range(rank))
    return pad(x, before=before, after=after, value=value) if any((*before, *after)) else x


def _from(x: Value, a: _Axis, start: int, size: int, step: int = 1) -> Value:
    """`size` positions of the axis, `step` apart, from `start` on."""
    shape, at = shape_of(x), 2 + a.axis
    starts = tuple(start if k == at else 0 for k in range(len(shape)))
    sizes = tuple(sym(size) if k == at else d for k, d in enumerate(shape))
    steps = tuple(step if k == at else 1 for k in range(len(shape)))
    return slice_(x, starts=starts, sizes=sizes, steps=steps)


_COMBINED = {"max_pool": "max", "sum_pool": "add"}
"""What joins the elements of a window."""
LARGE_WINDOW_RULES = (Rule("large_windows", tuple(_COMBINED), partial(large_windows, False)),)
