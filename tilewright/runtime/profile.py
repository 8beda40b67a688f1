"""Times of single kernels, from the cycle counter that profiled code reads between them."""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

LEAST_S = 0.05
"""The counter's rate is found beside the clock: over a span this long its error is far below a thousandth."""


@dataclass(frozen=True)
class KernelTime:
    """A call of a kernel: its name, the node of the model it came from, the median seconds it took, and the frequent
    sizes that it was compiled for ("" in the program for all others)."""

    kernel: str
    node: str
    seconds: float
    sizes: str = ""


def median_seconds(run: Callable[[int], object], calls: int, runs: int) -> tuple[float, ...]:
    """The median time of each of the `calls` kernel calls of a model.

    `run(address)` runs the model once and stores `calls` + 1 counts (u64) at the address: before the first kernel and
    after each. It is called at least `runs` times, and once before that does not count.
    """
    counts = (ctypes.c_uint64 * (calls + 1))()
    address = ctypes.addressof(counts)
    run(address)
    begins: list[tuple[float, int]] = []
    spans: list[list[int]] = []
    first = time.perf_counter()
    while len(spans) < max(2, runs) or begins[-1][0] - first < LEAST_S:
        now = time.perf_counter()
        run(address)
        begins.append((now, counts[0]))
        spans.append([after - before for before, after in pairwise(counts)])
    seconds_per_count = (begins[-1][0] - begins[0][0]) / (begins[-1][1] - begins[0][1])
    return tuple(statistics.median(column) * seconds_per_count for column in zip(*spans, strict=True))
