"""The sizes that calls of a model had, counted in bounded memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.artifact import TensorInfo
from tilewright.runtime.errors import OptionError
from tilewright.runtime.process.forks import free_in_children
from tilewright.runtime.values.inputs import Shape

MOST = 64
"""Combinations that are counted."""
MAX_FREQUENT = 16
"""Combinations that can have variants: each takes the time and the code of another model."""


@dataclass(frozen=True)
class SizesSeen:
    """Sizes of the symbolic dims of a model's inputs, and how many calls had them."""

    sizes: Mapping[str, int]
    calls: int


class SizeCounter:
    """Counts the shapes of calls; calls may come from several threads.

    Of more than `MOST` different ones the least frequent makes place for a new one, which takes over its count
    (Metwally, Agrawal and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams", 2005):
    a combination that more than one in `MOST` calls had is there, and counts are too large rather than too small.
    """

    def __init__(self, inputs: Sequence[TensorInfo]) -> None:
        self._inputs = inputs
        self._calls: dict[tuple[Shape, ...], int] = {}
        self._lock = free_in_children(threading.Lock())

    def add(self, shapes: tuple[Shape, ...]) -> None:
        """Count a call."""
        with self._lock:
            calls = self._calls
            known = calls.get(shapes)
            if known is None:
                known = calls.pop(min(calls, key=calls.__getitem__)) if len(calls) == MOST else 0
            calls[shapes] = known + 1

    def seen(self) -> list[SizesSeen]:
        """The most frequent first."""
        with self._lock:
            ordered = sorted(self._calls.items(), key=lambda item: -item[1])
        return [SizesSeen(self._sizes(shapes), calls) for shapes, calls in ordered]

    def _sizes(self, shapes: tuple[Shape, ...]) -> dict[str, int]:
        dims = zip(self._inputs, shapes, strict=True)
        pairs = (pair for info, shape in dims for pair in zip(info.shape, shape, strict=True))
        return {dim: size for dim, size in pairs if isinstance(dim, str)}


class CountsSizes:
    """What models tell of the sizes of their calls."""

    inputs: tuple[TensorInfo, ...]
    _contexts: deque[Any]
    _counter: SizeCounter | None = None

    def count_sizes(self) -> None:
        """Begin to count the sizes that calls have, from 0; this takes less than half a microsecond of each call."""
        self._counter = SizeCounter(self.inputs)
        self._contexts = deque()  # those that there are do not count

    def sizes_seen(self, top: int | None = None) -> list[SizesSeen]:
        """The sizes of symbolic dims in calls since `count_sizes`, the most frequent first, at most `top` of them. Up
        to 64 different ones are counted; if there are more, rare ones are left out. `tilewright.compile(...,
        frequent=model.sizes_seen(3))` makes a model that is faster for these. OptionError where nothing is counted."""
        if self._counter is None:
            raise OptionError("the sizes of calls are not counted", hint="call count_sizes() first")
        if top is not None and (isinstance(top, bool) or not isinstance(top, int) or top < 1):
            raise OptionError(f"top={top!r:.80} is not allowed", hint="give a whole number from 1 on, or None for all")
        return self._counter.seen()[:top]
