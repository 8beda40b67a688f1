"""Pooling with large windows, whose direct sums would read each element as often as there are windows over it.

Windows over several axes are reduced along one axis after the other. Along an axis they grow by doubling: the windows
of 2n elements are those of n joined with those n positions further. A sum takes disjoint windows, whose sizes are the
binary digits of the kernel's; a maximum takes two that may overlap. Nothing is subtracted, so that infinities and NaN
reach the windows that they are in and no others, and a sum of n elements has log2(n) roundings one after the other in
place of n: it is closer to the exact sum than the direct one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tilewright.cost.windows import doubling_reads, grows_by_doubling, is_worth_taking_apart
from tilewright.graph.match import dtype_of, shape_of
from tilewright.ir.core import Builder, Op, Value
from tilewright.ir.rewrite import Replacement, RewriteContext, defining, rule
from tilewright.ir.scalar import identity
from tilewright.ir.sym import Sym, sym
from tilewright.ops.elementwise import add, max_
from tilewright.ops.pool import max_pool, sum_pool
from tilewright.ops.view import pad, slice_
from tilewright.ops.window import Window


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


@rule("max_pool", "sum_pool")
def large_windows(op: Op, b: Builder, ctx: RewriteContext) -> Replacement:
    """pool(x) -> pools along single axes, and windows that grow by doubling, where that reads far fewer elements."""
    x, pads = _before_padding(op)
    if not x.tensor.is_static or not op.result.tensor.is_static:
        return None
    axes = [a for a in _axes(op, x, pads) if a.changes_anything]
    shape = [d.value for d in shape_of(x)]
    if not axes or not prod(shape) or not prod(d.value for d in shape_of(op.result)):
        return None
    axes.sort(key=lambda a: a.count / a.size)  # what shrinks comes first
    apart = 0
    for a in axes:
        others = prod(shape) // shape[2 + a.axis]
        apart += others * (doubling_reads(a.line, a.kernel) if _by_doubling(a) else a.count * a.visits)
        shape[2 + a.axis] = a.count
    if not is_worth_taking_apart(prod(shape) * prod(a.visits for a in axes), apart):
        return None
    for a in axes:
        x = _doubled(x, a, op.name) if _by_doubling(a) else _direct(x, a, op.name)
    return x


_Pads = tuple[tuple[Sym, ...], tuple[Sym, ...]]


def _before_padding(op: Op) -> tuple[Value, _Pads]:
    """What is pooled, and how far windows reach beyond its ends: of a sum over zeros that were added, what was there
    before."""
    x = op.operands[0]
    rank = len(shape_of(x)) - 2
    before, after = (tuple(map(sym, op.attrs[name])) or (sym(0),) * rank for name in ("pads_begin", "pads_end"))
    inner = defining(x, "pad") if op.name == "sum_pool" else None
    if inner is None or inner.attrs["mode"] != "constant" or inner.attrs["value"]:
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
    rank = len(shape_of(x)) - 2

    def only(value: int, other: int) -> tuple[int, ...]:
        return tuple(value if axis == a.axis else other for axis in range(rank))

    after = max(a.line - a.before - a.size, 0)
    attrs = {
        "kernel": only(a.kernel, 1), "strides": only(a.stride, 1), "pads_begin": only(a.before, 0),
        "pads_end": only(after, 0), "dilations": only(a.dilation, 1),
    }  # fmt: skip
    return (max_pool if name == "max_pool" else sum_pool)(x, **attrs)


def _doubled(x: Value, a: _Axis, name: str) -> Value:
    """The windows along one axis, grown from single elements."""
    combine = "max" if name == "max_pool" else "add"
    join: Callable[[Value, Value], Value] = max_ if combine == "max" else add
    wide = _padded(x, a, identity(combine, dtype_of(x)))
    positions = a.line - a.reach + 1
    found: Value | None = None
    size, done = 1, 0
    while True:
        if combine == "add" and a.kernel & size:
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


LARGE_WINDOW_RULES = (large_windows,)
