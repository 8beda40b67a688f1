"""What `enable_profiling` writes: the times of runs and of their kernels, as events of Chrome's traces."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.onnxruntime.errors import Fail
from tilewright.runtime import Model
from tilewright.runtime.profile import KernelTime

_RUNS = 3
"""Runs of which the median is taken; there are more where they are short."""


class Profile:
    """The events of a session, in microseconds since it was made. Kernels are timed by runs of their own, which take
    some 50 ms, when a model first has inputs of their shapes: their events stand one after the other in each run."""

    def __init__(self, prefix: str, start: float) -> None:
        now = datetime.now()
        self._path = Path(f"{prefix}_{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03}.json")
        self._start = start
        self._events: list[dict[str, Any]] = []
        self._kernels: dict[Any, tuple[KernelTime, ...]] = {}
        self._lock = threading.Lock()
        self.is_open = True

    def add(self, name: str, start: float, seconds: float) -> None:
        """Note what the session did, beginning at a reading of `time.perf_counter`."""
        with self._lock:
            self._events.append(self._event("Session", name, start, seconds, {}))

    def add_run(self, model: Model, feed: Mapping[str, Any], start: float, seconds: float) -> None:
        """Note a run of a model on inputs by name, and its kernels."""
        key = id(model), tuple((name, np.shape(value)) for name, value in feed.items())
        with self._lock:
            kernels = self._kernels.get(key)
        if kernels is None:
            kernels = model.profile(feed, _RUNS)
        with self._lock:
            self._kernels[key] = kernels
            at = start
            for index, kernel in enumerate(kernels):
                args = {
                    "op_name": kernel.kernel, "node": kernel.node, "node_index": str(index),
                    "provider": "CPUExecutionProvider", "count": str(kernel.count),
                }  # fmt: skip
                name = f"{kernel.node or kernel.kernel}_kernel_time"
                self._events.append(self._event("Node", name, at, kernel.seconds, args))
                at += kernel.seconds
            self._events.append(self._event("Session", "model_run", start, max(seconds, at - start), {}))

    def end(self) -> str:
        """Write the file, and give its name; "" when it was written before. Fail where that is not possible."""
        with self._lock:
            if not self.is_open:
                return ""
            self.is_open = False
        try:
            lines = ",\n".join(map(json.dumps, self._events))
            self._path.write_text(f"[\n{lines}\n]\n")
        except OSError as error:
            raise Fail.of(
                f"the profile cannot be written to {self._path}: {error.strerror or error}\n"
                "  hint: SessionOptions.profile_file_prefix says where it goes"
            ) from error
        return str(self._path)

    def _event(self, cat: str, name: str, start: float, seconds: float, args: dict[str, str]) -> dict[str, Any]:
        return {
            "cat": cat, "pid": os.getpid(), "tid": threading.get_native_id(), "dur": round(seconds * 1e6, 3),
            "ts": round((start - self._start) * 1e6, 3), "ph": "X", "name": name, "args": args,
        }  # fmt: skip
