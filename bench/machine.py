"""What the machine is, what else it does, and what a process holds. Linux tells all of it; others tell less."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

TICK = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
TASKS = Path("/proc/self/task")
STATUS, CPU_TIMES, CPU_INFO = Path("/proc/self/status"), Path("/proc/stat"), Path("/proc/cpuinfo")
BUSY_COLUMNS = (0, 1, 2, 5, 6, 7)
"""user, nice, system, irq, softirq and steal, of a line of /proc/stat."""


def facts() -> dict[str, object]:
    """The CPU, its number, the system: what a result is worth nothing without."""
    return {
        "cpu": _cpu_model() or platform.processor() or platform.machine(),
        "cpus": len(usable_cpus()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _cpu_model() -> str:
    if not CPU_INFO.exists():
        return ""
    lines = CPU_INFO.read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def usable_cpus() -> list[int]:
    """The CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(cpus: Collection[int]) -> None:
    """Keep all threads of this process on these CPUs. Those that keep to some of them already are left alone, as some
    engines place their own."""
    for thread in os.listdir(TASKS) if TASKS.exists() else ():
        try:
            if not os.sched_getaffinity(int(thread)) <= set(cpus):
                os.sched_setaffinity(int(thread), cpus)
        except ProcessLookupError:  # it ended meanwhile
            continue


def set_priority(priority: int) -> None:
    """Real-time priority for all threads of this process, or the usual one for 0; PermissionError without the right
    to it."""
    policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
    for thread in os.listdir(TASKS) if priority or os.sched_getscheduler(0) != policy else ():
        try:
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))
        except ProcessLookupError:
            continue


@dataclass(frozen=True)
class Memory:
    """Bytes that a process holds: all of it that is in memory now, the part of that which is no file's (what processes
    cannot share, unless one was forked from the other), and the most that was in memory at any time."""

    resident: int = 0
    private: int = 0
    peak: int = 0

    def __sub__(self, before: Memory) -> Memory:
        """What was added; the peak over what was resident before."""
        return Memory(
            self.resident - before.resident, self.private - before.private, self.peak - before.resident
        )


def memory() -> Memory:
    """What this process holds; zeros where that is not told."""
    if not STATUS.exists():
        return Memory()
    rows = (line.split() for line in STATUS.read_text().splitlines())
    found = {row[0]: 1024 * int(row[1]) for row in rows if row and row[0] in ("VmRSS:", "RssAnon:", "VmHWM:")}
    return Memory(found.get("VmRSS:", 0), found.get("RssAnon:", 0), found.get("VmHWM:", 0))


def busy_seconds(text: str, cpus: Collection[int]) -> float:
    """From the text of /proc/stat: how long these CPUs were busy since the system started."""
    names = {f"cpu{cpu}" for cpu in cpus}
    rows = (line.split() for line in text.splitlines())
    return sum(int(row[1 + k]) for row in rows if row and row[0] in names for k in BUSY_COLUMNS) / TICK


@dataclass(frozen=True)
class Moment:
    """The clock, the busy time of some CPUs, and this process's own."""

    clock: float
    busy: float
    own: float

    @classmethod
    def now(cls, cpus: Collection[int]) -> Moment:
        times = os.times()
        busy = busy_seconds(CPU_TIMES.read_text(), cpus) if CPU_TIMES.exists() else 0.0
        return cls(time.perf_counter(), busy, times.user + times.system)


def disturbance(before: Moment, after: Moment, cpus: int) -> float:
    """The share of the CPUs that other processes took between two moments. Times are counted in ticks, so what is
    below two ticks is nothing."""
    others = (after.busy - before.busy) - (after.own - before.own)
    wall = max(after.clock - before.clock, 1e-9)
    return max(0.0, others - 2 / TICK) / (wall * max(1, cpus))
