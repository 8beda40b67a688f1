"""Times of single kernels, from the cycle counter that profiled code reads between them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilewright.runtime.report.records import CallRecord

LEAST_S = 0.05
"""The counter's rate is found beside the clock: over a span this long its error is far below a thousandth."""

HOW_TO_TIME = "compile the model with profile=True (tilewright compile --profile)"

Step = Callable[[], object]

_RUN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


@dataclass(frozen=True)
class KernelTime:
    """A call of a kernel: its name, the node of the model it came from, the median seconds it took, the frequent sizes
    that it was compiled for ("" in the program for all others), and how often it ran in the last run: the seconds are
    those of all trips of a loop together.

    `least` are the fewest seconds of all runs, `busy` the mean seconds that each thread computed it: () for one that is
    not known, as where a kernel divides its work among the threads by itself. `typical` is its mean in runs of about
    the median length, so that those of all kernels come to such a run: their medians come to less where each run meets
    other disturbances.
    """

    kernel: str
    node: str
    seconds: float
    sizes: str = ""
    count: int = 1
    least: float = 0.0
    busy: tuple[float, ...] = ()
    typical: float = 0.0

    def __repr__(self) -> str:
        often = f", {self.count} times" if self.count != 1 else ""
        sizes = f", for {self.sizes}" if self.sizes else ""
        return f"<{self.kernel} of '{self.node}': {self.seconds * 1e6:.4g} us{often}{sizes}>"


class KernelCounts:
    """The spans of the `calls` kernel calls of a program, in counts, summed up over its runs since `clear`, and how
    long each of the `threads` computed them (`busy`). Its `code` takes a call and an address, at which it stores counts
    (u64): before the first kernel, and after each; behind the number of threads, which it reads, it adds those of each
    thread, call by call. `callback` is `run` for native code."""

    def __init__(self, calls: int, code: Callable[[int, int], int], threads: int = 1) -> None:
        self._code = code
        self.callback = _RUN(self.run)
        self._counts = np.zeros(calls + 2 + calls * threads, np.uint64)
        self._counts[calls + 1] = threads
        self._ticks = self._counts[: calls + 1]
        self._busy = self._counts[calls + 2 :].reshape(calls, threads)
        self._address = self._counts.ctypes.data
        self.begin: tuple[float, int] | None = None
        self.clear()

    def clear(self) -> None:
        self.spans = np.zeros(len(self._ticks) - 1, np.int64)
        self.busy = np.zeros(self._busy.shape, np.int64)
        self.runs = 0

    def run(self, call: int) -> int:
        """Run the program."""
        self._busy[:] = 0
        now = time.perf_counter()
        status = self._code(call, self._address)
        self.begin = now, int(self._ticks[0])
        self.spans += np.diff(self._ticks).astype(np.int64)
        self.busy += self._busy.astype(np.int64)
        self.runs += 1
        return status


@dataclass(frozen=True, slots=True)
class Spans:
    """The seconds of a kernel call in the runs of a model: the median, the least, the mean of each thread, and the mean
    in runs of about the median length."""

    median: float
    least: float
    busy: tuple[float, ...]
    typical: float


def measured_spans(
    run: Step,
    counts: Sequence[KernelCounts],
    runs: int,
    between: Step | None = None,
) -> tuple[Spans, ...]:
    """The times of each kernel call of a model, whose programs `counts` count.

    `run()` runs the model once; it is called at least `runs` times, each behind `between()`, and once before that does
    not count.
    """
    run()
    begins: list[tuple[float, int]] = []
    spans: list[np.ndarray] = []
    busy = [np.zeros(program.busy.shape, np.int64) for program in counts]
    start = time.perf_counter()
    while len(spans) < max(2, runs) or time.perf_counter() - start < LEAST_S:
        for program in counts:
            program.clear()
        if between is not None:
            between()
        run()
        begins.append(max((p.begin for p in counts if p.begin is not None), default=(0.0, 0)))
        spans.append(np.concatenate([np.zeros(0, np.int64), *(program.spans for program in counts)]))
        for total, program in zip(busy, counts, strict=True):
            total += program.busy
    rate = _rate(begins)
    table = np.array(spans) * rate
    rows = [tuple(map(float, row * rate / len(spans))) for total in busy for row in total]
    columns = zip(np.median(table, axis=0), table.min(axis=0), rows, _typical(table), strict=True)
    return tuple(
        Spans(float(median), float(least), row if any(row) else (), float(typical))
        for median, least, row, typical in columns
    )


def _rate(begins: Sequence[tuple[float, int]]) -> float:
    """Seconds of a count, of pairs of a time and the count a moment later: the median of what each pair says with that
    half of them later, as a pair is wrong by as long as the thread was not given its core between the two."""
    half = max(len(begins) // 2, 1)
    pairs = zip(begins, begins[half:], strict=False)
    return float(np.median([(later - time) / max(last - count, 1) for (time, count), (later, last) in pairs]))


def kernel_times(
    calls: Sequence[CallRecord],
    sizes: str,
    run: Step,
    counts: Sequence[KernelCounts],
    runs: int,
    between: Step | None = None,
) -> tuple[KernelTime, ...]:
    """The times of the calls of a program for some frequent sizes (see `measured_spans`), and how often each of them
    ran in the last call of the model."""
    spans = measured_spans(run, counts, runs, between)
    often = [program.runs for program in counts for _ in program.spans]
    rows = zip(calls, spans, often, strict=True)
    return tuple(KernelTime(c.kernel, c.node, s.median, sizes, n, s.least, s.busy, s.typical) for c, s, n in rows)


def _typical(table: np.ndarray) -> np.ndarray:
    """The mean row of the middle half of a table's rows by their sums."""
    order = np.argsort(table.sum(axis=1))
    skipped = len(order) // 4
    return np.asarray(table[order[skipped : len(order) - skipped]].mean(axis=0))
