"""Memory that is left: of the machine, and below the limits of control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.runtime.process.room import available_memory

MACHINE = "MemTotal:  24000 kB\nMemFree:  1 kB\nMemAvailable:  8000 kB\nHugePages_Total:\n"


def group(folder: Path, limit: str, used: int, file: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("max", limit), ("current", str(used)), ("stat", f"anon {used - file}\nfile {file}\n")):
        (folder / f"memory.{name}").write_text(text)


@pytest.mark.parametrize(
    ("limit", "used", "file", "left"),
    [("max", 5000, 0, 8000 << 10), ("6000", 5000, 700, 1700), ("6000", 7000, 0, 0), ("90000000", 0, 0, 8000 << 10)],
)
def test_the_least_that_anything_leaves(tmp_path: Path, limit: str, used: int, file: int, left: int) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MACHINE)
    (tmp_path / "proc/self/cgroup").write_text("1:name=systemd:/x\n0::/jobs/one\n")
    group(tmp_path / "sys/fs/cgroup/jobs/one", "max", 10, 0)
    group(tmp_path / "sys/fs/cgroup/jobs", limit, used, file)
    assert available_memory(tmp_path) == left


def test_systems_that_tell_nothing_and_files_that_are_no_numbers(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemAvailable: much\n")
    assert available_memory(tmp_path) is None
