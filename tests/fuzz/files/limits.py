"""What reading a file may take: processor time, memory, and files of the model's folder."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 5.0
BYTES = 1 << 30


class LimitError(BaseException):
    """More was taken than is allowed; no `Exception`, which optional steps of the compiler survive."""


@contextlib.contextmanager
def limited(seconds: float = SECONDS, size: int = BYTES) -> Iterator[None]:
    """LimitError after so many seconds of processor time, MemoryError for so many bytes more than there are now."""

    def end(*_: object) -> None:
        raise LimitError(f"no end after {seconds:g} s of processor time")

    before = signal.signal(signal.SIGPROF, end)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else None
    if pages is not None:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class Opened:
    """Files that are opened within `recorded()`, but for those of Python itself."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self._records = False
        sys.addaudithook(self._hook)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        self.paths, self._records = [], True
        try:
            yield
        finally:
            self._records = False

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self._records and event == "open" and isinstance(args[0], str | bytes):
            path = os.fsdecode(args[0])
            if not path.endswith((".py", ".pyc", ".pth")):
                self.paths.append(path)

    def outside(self, folder: Path) -> list[str]:
        """Those that lie elsewhere."""
        root = os.path.realpath(folder)
        return [p for p in self.paths if os.path.commonpath([root, os.path.realpath(p)]) != root]
