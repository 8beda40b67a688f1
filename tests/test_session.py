"""The key of the cache of compiled models: what makes it another one."""

from __future__ import annotations

import os
from pathlib import Path

from tilewright.session import compiler_stamp


def test_an_edited_compiler_does_not_find_what_it_compiled_before(tmp_path: Path) -> None:
    room = tmp_path / "graph"
    room.mkdir()
    source = room / "fuse.py"
    source.write_text("LIMIT = 1\n")
    os.utime(source, ns=(1, 1))
    first = compiler_stamp(tmp_path)
    compiler_stamp.cache_clear()
    assert compiler_stamp(tmp_path) == first
    source.write_text("LIMIT = 2\n")
    os.utime(source, ns=(2, 2))
    compiler_stamp.cache_clear()
    assert compiler_stamp(tmp_path) != first
    compiler_stamp.cache_clear()
