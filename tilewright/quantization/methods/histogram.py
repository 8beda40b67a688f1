"""What is kept of the elements of a tensor while samples stream by: counts, extremes, sums. Memory does not grow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

BINS = 4096
"""Bins of a histogram. The range doubles when it must, so that at least half of them are used: 8 for each step of an
8-bit type."""


@dataclass
class Histogram:
    """Counts of elements in equal bins over `-extent..extent`, and their exact extremes."""

    counts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, np.int64))
    extent: float = 0.0
    low: float = np.inf
    high: float = -np.inf

    def add(self, x: np.ndarray) -> None:
        """Count the elements of an array of finite floats."""
        if not x.size:
            return
        low, high = float(x.min()), float(x.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        self._reach(max(abs(low), abs(high)))
        if self.extent == 0:
            self.counts[BINS // 2] += x.size
            return
        places = (x.reshape(-1) * (BINS / 2 / self.extent) + BINS / 2).astype(np.int32)
        self.counts += np.bincount(np.minimum(places, BINS - 1), minlength=BINS)

    def _reach(self, magnitude: float) -> None:
        if magnitude == 0 or magnitude <= self.extent:
            return
        if self.extent == 0:
            self.extent = magnitude
            return
        while self.extent < magnitude:
            middle = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.zeros(BINS, np.int64)
            self.counts[BINS // 4 : BINS // 4 + BINS // 2] = middle
            self.extent *= 2

    @property
    def centers(self) -> np.ndarray:
        width = 2 * self.extent / BINS
        return (np.arange(BINS) + 0.5) * width - self.extent


@dataclass
class ChannelStatistics:
    """Extremes and means of each channel of a tensor."""

    low: np.ndarray
    high: np.ndarray
    total: np.ndarray
    count: int = 0

    @classmethod
    def of(cls, channels: int) -> ChannelStatistics:
        return cls(np.full(channels, np.inf), np.full(channels, -np.inf), np.zeros(channels))

    def add(self, rows: np.ndarray) -> None:
        """Count the rows of `[elements, channels]`."""
        if not rows.size:
            return
        self.low = np.minimum(self.low, rows.min(axis=0))
        self.high = np.maximum(self.high, rows.max(axis=0))
        self.total = self.total + rows.sum(axis=0, dtype=np.float64)
        self.count += len(rows)

    @property
    def extent(self) -> np.ndarray:
        """The largest magnitude of each channel."""
        return np.maximum(np.abs(self.low), np.abs(self.high)) if self.count else np.zeros_like(self.total)

    @property
    def mean(self) -> np.ndarray:
        return self.total / max(self.count, 1)


def channel_rows(x: np.ndarray, axis: int) -> np.ndarray:
    """`[elements, channels]` of a tensor whose channels lie along `axis`."""
    return np.moveaxis(x, axis, -1).reshape(-1, x.shape[axis])


@dataclass
class Observer:
    """What is seen of the tensor that layers read."""

    axis: int
    histogram: Histogram = field(default_factory=Histogram)
    channels: ChannelStatistics | None = None

    def add(self, x: np.ndarray) -> None:
        self.histogram.add(x)
        rows = channel_rows(x, self.axis)
        if self.channels is None:
            self.channels = ChannelStatistics.of(rows.shape[1])
        self.channels.add(rows)

    def record(self) -> dict[str, Any]:
        """Arrays and numbers that `restored` takes."""
        h, c = self.histogram, self.channels or ChannelStatistics.of(0)
        return {
            "axis": self.axis,
            "histogram": [h.extent, h.low, h.high],
            "counts": h.counts,
            "channels": np.stack([c.low, c.high, c.total]),
            "rows": c.count,
        }

    @classmethod
    def restored(cls, record: dict[str, Any]) -> Observer:
        extent, low, high = (float(x) for x in record["histogram"])
        low_c, high_c, total = np.asarray(record["channels"], np.float64)
        histogram = Histogram(np.asarray(record["counts"], np.int64), extent, low, high)
        channels = ChannelStatistics(low_c, high_c, total, int(record["rows"])) if record["rows"] else None
        return cls(int(record["axis"]), histogram, channels)
