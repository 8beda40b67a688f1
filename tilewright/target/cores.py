"""What is known of cores by the names that LLVM gives them: instructions begun in a cycle, and bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.target.target import Bandwidth, Pipes

_WIDE = Pipes(arithmetic=2)
_ZEN = Pipes(issue=6, arithmetic=4)
_ZEN_HALVES = Pipes(issue=6, multiply_adds=1, arithmetic=2, loads=1, stores=0.5)

_PIPES: Mapping[tuple[str, int], Pipes] = MappingProxyType(
    {
        ("znver1", 256): _ZEN_HALVES,
        ("znver2", 256): _ZEN,
        ("znver3", 256): _ZEN,
        ("znver4", 256): _ZEN,
        ("znver4", 512): _ZEN_HALVES,
        ("znver5", 256): Pipes(issue=8, arithmetic=4),
        ("znver5", 512): Pipes(issue=8, arithmetic=4),
        ("neoverse-n1", 128): Pipes(arithmetic=2),
        ("generic", 128): Pipes(arithmetic=2),
    }
)

_ZEN_BANDWIDTH = Bandwidth(l2=28, l3=20, memory=6.6, streams=1)
"""Of Zen 3: 97, 72 and 23 GB/s at 3.45 GHz (Zen 4: 117, 99 and 31 at 3.66). Several streams are slower than one on
Zen 4: docs/decisions/0024-streams.md."""


def pipes_of(cpu: str, vector_bits: int) -> Pipes:
    """Of a core that computes in vectors of so many bits. Units for 512 bits are mostly those for 256 joined, or take
    two cycles."""
    return _PIPES.get((cpu, vector_bits), _WIDE if vector_bits == 512 else Pipes())


def bandwidth_of(cpu: str) -> Bandwidth:
    """Of a core; that of a usual server where nothing is known."""
    return _ZEN_BANDWIDTH if cpu.startswith("znver") else Bandwidth()
