"""The model of one core that all decisions share: what it computes in a cycle, what its caches keep, and how long data
take from where they are. Rates, sizes and shares are the target's; no other file of this room reads them."""

from __future__ import annotations

from functools import lru_cache
from math import inf, isqrt
from typing import Literal

from tilewright.target.dots import Dot
from tilewright.target.target import LINE_BYTES, Target

Source = Literal["l2", "l3", "memory"]
"""Where data are when they are read."""

Use = Literal["kept", "nest", "block", "tiles", "band", "lines", "panel"]
"""For what a part of L2 is wanted; `CacheShares` says what each means."""


def l2_room(target: Target, use: Use) -> float:
    """Bytes of L2 that data of this use may fill."""
    share: float = getattr(target.calibration.shares, use)
    return share * target.caches.l2


def l3_room(target: Target) -> float:
    """Bytes that stay in the last cache between two readings; all there are, where L2 is the last one."""
    return target.calibration.shares.kept * target.caches.l3 if target.caches.l3 else inf


def source_of(size: float, target: Target) -> Source:
    """Where so many bytes come from when all of them are used in turns, again and again."""
    if size > target.calibration.shares.kept * target.caches.l3:
        return "memory"
    return "l3" if size > l2_room(target, "kept") else "l2"


def is_kept(size: float, target: Target) -> bool:
    """Whether a core still finds so many bytes in L2 that it has just written or read."""
    return size <= l2_room(target, "kept")


def multiply_cycles(products: float, element: int, target: Target) -> float:
    """Cycles of so many multiply-adds of elements of so many bytes, in register tiles that fill the units."""
    lanes = target.vector_bits // (8 * element)
    return products / (target.pipes.multiply_adds * lanes * target.calibration.peak)


def products_per_float(dot: Dot, target: Target) -> float:
    """Products of narrow numbers that a core adds up by `dot` in the time of one of float32, without Winograd's
    algorithm."""
    lanes = max((n for n, _ in dot.calls if 32 * n <= target.vector_bits), default=1)
    instructions = 1 if dot.accumulates else 2
    return dot.group / instructions * 32 * lanes / target.vector_bits


def issue_cycles(operations: float, loads: float, stores: float, waits: float, target: Target) -> float:
    """Cycles of a loop that issues so many instructions of each kind, of which so many wait for one before them."""
    pipes = target.pipes
    return max(operations / pipes.arithmetic, loads / pipes.loads, stores / pipes.stores, waits * pipes.latency)


def move_cycles(size: float, source: Source, target: Target) -> float:
    """What reading or writing so many bytes adds to the time of a core that multiplies meanwhile."""
    exposed: float = getattr(target.calibration.exposed, source)
    rate: float = getattr(target.bandwidth, source)
    return size * exposed / rate


def read_cycles(size: float, source: Source, target: Target) -> float:
    """Cycles of a core that does nothing but read so many bytes."""
    rate: float = getattr(target.bandwidth, source)
    return size / rate


def exchange_cycles(lines: float, target: Target) -> float:
    """What reading so many cache lines, each just written by another core, adds to the time of a core."""
    return lines * target.calibration.exchange


def largest_cache(target: Target) -> int:
    """Bytes of the last cache before memory."""
    return target.caches.l3 or target.caches.l2


def line_elements(element: int) -> int:
    """Elements of so many bytes in a cache line."""
    return max(1, LINE_BYTES // element)


def chains(target: Target) -> int:
    """Independent sums that keep all units for multiply-adds busy."""
    return target.pipes.latency * target.pipes.multiply_adds


_MOST = 1 << 40
"""Extents from which on only small divisors, and what these leave, are found: parts of others are never taken."""


@lru_cache(maxsize=256)
def divisors(extent: int) -> tuple[int, ...]:
    """In ascending order: extents of parts that cut an axis without a remainder."""
    small = [n for n in range(1, isqrt(max(0, min(extent, _MOST))) + 1) if extent % n == 0]
    return (*small, *(extent // n for n in reversed(small) if n * n != extent))


def millions(count: float) -> str:
    """Cycles as a remark says them."""
    return f"{count / 1e6:.3g} million cycles"
