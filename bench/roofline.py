"""How near kernels are to what the machine could do at best: their arithmetic, or the memory they move."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tilewright
from bench.cases import read_arrays
from tilewright.profiling.meters import MemoryLevel, levels, meters
from tilewright.runtime.report.records import CallRecord
from tilewright.target.host import host_target

ROUNDS, RUNS = 5, 8


@dataclass(frozen=True)
class Work:
    """What a call of a kernel must do at least: operations on floats, bytes of constants, bytes of all else."""

    kernel: str
    node: str
    flops: int
    constant_bytes: int
    other_bytes: int


@dataclass(frozen=True)
class Machine:
    """GFLOP/s, and the GB/s of each level by name."""

    peak: float
    bandwidth: Mapping[str, float]


@dataclass(frozen=True)
class Bound:
    """The least time in seconds, and what sets it: "FMA" or the name of a level of memory."""

    seconds: float
    by: str


@dataclass(frozen=True)
class Line:
    """A kernel, all of its calls together: milliseconds, and the share of its bound that it reaches."""

    kernel: str
    calls: int
    ms: float
    gflops: float
    gbytes: float
    by: str
    percent: float


def bound(work: Work, machine: Machine, memory: Sequence[MemoryLevel], all_constants: int) -> Bound:
    """The larger of the time for the arithmetic and that for moving memory.

    Constants come from the level that holds those of the whole model, as they are read once for each inference; other
    values from the level that holds what this kernel touches.
    """
    holds_constants, holds_others = _level(all_constants, memory), _level(work.other_bytes, memory)
    moved = work.constant_bytes / machine.bandwidth[holds_constants]
    moved += work.other_bytes / machine.bandwidth[holds_others]
    slowest = holds_constants if work.constant_bytes > work.other_bytes else holds_others
    computed = work.flops / machine.peak
    return Bound(max(computed, moved) / 1e9, "FMA" if computed >= moved else slowest)


def _level(size: int, memory: Sequence[MemoryLevel]) -> str:
    return next(level.name for level in memory if size <= level.size)


def lines(works: Sequence[Work], seconds: Sequence[float], bounds: Sequence[Bound]) -> list[Line]:
    """Calls of the same kernel together, the most expensive kernel first."""
    groups: dict[str, list[int]] = {}
    for index, work in enumerate(works):
        groups.setdefault(work.kernel, []).append(index)
    made = []
    for kernel, calls in groups.items():
        took, least = sum(seconds[k] for k in calls), sum(bounds[k].seconds for k in calls)
        flops = sum(works[k].flops for k in calls)
        moved = sum(works[k].constant_bytes + works[k].other_bytes for k in calls)
        widest = max(calls, key=lambda k: bounds[k].seconds)
        rate = took * 1e9
        percent = 100 * least / took
        made.append(
            Line(kernel, len(calls), 1000 * took, flops / rate, moved / rate, bounds[widest].by, percent)
        )
    return sorted(made, key=lambda line: line.ms, reverse=True)


def measure(model: Path, arrays: Path) -> dict[str, Any]:
    """The roofline of a model on one thread, as JSON data. Kernels and meters take turns; medians are compared."""
    compiled = tilewright.compile(model, threads=1, profile=True)
    inputs, _ = read_arrays(arrays)
    works = works_of(compiled.report().calls)
    fma, readers = meters()
    peaks: list[float] = []
    rates: dict[str, list[float]] = {name: [] for name in readers}
    times: list[list[float]] = []
    for _ in range(ROUNDS):
        peaks.append(fma.read())
        times.append([t.seconds for t in compiled.profile(inputs, RUNS)])
        peaks.append(fma.read())
        for name, meter in readers.items():
            rates[name].append(meter.read())
    seconds = [statistics.median(column) for column in zip(*times, strict=True)]
    machine = Machine(
        statistics.median(peaks), {name: statistics.median(found) for name, found in rates.items()}
    )
    constants = sum(work.constant_bytes for work in works)
    memory = levels(host_target())
    bounds = [bound(work, machine, memory, constants) for work in works]
    return {
        "model": model.stem,
        "machine": asdict(machine),
        "ms": 1000 * sum(seconds),
        "gflop": sum(work.flops for work in works) / 1e9,
        "percent": 100 * sum(b.seconds for b in bounds) / sum(seconds),
        "kernels": [asdict(line) for line in lines(works, seconds, bounds)],
    }


def works_of(calls: Sequence[CallRecord]) -> list[Work]:
    """From a report; ValueError for a model with symbolic dims, whose work is not known."""
    made = []
    for call in calls:
        sizes = [amount or "" for amount in (call.flops, call.touched_bytes, call.constant_bytes)]
        if not all(size.isdecimal() for size in sizes):
            raise ValueError(f"the work of {call.kernel} depends on dims: {sizes[0]}; fix the model's dims")
        flops, touched, constants = map(int, sizes)
        made.append(Work(call.kernel, call.node, flops, constants, touched - constants))
    return made
