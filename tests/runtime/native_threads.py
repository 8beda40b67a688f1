"""The threads of this process, as Linux lists them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilewright.runtime import context
from tilewright.runtime.threads import SharedPools

TASKS = Path("/proc/self/task")
PATIENCE_S = 30


def native_threads() -> set[str]:
    """Those there are. Which ones counts, and not how many: others of the process may end meanwhile, such as those that
    a test before this one has begun."""
    return set(os.listdir(TASKS))


def end_soon(threads: set[str]) -> bool:
    """Whether these do: the system lists a thread for a moment after it has been joined."""
    return _becomes_true(lambda: not threads & native_threads())


def fall_asleep(threads: set[str]) -> bool:
    """Whether all of these wait for something soon, and still do as often as they are looked at later."""
    if not _becomes_true(lambda: _all_sleep(threads)):
        return False
    for _ in range(20):
        time.sleep(0.005)
        if not _all_sleep(threads):
            return False
    return True


def own_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models made from now on share no pools with those made before, which tests before this one may have left."""
    monkeypatch.setattr(context, "_POOLS", SharedPools())


def _all_sleep(threads: set[str]) -> bool:
    return {(TASKS / thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads} <= {"S"}


def _becomes_true(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    return holds()
