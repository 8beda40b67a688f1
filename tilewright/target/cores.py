"""What is known of cores by the names that LLVM gives them: instructions begun in a cycle, and bandwidth.

Sources: AMD's and Arm's Software Optimization Guides of each core ("SOG"), Intel's Optimization Reference Manual, the
tables of uops.info (x86), Dougall Johnson's measurements of Firestorm (Apple M1), and, where none of these tells,
what is said beside the entry. Only x86-64 cores have been measured here; the others are taken from their documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from tilewright.target.calibration import Calibration, Exposed
from tilewright.target.target import Bandwidth, Pipes

_WIDE = Pipes(arithmetic=2)
_ZEN = Pipes(issue=6, arithmetic=4)
_ZEN_HALVES = Pipes(issue=6, multiply_adds=1, arithmetic=2, loads=1, stores=0.5)

_SUNNY_COVE = Pipes(issue=5, arithmetic=2)
"""512-bit units: ports 0 and 1 joined, and port 5; two stores in a cycle only to one line."""
_GOLDEN_COVE = Pipes(issue=6, loads=3, stores=2)
"""The performance cores, for 256 bits: three loads and two stores in a cycle (uops.info)."""
_NEON_2 = Pipes(arithmetic=2, latency=2)
"""Two pipes of 128 bits; a multiply-add takes 4 cycles, but its sum is needed only 2 before the end (Arm's SOG: "late
forwarding of accumulate operands")."""
_NEON_4 = Pipes(issue=8, multiply_adds=4, arithmetic=4, loads=3, stores=2, latency=2)
"""Neoverse V1 and V2 (SOG): four pipes of 128 bits, three loads and two stores; accumulation as in Neoverse N1."""
_FIRESTORM = Pipes(issue=8, multiply_adds=4, arithmetic=4, loads=3, stores=2)
"""Apple M1: no late forwarding is known. Its successors have the same vector pipes, and decode more in a cycle."""

_PIPES: Mapping[tuple[str, int], Pipes] = MappingProxyType(
    {
        ("znver1", 256): _ZEN_HALVES,
        ("znver2", 256): _ZEN,
        ("znver3", 256): _ZEN,
        ("znver4", 256): _ZEN,
        ("znver4", 512): _ZEN_HALVES,
        ("znver5", 256): Pipes(issue=8, arithmetic=4),
        ("znver5", 512): Pipes(issue=8, arithmetic=4),
        ("haswell", 256): Pipes(latency=5),
        ("broadwell", 256): Pipes(latency=5),
        ("icelake-server", 512): _SUNNY_COVE,
        ("icelake-server", 256): replace(_SUNNY_COVE, arithmetic=3),
        # cores for laptops lack the unit for 512-bit multiply-adds behind port 5
        ("icelake-client", 512): replace(_SUNNY_COVE, multiply_adds=1),
        ("tigerlake", 512): replace(_SUNNY_COVE, multiply_adds=1),
        ("sapphirerapids", 512): Pipes(issue=6, arithmetic=2),
        ("sapphirerapids", 256): _GOLDEN_COVE,
        ("alderlake", 256): _GOLDEN_COVE,
        ("raptorlake", 256): _GOLDEN_COVE,
        ("neoverse-n1", 128): _NEON_2,
        ("neoverse-v1", 128): _NEON_4,
        ("neoverse-v2", 128): _NEON_4,
        ("cortex-a76", 128): _NEON_2,
        # SOG: multiply-adds of 128 bits occupy both pipes, accumulation 3 cycles; one load and one store unit
        ("cortex-a72", 128): Pipes(issue=3, multiply_adds=1, arithmetic=2, loads=1, latency=3),
        ("apple-m1", 128): _FIRESTORM,
        ("apple-m2", 128): _FIRESTORM,
        ("apple-m3", 128): replace(_FIRESTORM, issue=9),
        ("apple-m4", 128): replace(_FIRESTORM, issue=10),
        ("generic", 128): Pipes(arithmetic=2),
    }
)

_ZEN_BANDWIDTH = Bandwidth(l2=28, l3=20, memory=6.6, streams=1)
"""Of Zen 3: 97, 72 and 23 GB/s at 3.45 GHz (Zen 4: 117, 99 and 31 at 3.66). Several streams are slower than one on
Zen 4, and on Zen 5 where weights come from memory: docs/decisions/0024-streams.md."""


_APPLE_BANDWIDTH = Bandwidth(l2=32, l3=18, memory=18)
"""Derived: one core of an M1 reads about 58 GB/s from memory at 3.2 GHz (published measurements), and the system-level
cache stands before the memory, at about its speed; from L2 two thirds of what the load units take."""

_BANDWIDTH: Mapping[str, Bandwidth] = MappingProxyType(
    {
        # derived: half the widths of their interfaces to L2 (16 and 32 bytes), and two thirds of what their memory of
        # 32 bits at 3200 and 4267 MT/s could give at 1.8 and 2.4 GHz
        "cortex-a72": Bandwidth(l2=8, l3=2.5, memory=2.5),
        "cortex-a76": Bandwidth(l2=16, l3=7, memory=3.5),
    }
)


_CALIBRATION: Mapping[str, Calibration] = MappingProxyType(
    {"znver5": Calibration(Exposed(transform=4.5), requests_stores=False)}
)


def pipes_of(cpu: str, vector_bits: int) -> Pipes:
    """Of a core that computes in vectors of so many bits. Units for 512 bits are mostly those for 256 joined, or take
    two cycles."""
    return _PIPES.get((cpu, vector_bits), _WIDE if vector_bits == 512 else Pipes())


def calibration_of(cpu: str) -> Calibration:
    """What was measured of the family of a core; the mean of several where nothing was."""
    return _CALIBRATION.get(cpu, Calibration())


def bandwidth_of(cpu: str) -> Bandwidth:
    """Of a core; that of a usual server where nothing is known."""
    if cpu.startswith("znver"):
        return _ZEN_BANDWIDTH
    return _APPLE_BANDWIDTH if cpu.startswith("apple-") else _BANDWIDTH.get(cpu, Bandwidth())
