"""Writing files whole or not at all, and whether a place can be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.storage.files import check_file, check_folder, replacing, write_slices


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with replacing(path) as file:
        write_slices(file, memoryview(bytes(range(10)))[2:])
        assert not path.exists()
    assert path.read_bytes() == bytes(range(2, 10))
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), ValueError("other")])
def test_what_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises((ArtifactError, KeyboardInterrupt, ValueError)), replacing(tmp_path / "x") as file:
        file.write(b"half")
        raise error
    assert os.listdir(tmp_path) == []


def test_places_that_can_be_written_are_left_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    check_file(tmp_path / "new")
    check_file(tmp_path / "old")
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == ["old"] and (tmp_path / "old").read_text() == "old"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path / "absent" / "x", "No such file"),
        (tmp_path / "file" / "x", "Not a directory"),
        (tmp_path, "not a regular file"),
        (Path("/dev/null"), "not a regular file"),
        (tmp_path / "\0", "null"),
    ):
        with pytest.raises(ArtifactError, match=f"cannot write .*{reason}"):
            check_file(path)
    for path in (tmp_path / "file", tmp_path / "file" / "x"):
        with pytest.raises(ArtifactError, match=r"cannot write .*file(/x)?: .*\n  hint: .*writable folder"):
            check_folder(path)


def test_a_folder_of_the_system_cannot_be_written() -> None:
    if not Path("/proc/self").is_dir():
        pytest.skip("needs Linux's /proc")
    for check in (check_file, check_folder):
        with pytest.raises(ArtifactError, match="cannot write /proc/self/x"):
            check(Path("/proc/self/x"))
