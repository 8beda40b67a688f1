"""Times of single kernels, from the cycle counter that profiled code reads between them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

LEAST_S = 0.05
"""The counter's rate is found beside the clock: over a span this long its error is far below a thousandth."""

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


@dataclass(frozen=True)
class KernelTime:
    """A call of a kernel: its name, the node of the model it came from, the median seconds it took, the frequent sizes
    that it was compiled for ("" in the program for all others), and how often it ran in the last run: the seconds are
    those of all trips of a loop together."""

    kernel: str
    node: str
    seconds: float
    sizes: str = ""
    count: int = 1

    def __repr__(self) -> str:
        often = f", {self.count} times" if self.count != 1 else ""
        sizes = f", for {self.sizes}" if self.sizes else ""
        return f"<{self.kernel} of '{self.node}': {self.seconds * 1e6:.4g} us{often}{sizes}>"


class KernelCounts:
    """The spans of the `calls` kernel calls of a program, in counts, summed up over its runs since `clear`. Its `code`
    takes a call and an address, at which it stores counts (u64): before the first kernel, and after each. `callback` is
    `run` for native code."""

    def __init__(self, calls: int, code: Callable[[int, int], int]) -> None:
        self._code = code
        self.callback = _RUN(self.run)
        self._counts = (ctypes.c_uint64 * (calls + 1))()
        self._address = ctypes.addressof(self._counts)
        self.begin: tuple[float, int] | None = None
        self.clear()

    def clear(self) -> None:
        self.spans = [0] * (len(self._counts) - 1)
        self.runs = 0

    def run(self, call: int) -> int:
        """Run the program."""
        now = time.perf_counter()
        status = self._code(call, self._address)
        self.begin = now, self._counts[0]
        spans = zip(self.spans, pairwise(self._counts), strict=True)
        self.spans = [total + after - before for total, (before, after) in spans]
        self.runs += 1
        return status


def median_seconds(run: Callable[[], object], counts: Sequence[KernelCounts], runs: int) -> tuple[float, ...]:
    """The median time of each kernel call of a model, whose programs `counts` count.

    `run()` runs the model once; it is called at least `runs` times, and once before that does not count.
    """
    from statistics import median

    run()
    begins: list[tuple[float, int]] = []
    spans: list[list[int]] = []
    start = time.perf_counter()
    while len(spans) < max(2, runs) or time.perf_counter() - start < LEAST_S:
        for program in counts:
            program.clear()
        run()
        begins.append(max((p.begin for p in counts if p.begin is not None), default=(0.0, 0)))
        spans.append([span for program in counts for span in program.spans])
    seconds_per_count = (begins[-1][0] - begins[0][0]) / max(begins[-1][1] - begins[0][1], 1)
    return tuple(median(column) * seconds_per_count for column in zip(*spans, strict=True))
