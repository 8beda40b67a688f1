"""How many threads a model uses, and the handle of its native thread pool."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from tilewright.runtime.errors import OptionError
from tilewright.runtime.process.forks import free_in_children

if TYPE_CHECKING:
    from tilewright.runtime.artifact import StaticPlan
    from tilewright.runtime.executor import Executor

MAX_THREADS = 1024

# Waking a sleeper was measured at 0.05 to 0.6 ms on virtual machines. A worker that spins for about as long
# as a wake costs is at most twice as bad as one that knows the future; somewhat more bridges the host's own
# work between two calls (fetching, decoding). After that the core is free: an idle model burns nothing.
SPIN_NS = 1_000_000


def check_threads(threads: int | None, option: str = "threads") -> int:
    """The thread count to use: `threads`, or what the process may use for None; OptionError out of range."""
    if threads is None:
        return min(available_cpus(), MAX_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise OptionError(
            f"{option}={threads!r} is not allowed",
            hint=f"give a whole number from 1 to {MAX_THREADS}, or None for all CPUs the process may use",
        )
    return threads


def threads_within(plan: StaticPlan | None, threads: int | None) -> int:
    """The thread count of a model, within the most that its plan allows; OptionError where more are asked for."""
    found, most = check_threads(threads), 0 if plan is None else plan.most_threads
    if most and threads is not None and threads > most:
        raise OptionError(
            f"threads={threads}: with more than {most} a call takes more memory than the model was compiled for",
            hint=f"give at most {most} threads, or compile with another max_memory= for threads={threads}",
        )
    return min(found, most) if most else found


def available_cpus(affinity: Callable[[], int] | None = None, root: Path = Path("/")) -> int:
    """CPUs this process may use at once: the smaller of affinity mask and cgroup CPU quota, at least 1.

    A quota of 1.5 CPUs counts as 1: threads that wait for each other lose more by being throttled than they
    gain by half a CPU. `affinity` and `root` (the file system that holds proc and sys) are for tests.
    """
    cpus = (affinity or _affinity)()
    quota = _cgroup_quota(root)
    return max(1, cpus if quota is None else min(cpus, int(quota)))


def _affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cgroup_quota(root: Path) -> float | None:
    """The least quota, in CPUs, of the process's control groups and all above them; None without one."""
    quotas: list[float] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            quotas += _quotas(root / "sys/fs/cgroup", group, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in {controllers, "cpu", "cpu,cpuacct"}:
                quotas += _quotas(root / "sys/fs/cgroup" / mount, group, _quota_v1)
    return min(quotas, default=None)


def _quotas(mount: Path, group: str, read: Callable[[Path], float | None]) -> list[float]:
    """Quotas of a group and its ancestors.

    Inside of a container the group's path may be the host's, which is not visible; the mount's own root, the
    last of the ancestors, is then the container's group.
    """
    path = PurePosixPath("/" + group.strip("/"))
    folders = [mount / str(folder).lstrip("/") for folder in (path, *path.parents)]
    return [quota for folder in folders if (quota := read(folder)) is not None]


def _quota_v2(folder: Path) -> float | None:
    return _ratio(*_read(folder / "cpu.max").split()[:2])


def _quota_v1(folder: Path) -> float | None:
    return _ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _ratio(quota: str = "", period: str = "") -> float | None:
    try:
        cpus = int(quota) / int(period)
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None
    return cpus if cpus > 0 else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


class ThreadPool:
    """A native pool, made at first use, and made anew in a forked child, where its threads are gone."""

    def __init__(self, code: Executor, threads: int, spin_ns: int = SPIN_NS) -> None:
        self._code = code
        self._threads = threads
        self._spin_ns = spin_ns
        self._pid = 0
        self._address: int | None = None
        self._lock = free_in_children(threading.Lock())
        self.users: weakref.WeakSet[object] = weakref.WeakSet()

    def address(self) -> int | None:
        """The pool to pass to native code, or None for one thread."""
        pid = os.getpid()
        if pid == self._pid:
            return self._address
        with self._lock:
            if pid != self._pid:
                address = self._code.create_pool(self._threads, self._spin_ns) if self._threads > 1 else None
                self._address = address
                self._pid = pid
                if address is not None:
                    self._destroy_with_owner(address, pid)
        return self._address

    def _destroy_with_owner(self, address: int, pid: int) -> None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._code))
        finalizer = weakref.finalize(self, _destroy, self._code, address, pid)
        # At exit the workers simply end with the process; joining them could wait for a daemon thread's call. Until
        # then they are in their code, which is why nothing that Python clears when it ends may be the last to hold it.
        finalizer.atexit = False


def _destroy(code: Executor, address: int, pid: int) -> None:
    # In a forked child there are no workers to join; the few bytes of the parent's pool are left alone.
    try:
        if os.getpid() == pid:
            code.destroy_pool(address)
    finally:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(code))


class SharedPools:
    """The pools of this process: models that want as many threads share them, so that there are no more threads than
    CPUs, however many models are called at once.

    Of each number of threads there are as many pools as the CPUs have room for, at least one. A model stays with one of
    them, at first that with the fewest models. A call that finds its pool busy with another one runs all of its work
    itself. Whichever model's code made a pool, those of others can use it: its layout belongs to the format of
    artefacts.
    """

    def __init__(self, cpus: Callable[[], int] = lambda: available_cpus()) -> None:
        self._cpus = cpus
        self._pools: dict[int, list[weakref.ref[ThreadPool]]] = {}
        self._lock = free_in_children(threading.Lock())

    def pool(self, code: Executor, threads: int, user: object) -> ThreadPool:
        """A pool of so many threads for `user`, as long as that lives."""
        with self._lock:
            there = [pool for ref in self._pools.get(threads, ()) if (pool := ref()) is not None]
            most = max(1, self._cpus() // threads)
            if len(there) < most and all(pool.users for pool in there):
                there.append(ThreadPool(code, threads))
            found = min(there, key=lambda pool: len(pool.users))
            found.users.add(user)
            self._pools[threads] = [weakref.ref(pool) for pool in there]
            return found
