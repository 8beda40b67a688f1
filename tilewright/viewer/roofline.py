"""What a machine can do at most, by the facts that the cost model has of it."""

from __future__ import annotations

from tilewright.cost.core import Source, begin_cycles, lanes_of, read_cycles
from tilewright.target.target import Target
from tilewright.viewer.records import RooflineView

_FLOAT = 32
_OF_A_CORE: Source = "l2"
_SHARED: tuple[Source, ...] = ("l3", "memory")


def roofline(target: Target, threads: int, hertz: float | None) -> RooflineView:
    """Operations on float32 and bytes in a cycle. L3 and memory are what one core gets: how far cores share these is no
    fact of a target."""
    flops = 2 * lanes_of(_FLOAT, target) / begin_cycles(1, "multiply_adds", target)
    bandwidth: dict[str, float] = {_OF_A_CORE: threads / read_cycles(1, _OF_A_CORE, target)}
    bandwidth |= {source: 1 / read_cycles(1, source, target) for source in _SHARED}
    return RooflineView(target.name, threads, flops * threads, bandwidth, hertz)
