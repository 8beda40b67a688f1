"""How many CPUs a process may use, from made-up control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.errors import OptionError
from tilewright.runtime.threads import MAX_THREADS, available_cpus, check_threads


def cpus(tmp_path: Path, files: dict[str, str], affinity: int = 8) -> int:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return available_cpus(lambda: affinity, tmp_path)


V2 = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "350000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "50000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "1600000 100000\n"}, 8),
        # the quota of an ancestor counts
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                f"{V2}/a/b/cpu.max": "max 100000\n",
                f"{V2}/a/cpu.max": "400000 100000",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "0::/a\n",
                f"{V2}/a/cpu.max": "600000 100000",
                f"{V2}/cpu.max": "500000 100000",
            },
            5,
        ),
        # the group's path is the host's and not visible here
        ({"proc/self/cgroup": "0::/docker/4711\n", f"{V2}/cpu.max": "300000 100000"}, 3),
        # version 1, each spelling of the mount
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n0::/\n",
                f"{V2}/cpu/x/cpu.cfs_quota_us": "200000\n",
                f"{V2}/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/x\n",
                f"{V2}/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                f"{V2}/cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "1:cpu:/\n",
                f"{V2}/cpu/cpu.cfs_quota_us": "-1\n",
                f"{V2}/cpu/cpu.cfs_period_us": "100000",
            },
            8,
        ),
        # a controller that is not ours, and nonsense
        ({"proc/self/cgroup": "4:cpuset:/\nnonsense\n\n", f"{V2}/cpuset/cpu.cfs_quota_us": "1"}, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "much\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "100000 0\n"}, 8),
        ({"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": ""}, 8),
    ],
)
def test_quota(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    assert cpus(tmp_path, files) == expected


def test_affinity_counts(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/\n", f"{V2}/cpu.max": "400000 100000\n"}
    assert cpus(tmp_path, files, affinity=3) == 3


def test_real_machine() -> None:
    assert check_threads(None) == available_cpus() >= 1


def test_explicit_counts() -> None:
    assert check_threads(1) == 1 and check_threads(MAX_THREADS) == MAX_THREADS
    with pytest.raises(
        OptionError, match=f"threads=0 is not allowed\n  hint: give a whole number from 1 to {MAX_THREADS}"
    ):
        check_threads(0)
