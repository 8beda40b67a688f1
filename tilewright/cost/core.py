"""The model of one core that all decisions share: what it computes in a cycle, what its caches keep, and how long data
take from where they are. Rates, sizes and shares are the target's; of this room only this file reads
them, and `parallel.py` those of threads."""

from __future__ import annotations

from functools import lru_cache
from math import inf, isqrt
from typing import Literal

from tilewright.target.calibration import Exposed, FarRows
from tilewright.target.dots import Dot
from tilewright.target.target import LINE_BYTES, Target

Source = Literal["l2", "l3", "memory"]
"""Where data are when they are read."""

Unit = Literal["issue", "multiply_adds", "arithmetic", "loads", "stores"]
"""What begins instructions: all of a core (`issue`), or those units that take one kind."""

NearUse = Literal["near", "near_lines", "near_row"]
"""For what a part of L1 is wanted; `CacheShares` says what each means."""

Use = Literal["kept", "nest", "block", "tiles", "band", "lines", "panel"]
"""For what a part of L2 is wanted; `CacheShares` says what each means."""


def l1_room(target: Target, use: NearUse) -> float:
    """Bytes of L1 that data of this use may fill."""
    share: float = getattr(target.calibration.shares, use)
    return share * target.caches.l1d


def l1_sets(target: Target) -> int:
    """Sets of lines that L1 has."""
    return target.caches.l1_sets


def l1_half(target: Target) -> int:
    """Bytes of half of L1."""
    return target.caches.l1d // 2


def fits_l2(size: float, target: Target) -> bool:
    """Whether L2 holds so many bytes, if nothing else is used."""
    return size <= target.caches.l2


def is_evicted(size: float, target: Target) -> bool:
    """Whether little of so many bytes is still in L2 when all of them have been passed over."""
    return size > target.calibration.far_rows.evicted * target.caches.l2


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


def arithmetic_cycles(operations: float, lanes: int, target: Target) -> float:
    """Cycles of so many operations on elements, so many of which are in a vector, as loops reach them."""
    return operations / (lanes * target.pipes.arithmetic * target.calibration.peak)


def products_per_float(dot: Dot, target: Target) -> float:
    """Products of narrow numbers that a core adds up by `dot` in the time of one of float32, without Winograd's
    algorithm."""
    lanes = max((n for n, _ in dot.calls if 32 * n <= target.vector_bits), default=1)
    instructions = 1 if dot.accumulates else 2
    return dot.group / instructions * 32 * lanes / target.vector_bits


def begin_cycles(instructions: float, unit: Unit, target: Target) -> float:
    """Cycles in which so many instructions on full vectors begin."""
    rate: float = getattr(target.pipes, unit)
    return instructions / rate


def step_cycles(
    multiply_adds: float, loads: float, instructions: float, chain_slack: float, target: Target
) -> float:
    """Cycles of a step of a register tile: bound by multiply-adds, by loads, by the latency of its sums (so many times,
    as not all of it is met), or by the number of instructions."""
    pipes = target.pipes
    return max(
        multiply_adds / pipes.multiply_adds,
        loads / pipes.loads,
        chain_slack * pipes.latency,
        instructions / pipes.issue,
    )


def spare_arithmetic(target: Target) -> float:
    """Instructions on vectors that begin in a cycle beside as many multiply-adds as can."""
    return max(1, target.pipes.arithmetic - target.pipes.multiply_adds)


def pass_cycles(vectors: float, target: Target) -> float:
    """Cycles of reading and writing so many vectors once more."""
    return vectors * target.calibration.exposed.passes


def exposed_load_cycles(loads: float, target: Target) -> float:
    """What so many loads add to the time of inner loops that multiply."""
    return loads * target.calibration.exposed.load / target.pipes.loads


def streams(target: Target) -> int:
    """Runs of addresses that a core reads in turns at its best."""
    return target.bandwidth.streams


def issue_cycles(operations: float, loads: float, stores: float, waits: float, target: Target) -> float:
    """Cycles of a loop that issues so many instructions of each kind, of which so many wait for one before them."""
    pipes = target.pipes
    return max(operations / pipes.arithmetic, loads / pipes.loads, stores / pipes.stores, waits * pipes.latency)


def copy_cycles(elements: float, target: Target) -> float:
    """Cycles in which so many elements are loaded and stored one by one. Machines that take two cycles to store a full
    vector (`pipes` has the rates of these) begin to store one element in each."""
    pipes = target.pipes
    return elements / min(max(1.0, pipes.loads), max(1.0, pipes.stores))


def move_cycles(size: float, source: Source, target: Target) -> float:
    """What reading or writing so many bytes adds to the time of a core that multiplies meanwhile."""
    exposed: float = getattr(target.calibration.exposed, source)
    rate: float = getattr(target.bandwidth, source)
    return size * exposed / rate


def read_cycles(size: float, source: Source, target: Target) -> float:
    """Cycles of a core that does nothing but read so many bytes."""
    rate: float = getattr(target.bandwidth, source)
    return size / rate


def one_stream_cycles(cycles: float, target: Target) -> float:
    """The time of reading memory as one run of addresses, on a core that reads several in so many cycles."""
    return cycles * target.calibration.exposed.one_stream


def transform_cycles(transformed: float, plain: float, target: Target) -> float:
    """Cycles of so many vectors of transformed (or padded) data of a convolution, and of the images around them."""
    exposed = target.calibration.exposed
    return transformed * exposed.transform + plain * exposed.image


def exchange_cycles(lines: float, target: Target) -> float:
    """What reading so many cache lines, each just written by another core, adds to the time of a core."""
    return lines * target.calibration.exchange


def exposed_parts(target: Target) -> Exposed:
    """What of each thing that a contraction does beside multiplying adds to its time."""
    return target.calibration.exposed


def far_rows(target: Target) -> FarRows:
    """How rows are read that no cache of a core holds."""
    return target.calibration.far_rows


def requests_stores(target: Target) -> bool:
    """Whether squares of a transpose gain where the lines that they write are prefetched."""
    return target.calibration.requests_stores


def stay_for_turns(weights: float, target: Target) -> bool:
    """Whether groups of entries that go through time in turns find so many bytes of recurrent weights in L2."""
    return weights <= target.calibration.recurrent_weights


def lines_before_bytes(target: Target) -> int:
    """Cache lines by which weights of fewer than 8 bits are requested before one row of bytes multiplies them."""
    return target.calibration.lines_before_bytes


def rows_of_short_weights(target: Target) -> int:
    """Rows that a product has at most where weights of 16 bits are read as they are."""
    return target.calibration.rows_of_short_weights


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


def lanes_of(bits: int, target: Target) -> int:
    """Elements of so many bits that one instruction works on at most."""
    return max(1, target.vector_bits // bits)
