"""Transposed convolutions as convolutions: one for each phase of the stride, computed together as more
filters.

Position q of the unpadded result, q = stride * j + r, sums x[j - m] * w[r + stride * m] over m. So phase r is
a convolution of x with every stride-th tap of the filter, reversed; the results of the phases are then interleaved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.cost.conv.layouts import fills_blocks
from tilewright.graph.layout.conv_window import has_known_filters, pad_space
from tilewright.graph.layout.layout_map import LayoutMap
from tilewright.graph.match import shape_of
from tilewright.ir.core import Op, Value
from tilewright.ir.passes import PassContext
from tilewright.ir.sym import Sym, ceildiv, sym
from tilewright.ops.blocked import conv_blocked, unblock_channels
from tilewright.ops.view import pad, reshape, slice_, transpose


@dataclass(frozen=True)
class Subpixels:
    """The geometry, an entry for each spatial axis.

    `phases` are those that any tap of the filter meets, and the others are zeros: of strides beyond the filter there
    are as many as it has elements. `taps` are those of one phase, `counts` the positions of one phase; of the
    interleaved result the elements from `before` on are kept, `sizes` of them.
    """

    strides: tuple[int, ...]
    phases: tuple[int, ...]
    taps: tuple[int, ...]
    inputs: tuple[Sym, ...]
    counts: tuple[Sym, ...]
    before: tuple[Sym, ...]
    sizes: tuple[Sym, ...]

    @property
    def number(self) -> int:
        """How many phases there are."""
        return int(np.prod(self.phases))

    def padded(self, x: Value, trailing: int) -> Value:
        """x with what its convolution reads beyond its ends; `trailing` axes follow the spatial ones."""
        first = tuple(sym(t - 1) for t in self.taps)
        last = tuple(n - d for n, d in zip(self.counts, self.inputs, strict=True))
        return pad_space(x, first, last, trailing)

    def filters(self, w: np.ndarray) -> np.ndarray:
        """w [c, o, *kernel] as filters [phases, o, c, *taps], with zeros where a phase has fewer taps."""
        wide = [(0, 0), (0, 0)]
        wide += [(0, t * s - k) for t, s, k in zip(self.taps, self.phases, w.shape[2:], strict=True)]
        rank = len(self.strides)
        apart = [d for t, s in zip(self.taps, self.phases, strict=True) for d in (t, s)]
        split = np.pad(w, wide).reshape(*w.shape[:2], *apart)
        order = [*(3 + 2 * k for k in range(rank)), 1, 0, *(2 + 2 * k for k in range(rank))]
        reversed_taps = np.flip(split.transpose(order), tuple(range(-rank, 0)))
        return reversed_taps.reshape(self.number, w.shape[1], w.shape[0], *self.taps)

    def interleaved(self, y: Value, trailing: int) -> Value:
        """y [n, phases * c, *counts, ...] as [n, c, *sizes, ...]."""
        rank = len(self.strides)
        n, c, *rest = shape_of(y)
        behind = tuple(rest[rank:])
        apart = reshape(y, shape=(n, *self.phases, c // self.number, *rest))
        if self.phases != self.strides:
            behind_phases = (0,) * (1 + len(rest))
            missing = tuple(s - p for s, p in zip(self.strides, self.phases, strict=True))
            apart = pad(apart, before=(0,) * (2 + rank + len(rest)), after=(0, *missing, *behind_phases))
        pairs = [axis for k in range(rank) for axis in (2 + rank + k, 1 + k)]
        order = (0, 1 + rank, *pairs, *(2 + 2 * rank + k for k in range(trailing)))
        whole = tuple(count * s for count, s in zip(self.counts, self.strides, strict=True))
        merged = reshape(transpose(apart, perm=order), shape=(n, c // self.number, *whole, *behind))
        starts = (0, 0, *self.before, *[0] * trailing)
        return slice_(merged, starts=starts, sizes=(n, c // self.number, *self.sizes, *behind))


def _subpixels(op: Op) -> Subpixels | None:
    """The phases of a `conv_transpose`; None when it has groups or dilations."""
    x, w = op.operands
    space = shape_of(x)[2:]
    rank = len(space)
    strides = tuple(op.attrs["strides"]) or (1,) * rank
    if op.attrs["groups"] != 1 or any(d != 1 for d in op.attrs["dilations"]):
        return None
    before = tuple(map(sym, op.attrs["pads_begin"])) or (sym(0),) * rank
    sizes = shape_of(op.result)[2:]
    kernel = shape_of(w)[2:]
    if not all(k.is_const for k in kernel):
        return None
    taps = tuple(-(-k.value // s) for k, s in zip(kernel, strides, strict=True))
    counts = tuple(ceildiv(b + size, s) for b, size, s in zip(before, sizes, strides, strict=True))
    phases = tuple(min(s, k.value) for s, k in zip(strides, kernel, strict=True))
    return Subpixels(strides, phases, taps, space, counts, before, sizes)


def layout_conv_transpose(op: Op, layouts: LayoutMap, ctx: PassContext) -> bool:
    """Emit all phases as one convolution; few filters give a plain result, so that lanes hold phases too."""
    subpixels = _subpixels(op)
    if subpixels is None or not has_known_filters(op):
        return False
    weights = layouts.array(op.operands[1])
    if not weights.size:
        return False
    c, o = weights.shape[:2]
    inputs, keeps_blocks = layouts.filled(c), fills_blocks(o)
    taps = [(0, 0)] * len(subpixels.taps)
    grow = [(0, 0), (0, layouts.filled(o) - o if keeps_blocks else 0), (0, inputs - c)]
    filters = np.pad(subpixels.filters(weights), [*grow, *taps]).reshape(-1, inputs, *subpixels.taps)
    number = len(filters)
    filters = np.pad(filters, [(0, layouts.filled(number) - number), (0, 0), *taps])
    data = subpixels.padded(layouts.blocked(op.operands[0]), 1)
    y = conv_blocked(data, layouts.filters(filters, op.operands[1]), block=layouts.block)
    if keeps_blocks:
        layouts.set_blocked(op.result, subpixels.interleaved(y, 1))
    else:
        layouts.set_plain(op.result, subpixels.interleaved(unblock_channels(y, channels=sym(number)), 0))
    return True
