"""How much memory the system has left for this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")


def available_memory(root: Path = _ROOT) -> int | None:
    """Bytes that this process could take before others, or itself, are driven out of memory, as Linux tells of the
    machine and of the control groups (v2) that the process is in; None where nothing tells."""
    found = [*_of_machine(root), *_of_groups(root)]
    return max(min(found), 0) if found else None


def _of_machine(root: Path) -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError, KeyError):
        yield _numbers(root / "proc/meminfo")["MemAvailable:"] << 10


def _of_groups(root: Path) -> Iterator[int]:
    """Of each group that has a limit: what is left below it, where the page cache may be given up."""
    top = root / "sys/fs/cgroup"
    own = Path("/")
    with contextlib.suppress(OSError):
        lines = (root / "proc/self/cgroup").read_text().splitlines()
        own = next((Path(line[3:]) for line in lines if line.startswith("0::/")), own)
    for group in (own, *own.parents):
        folder = top / group.relative_to("/")
        with contextlib.suppress(OSError, ValueError, KeyError):  # ValueError: "max", as there is no limit
            limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
            yield limit - used + _numbers(folder / "memory.stat")["file"]


def _numbers(path: Path) -> dict[str, int]:
    """What a file says in lines of a name and a number."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
