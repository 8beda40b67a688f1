"""What this machine can do, measured once and kept beside the compiled models."""

from __future__ import annotations

import json
import math
import platform
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from tilewright.profiling.meters import Meter, dot_meter, fma_meter, levels, read_meters
from tilewright.profiling.records import VERSION, MachineRates, PeakRate, ReadRate
from tilewright.runtime.storage.records import plain, record
from tilewright.runtime.threads import available_cpus
from tilewright.session import Session
from tilewright.target.dots import Dot
from tilewright.target.host import host_target
from tilewright.target.target import Target

R = TypeVar("R", PeakRate, ReadRate)

ROUNDS = 5
"""Readings of each meter, of which the best counts: what else the machine does can only make it slower."""

_CPU_INFO = Path("/proc/cpuinfo")


def machine_rates(session: Session, *, again: bool = False) -> MachineRates:
    """What this machine was measured to do; it is measured now (for some seconds) where nobody has, or `again`."""
    facts = machine_facts()
    known = None if again else _recalled(session, facts)
    if known is not None:
        return known
    found = measure(facts)
    session.note(_about(facts), json.dumps(plain(found)).encode())
    return found


def rates_again(session: Session, known: MachineRates) -> MachineRates:
    """Measure the machine once more, which may have been busy when the `known` rates were read: the better ones
    count, and are kept."""
    found = measure(machine_facts())
    peaks = {(p.dtype, p.instruction): p for p in known.peaks}
    reads = {r.level: r for r in known.reads}
    better = replace(
        found,
        share=max(found.share, known.share),
        peaks=tuple(_better(p, peaks.get((p.dtype, p.instruction), p)) for p in found.peaks),
        reads=tuple(_better(r, reads.get(r.level, r)) for r in found.reads),
    )
    session.note(_about(machine_facts()), json.dumps(plain(better)).encode())
    return better


def _better(one: R, other: R) -> R:
    return replace(one, one=max(one.one, other.one), every=max(one.every, other.every))


def machine_facts() -> dict[str, str]:
    """What tells this machine, as this process may use it, from others."""
    target = host_target()
    caches = target.caches
    return {
        "cpu": _model_name() or platform.processor() or platform.machine(),
        "core": target.cpu,
        "features": " ".join(target.features),
        "caches": f"L1d {caches.l1d}, L2 {caches.l2}, L3 {caches.l3}",
        "threads": str(available_cpus()),
    }


def measure(facts: dict[str, str], rounds: int = ROUNDS) -> MachineRates:
    """Read all meters, in turns."""
    target, threads = host_target(), available_cpus()
    arithmetic = _arithmetic(target)
    memory = read_meters(target)
    ones = {name: 0.0 for name in (*arithmetic, *memory)}
    every, shares = dict(ones), dict(ones)
    for _ in range(rounds):
        for name, meter in (*arithmetic.items(), *memory.items()):
            ones[name] = max(ones[name], meter.read())
            together = meter.read_on(threads)
            every[name] = max(every[name], ones[name], together.rate)
            shares[name] = max(shares[name], together.share)
    sizes = {level.name: level.size for level in levels(target)}
    last = [*sizes][-1]
    return MachineRates(
        facts,
        threads,
        tuple(PeakRate(*name, round(ones[name], 2), round(every[name], 2)) for name in arithmetic),
        tuple(
            ReadRate(name, None if name == last else sizes[name], round(ones[name], 2), round(every[name], 2))
            for name in memory
        ),
        datetime.now(UTC).isoformat(timespec="seconds"),
        share=round(statistics.mean(shares.values()), 2),
    )


def _arithmetic(target: Target) -> dict[tuple[str, str], Meter]:
    """Meters by dtype and instruction ("" for multiply-adds of floats)."""
    found = {(dtype, ""): fma_meter(target, dtype) for dtype in ("f32", "f64")}
    if target.arch == "x86_64":
        found |= {(dot.left.name, dot.name): dot_meter(target, dot) for dot in _best(target)}
    return found


def _best(target: Target) -> list[Dot]:
    """Of each instruction its widest form."""
    found: dict[str, Dot] = {}
    for dot in target.dots:
        if not dot.turned and not dot.scalable:
            found.setdefault(dot.name, dot)
    return [*found.values()]


def _about(facts: dict[str, str]) -> str:
    return f"machine rates {VERSION}: {json.dumps(facts, sort_keys=True)}"


def _recalled(session: Session, facts: dict[str, str]) -> MachineRates | None:
    """What was noted, unless it cannot be read."""
    noted = session.recall(_about(facts))
    if noted is None:
        return None
    try:
        found = record(MachineRates, json.loads(noted))
    except (ValueError, RecursionError):
        return None
    return found if _is_whole(found) else None


def _is_whole(rates: MachineRates) -> bool:
    """Whether there is all that kernels are compared with, as it is not in a file that somebody has changed."""
    every: tuple[PeakRate | ReadRate, ...] = (*rates.peaks, *rates.reads)
    speeds = [speed for rate in every for speed in (rate.one, rate.every)]
    return bool(rates.reads) and any(p.dtype == "f32" for p in rates.peaks) and all(0 < s < math.inf for s in speeds)


def _model_name(read: Callable[[], str] = lambda: _CPU_INFO.read_text(errors="replace")) -> str:
    try:
        lines = read().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
