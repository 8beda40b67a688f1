"""What a machine can do at most: as it was measured, or by the facts that the cost model has of it."""

from __future__ import annotations

from tilewright.cost.core import Source, begin_cycles, lanes_of, read_cycles
from tilewright.profiling.records import MachineRates
from tilewright.target.target import Target
from tilewright.viewer.records import RooflineView

_FLOAT = 32
_OF_A_CORE: Source = "l2"
_SHARED: tuple[tuple[str, Source], ...] = (("L3", "l3"), ("memory", "memory"))
_BILLION = 1e9


def measured_roofline(rates: MachineRates, threads: int) -> RooflineView:
    """Of one thread or of all, as they were measured; in between as many times that of one, and no more than all."""

    def of(one: float, every: float) -> float:
        return _BILLION * min(one * threads, every)

    flops: dict[str, float] = {}
    for peak in rates.peaks:
        flops[peak.dtype] = max(flops.get(peak.dtype, 0.0), of(peak.one, peak.every))
    bandwidth = {read.level: of(read.one, read.every) for read in rates.reads}
    return RooflineView(rates.facts.get("cpu", ""), threads, flops, bandwidth, True)


def known_roofline(target: Target, threads: int, hertz: float) -> RooflineView:
    """By facts of a target whose clock is known. L3 and memory are what one core gets: how far cores share these is no
    such fact."""
    flops = 2 * lanes_of(_FLOAT, target) / begin_cycles(1, "multiply_adds", target)
    bandwidth = {"L2": hertz * threads / read_cycles(1, _OF_A_CORE, target)}
    bandwidth |= {name: hertz / read_cycles(1, source, target) for name, source in _SHARED}
    return RooflineView(target.name, threads, {"f32": hertz * threads * flops}, bandwidth, False)
