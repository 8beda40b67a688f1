"""Events that the hardware counts, by the system call behind `perf` on Linux."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_NUMBERS = {"x86_64": 298, "aarch64": 241, "riscv64": 241}
"""Of `perf_event_open`, by architecture."""

_HARDWARE = {"cycles": 0, "instructions": 1, "cache references": 2, "cache misses": 3, "branch misses": 5}
_ATTRIBUTES = struct.Struct("<IIQQQQQIIQQQQIiQIHH")
"""`struct perf_event_attr` as Linux 4.8 has it (PERF_ATTR_SIZE_VER5, 112 bytes); later ones take it, too."""

_DISABLED, _USER_ONLY = 1, (1 << 5) | (1 << 6)  # no events of the kernel and the hypervisor
_ENABLE, _DISABLE = 0x2400, 0x2401
_PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
_ALLOWED = 2
"""Largest `perf_event_paranoid` by which a process may count its own events."""

_TASKS = Path("/proc/self/task")


def count_events(run: Callable[[], object], runs: int) -> tuple[dict[str, float], str]:
    """Events by name for one of so many runs, of all threads of this process together; and why some are not there ("":
    all are)."""
    if not sys.platform.startswith("linux") or platform.machine() not in _NUMBERS:
        return {}, f"hardware counters are read on Linux alone, not on {platform.system()} {platform.machine()}"
    run()  # starts the threads
    found: dict[str, float] = {}
    failed: dict[str, int] = {}
    for name, event in _HARDWARE.items():
        try:
            with _counting(event) as files:
                for file in files:
                    _control(file, _ENABLE)
                for _ in range(runs):
                    run()
                for file in files:
                    _control(file, _DISABLE)
                found[name] = sum(int.from_bytes(os.read(file, 8), sys.byteorder) for file in files) / runs
        except OSError as error:
            failed[name] = error.errno or 0
    return found, _why(failed) if failed else ""


@contextmanager
def _counting(event: int) -> Iterator[list[int]]:
    """Open a counter for each thread of this process."""
    size = _ATTRIBUTES.size
    attributes = _ATTRIBUTES.pack(0, size, event, 0, 0, 0, _DISABLED | _USER_ONLY, *[0] * 12)
    call = ctypes.CDLL(None, use_errno=True).syscall
    with ExitStack() as opened:
        files = []
        for task in sorted(_TASKS.iterdir()):
            file = call(_NUMBERS[platform.machine()], attributes, int(task.name), -1, -1, 0)
            if file < 0:
                raise OSError(ctypes.get_errno(), "perf_event_open")
            opened.callback(os.close, file)
            files.append(file)
        yield files


def _control(file: int, request: int) -> None:
    if ctypes.CDLL(None, use_errno=True).ioctl(file, request, 0) < 0:
        raise OSError(ctypes.get_errno(), "ioctl")


def _why(failed: dict[str, int]) -> str:
    """Which events are not there, and what would change that."""
    number = next(iter(failed.values()))
    reason = os.strerror(number)
    if number in (errno.EPERM, errno.EACCES):
        try:
            level = int(_PARANOID.read_text())
        except (OSError, ValueError):
            level = None
        if level is not None and level <= _ALLOWED:  # a filter of system calls, then
            reason = "a container or sandbox forbids perf_event_open (docker run --cap-add PERFMON allows it)"
        else:
            known = "not known" if level is None else level
            reason = f"kernel.perf_event_paranoid is {known} ({_ALLOWED} or less allows it, or CAP_PERFMON)"
    elif number == errno.ENOSYS:
        reason = "this kernel or sandbox has no perf_event_open"
    elif number in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        reason = "this machine has no such counters, or its hypervisor hides them"
    return f"no counts of {', '.join(failed)}: {reason}"
