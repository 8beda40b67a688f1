"""What the filters of a convolution meet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.ir.core import Op
from tilewright.ir.sym import Sym, sym


@dataclass(frozen=True)
class Windows:
    """How a convolution goes over images: numbers for each axis of these, of which padding may depend on sizes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[Sym, Sym], ...]
    groups: int

    @classmethod
    def of(cls, op: Op, sizes: tuple[int, ...]) -> Windows:
        ones, zeros = (1,) * len(sizes), (0,) * len(sizes)
        attrs = op.attrs
        pads = zip(attrs["pads_begin"] or zeros, attrs["pads_end"] or zeros, strict=True)
        return cls(
            sizes,
            tuple(attrs["strides"] or ones),
            tuple(attrs["dilations"] or ones),
            tuple((sym(before), sym(after)) for before, after in pads),
            int(attrs["groups"]),
        )

    def rows(self, x: np.ndarray, most: int, dims: Mapping[str, int]) -> np.ndarray:
        """What the filters meet: `[positions, channels * window]`, in the order of the weights; at most so many
        positions, evenly spread. `dims` are the sizes of the call."""
        space = len(self.sizes)
        reach = tuple((size - 1) * step + 1 for size, step in zip(self.sizes, self.dilations, strict=True))
        pads = [(before.evaluate(dims), after.evaluate(dims)) for before, after in self.pads]
        padded = np.pad(x, [(0, 0), (0, 0), *pads])
        views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(2, 2 + space)))
        steps = (*self.strides, *self.dilations)
        views = views[(slice(None), slice(None), *(slice(None, None, step) for step in steps))]
        moved = np.moveaxis(views, 1, 1 + space)  # batch, positions, channels, window
        lattice = moved.shape[: 1 + space]
        picked = spread(math.prod(lattice), most)
        return np.ascontiguousarray(moved[np.unravel_index(picked, lattice)]).reshape(len(picked), -1)


def spread(count: int, most: int) -> np.ndarray:
    """At most so many of the numbers below `count`, in the middles of equal pieces."""
    if count <= most:
        return np.arange(count)
    return ((np.arange(most) + 0.5) * (count / most)).astype(np.int64)

