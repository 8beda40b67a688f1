"""Windows that slide: kernel, strides, pads and dilations of convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from tilewright.ir import sym as s
from tilewright.ir.sym import Sym


@dataclass(frozen=True)
class WindowAttributes:
    """One entry for each spatial axis. `pads_end` above what was asked for make rounded-up sizes."""

    kernel: tuple[Sym, ...]
    strides: tuple[int, ...]
    pads_begin: tuple[Sym, ...]
    pads_end: tuple[Sym, ...]
    dilations: tuple[int, ...]

    @property
    def sliding(self) -> dict[str, Any]:
        """The attributes of our convolutions."""
        names = ("strides", "pads_begin", "pads_end", "dilations")
        return {name: getattr(self, name) for name in names}

    def reach(self, k: int) -> Sym:
        """Elements from the first to the last that the window covers along axis k."""
        return (self.kernel[k] - 1) * self.dilations[k] + 1


def same_pads(size: Sym, kernel: Sym, stride: int, dilation: int, upper: bool) -> tuple[Sym, Sym]:
    """The pads that give ceil(size / stride) positions."""
    reach = (kernel - 1) * dilation + 1
    total = s.maximum((s.ceildiv(size, stride) - 1) * stride + reach - size, 0)
    half = total // 2
    return (half, total - half) if upper else (total - half, half)


def rounded_up(window: WindowAttributes, space: Sequence[Sym]) -> WindowAttributes:
    """ceil_mode: as many positions as begin inside of the input or its padding at the begin."""
    ends = [
        _rounded_up(size, window.reach(k), window.strides[k], window.pads_begin[k], window.pads_end[k])
        for k, size in enumerate(space)
    ]
    return replace(window, pads_end=tuple(ends))


def _rounded_up(size: Sym, reach: Sym, stride: int, begin: Sym, end: Sym) -> Sym:
    """The pads at the end of an axis, of which as many positions as begin inside come out.

    Whether the last one does is decided for a size of which only the bounds are known: of a size that is itself a
    quotient, as behind other layers, that cannot be seen any more, and sizes would become longer from layer to layer.
    """
    known = all(d.is_const for d in (reach, begin, end))
    low, high = size.interval
    some = s.var("size", int(max(low, 0)), None if high == inf else int(high)) if known else size
    count = s.ceildiv(some + begin + end - reach, stride) + 1
    beyond = s.ge((count - 1) * stride, some + begin)
    count = count - s.select(beyond, 1, 0)
    pads = s.simplify(s.maximum((count - 1) * stride + reach - some - begin, end))
    return pads.subs({some: size})
