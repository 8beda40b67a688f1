"""The phases of a transposed convolution: which positions of the result the same taps meet, and how they interleave.

Position q = s * j + r of the unpadded result sums x[i] * w[k] over all s * i + d * k = q, for stride s and dilation d.
With g the greatest common divisor of both, phases r = g * p are met by the taps first, first + s / g, ... at positions
j - shift, j - shift - d / g, ... of x, and all others by none. So a phase is a convolution of dilation d / g by every
(s / g)-th tap, reversed. Where d / g is 1, all phases read the same positions, and are the filters of one convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product as product_of
from math import gcd, prod
from typing import Generic, Protocol, TypeVar

import numpy as np

from tilewright.graph.match import shape_of
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, ceildiv, sym
from tilewright.ops.view import pad, reshape, reverse, slice_, transpose

T = TypeVar("T")


class Moves(Protocol, Generic[T]):
    """How the elements of filters are moved: those of arrays now, those of values by operators."""

    def pad(self, x: T, after: Sequence[int]) -> T: ...

    def slice(self, x: T, starts: Sequence[int], sizes: Sequence[Sym]) -> T: ...

    def reshape(self, x: T, shape: Sequence[Sym]) -> T: ...

    def transpose(self, x: T, perm: Sequence[int]) -> T: ...

    def reverse(self, x: T, axes: Sequence[int]) -> T: ...


class OfArrays:
    """Moves of arrays."""

    def pad(self, x: np.ndarray, after: Sequence[int]) -> np.ndarray:
        return np.pad(x, [(0, n) for n in after]) if any(after) else x

    def slice(self, x: np.ndarray, starts: Sequence[int], sizes: Sequence[Sym]) -> np.ndarray:
        return x[tuple(slice(start, start + n.value) for start, n in zip(starts, sizes, strict=True))]

    def reshape(self, x: np.ndarray, shape: Sequence[Sym]) -> np.ndarray:
        return x.reshape([d.value for d in shape])

    def transpose(self, x: np.ndarray, perm: Sequence[int]) -> np.ndarray:
        return x.transpose(perm)

    def reverse(self, x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
        return np.flip(x, tuple(axes))


class OfValues:
    """Moves by operators, which are emitted."""

    def pad(self, x: Value, after: Sequence[int]) -> Value:
        return pad(x, before=(0,) * len(after), after=after) if any(after) else x

    def slice(self, x: Value, starts: Sequence[int], sizes: Sequence[Sym]) -> Value:
        return x if tuple(sizes) == shape_of(x) else slice_(x, starts=starts, sizes=sizes)

    def reshape(self, x: Value, shape: Sequence[Sym]) -> Value:
        return reshape(x, shape=shape)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return transpose(x, perm=perm)

    def reverse(self, x: Value, axes: Sequence[int]) -> Value:
        return reverse(x, axes=axes)


@dataclass(frozen=True)
class Taps:
    """The taps of `phases` along an axis that are computed together: `count` of each, `step` apart, from tap `first` of
    the first phase on. They read every `dilation`-th position back from the one that is `shift` before that of the
    result."""

    first: int
    phases: int
    count: int
    step: int
    dilation: int
    shift: int

    @property
    def reach(self) -> int:
        return self.shift + (self.count - 1) * self.dilation


@dataclass(frozen=True)
class PhasedAxis:
    """A spatial axis of a transposed convolution. Of the `stride` phases every `spacing`-th is met by `parts`, which
    are convolutions apart from each other. Each phase has `counts` positions, from `start` on; of the interleaved
    result the elements from `before` on are kept, `size` of them."""

    stride: int
    spacing: int
    parts: tuple[Taps, ...]
    inputs: Sym
    start: Sym
    counts: Sym
    before: Sym
    size: Sym

    @property
    def met(self) -> int:
        """How many phases are computed."""
        return sum(part.phases for part in self.parts)

    def padding(self, part: Taps) -> tuple[Sym, Sym]:
        """What a part reads of the data before and after its ends."""
        return part.reach - self.start, self.start + self.counts - part.shift - self.inputs


def phased_axis(
    stride: int, dilation: int, kernel: int, inputs: Sym, before: Sym, size: Sym
) -> PhasedAxis:
    """An axis of `inputs` elements and `kernel` taps, whose result has `size` elements from `before` on."""
    if inputs == 1:  # no two taps meet: the stride is of no matter
        stride = kernel * dilation
    spacing = gcd(stride, dilation)
    every, apart = stride // spacing, dilation // spacing
    parts: tuple[Taps, ...]
    if apart == 1:
        together = min(every, kernel)
        parts = (Taps(0, together, -(-kernel // every), together, 1, 0),)
    else:
        firsts = [phase * pow(apart, -1, every) % every for phase in range(every)]
        parts = tuple(
            Taps(first, 1, max(-(-(kernel - first) // every), 1), every, apart, (first * apart) // every)
            for first in firsts
        )
    start = before // stride
    rest = before - start * stride
    return PhasedAxis(stride, spacing, parts, inputs, start, ceildiv(rest + size, stride), rest, size)


@dataclass(frozen=True)
class Phases:
    """The phases of a transposed convolution with `groups`, along its spatial axes.

    The convolutions of all `parts` give [n, phases of axes with parts apart, groups, other phases, c, *counts].
    """

    axes: tuple[PhasedAxis, ...]
    groups: int

    @property
    def parts(self) -> list[tuple[Taps, ...]]:
        """The convolutions: the taps of each along all axes."""
        return list(product_of(*(axis.parts for axis in self.axes)))

    @property
    def number(self) -> int:
        """How many phases are computed."""
        return prod(axis.met for axis in self.axes)

    def padding(self, part: Sequence[Taps]) -> tuple[tuple[Sym, ...], tuple[Sym, ...]]:
        """What one of the convolutions reads beyond the ends of the data."""
        pairs = [axis.padding(taps) for axis, taps in zip(self.axes, part, strict=True)]
        return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)

    def filters(self, w: T, shape: Sequence[Sym], part: Sequence[Taps], moves: Moves[T]) -> T:
        """w [groups * c, o, *kernel], of `shape`, as [groups, phases, o, c, *taps], zeros where there are fewer
        taps."""
        c, o, *kernel = shape
        lengths = [taps.count * taps.step for taps in part]
        ends = [taps.first + n - k.value for taps, n, k in zip(part, lengths, kernel, strict=True)]
        w = moves.pad(w, [0, 0, *(max(n, 0) for n in ends)])
        w = moves.slice(w, [0, 0, *(taps.first for taps in part)], [c, o, *map(sym, lengths)])
        by_step = [sym(n) for taps in part for n in (taps.count, taps.step)]
        w = moves.reshape(w, [sym(self.groups), c // self.groups, o, *by_step])
        by_phase = [sym(n) for taps in part for n in (taps.count, taps.phases)]
        w = moves.slice(w, [0] * (3 + len(by_phase)), [sym(self.groups), c // self.groups, o, *by_phase])
        counts, phases = range(3, 3 + len(by_phase), 2), range(4, 4 + len(by_phase), 2)
        w = moves.transpose(w, [0, *phases, 2, 1, *counts])
        w = moves.reverse(w, range(3 + len(part), 3 + 2 * len(part)))
        number = prod(taps.phases for taps in part)
        return moves.reshape(
            w, [sym(self.groups), sym(number), o, c // self.groups, *(sym(taps.count) for taps in part)]
        )

    def interleaved(self, y: Value, trailing: int) -> Value:
        """What the parts give, all their filters along one axis, as [n, groups * c, *sizes, ...]; `trailing` axes
        follow the spatial ones."""
        n, filters, *space = shape_of(y)
        channels = filters // (self.number * self.groups)
        extents: dict[str, Sym] = {"n": n}
        extents |= {f"phase{k}": sym(a.met) for k, a in enumerate(self.axes) if len(a.parts) > 1}
        extents |= {"group": sym(self.groups)}
        extents |= {f"phase{k}": sym(a.met) for k, a in enumerate(self.axes) if len(a.parts) == 1}
        extents |= {"c": channels}
        extents |= {f"at{k}": d for k, d in enumerate(space)}  # trailing axes among them
        extents |= {f"unmet{k}": sym(1) for k, a in enumerate(self.axes) if a.spacing > 1}
        apart = reshape(y, shape=tuple(extents.values()))
        wanted = {f"phase{k}": a.stride // a.spacing for k, a in enumerate(self.axes)}
        wanted |= {f"unmet{k}": a.spacing for k, a in enumerate(self.axes)}
        missing = [wanted[name] - d.value if name in wanted else 0 for name, d in extents.items()]
        if any(missing):
            apart = pad(apart, before=(0,) * len(missing), after=missing)
        order = ["n", "group", "c"]
        for k in range(len(self.axes)):
            order += [name for name in (f"at{k}", f"phase{k}", f"unmet{k}") if name in extents]
        behind = [f"at{len(self.axes) + k}" for k in range(trailing)]
        places = list(extents)
        turned = transpose(apart, perm=[places.index(name) for name in (*order, *behind)])
        whole = [a.counts * a.stride for a in self.axes]
        rest = [extents[name] for name in behind]
        merged = reshape(turned, shape=(n, self.groups * channels, *whole, *rest))
        starts = (0, 0, *(a.before for a in self.axes), *[0] * trailing)
        sizes = (n, self.groups * channels, *(a.size for a in self.axes), *rest)
        return merged if shape_of(merged) == sizes else slice_(merged, starts=starts, sizes=sizes)


def phases_of(op: Op) -> Phases | None:
    """The phases of a `conv_transpose`; None where the extents of its filters are not known, or it has no filters."""
    x, w = (shape_of(v) for v in op.operands)
    kernel, space, rank = w[2:], x[2:], len(x) - 2
    if not all(k.is_const for k in kernel) or any(d == 0 for d in (*w, x[1])):
        return None
    strides = tuple(op.attrs["strides"]) or (1,) * rank
    dilations = tuple(op.attrs["dilations"]) or (1,) * rank
    before = tuple(map(sym, op.attrs["pads_begin"])) or (sym(0),) * rank
    rows = zip(strides, dilations, kernel, space, before, shape_of(op.result)[2:], strict=True)
    axes = tuple(phased_axis(s, d, k.value, inputs, b, size) for s, d, k, inputs, b, size in rows)
    return Phases(axes, op.attrs["groups"])
