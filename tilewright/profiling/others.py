"""What share of the machine other programs have while something is measured."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
"""Where Linux counts what its processors do, in ticks, since it began (proc(5))."""

LEAST_SECONDS = 0.2
"""Less time is too few ticks (of 10 ms) to tell."""

TOLD = 0.1
"""Share of the processors from which on others are told of."""


class OtherPrograms:
    """What the processors do from the moment that this is made."""

    def __init__(self) -> None:
        self._begin = _now()

    def note(self) -> str:
        """A line on other programs; "" where they had little, or where the system does not say."""
        share = self.share()
        if share is None or share < TOLD:
            return ""
        return (
            f"other programs had {100 * share:.0f} % of the processors while this was measured: an idle machine is "
            "faster, and gains more by threads"
        )

    def share(self) -> float | None:
        """The time that others had, of the time of all processors; None where the system does not say."""
        begin, end = self._begin, _now()
        if begin is None or end is None or end[0] - begin[0] < LEAST_SECONDS:
            return None
        seconds, busy, own = (b - a for a, b in zip(begin, end, strict=True))
        return min(max((busy - own) / (seconds * (os.cpu_count() or 1)), 0.0), 1.0)


def _now() -> tuple[float, float, float] | None:
    """Seconds: of the clock, in which processors were busy (for another virtual machine, too), and had by this
    process."""
    try:
        busy = busy_seconds(STAT.read_text(), os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError, IndexError):  # no Linux, or one that hides it
        return None
    return time.perf_counter(), busy, time.process_time()


def busy_seconds(stat: str, ticks: int) -> float:
    """All but idle times and waiting for disks, of the first line: user, nice, system, idle, iowait, irq, softirq,
    steal; times of guests are part of user."""
    name, *counts = stat.splitlines()[0].split()
    if name != "cpu":
        raise ValueError(name)
    user, nice, system, _, _, *interrupts = map(int, counts[:8])
    return (user + nice + system + sum(interrupts)) / ticks
