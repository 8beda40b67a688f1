"""The cache runs what this user compiled and nothing else: entries of others, links, and entries under other names."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.runtime.storage import private
from tilewright.runtime.storage.private import NotPrivateError, check_private_folder, open_private
from tilewright.session import Notes, Session

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes of files are POSIX's")

needs_root = pytest.mark.skipif(
    os.name != "posix" or os.geteuid() != 0, reason="only root can give a file to another user"
)
NOBODY = 65534
X = np.ones(4, np.float32)


def times(factor: float) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    k = numpy_helper.from_array(np.array(factor, np.float32), "k")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "k"], ["y"])], "times", [x], [y], [k])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


@pytest.fixture(autouse=True)
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "_TOLD", set())


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "cache")


def result(session: Session, factor: float) -> tuple[np.ndarray, list[str]]:
    """What the model gives, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (y,) = tilewright.compile(times(factor), session=session)(X)
    return y, [str(w.message) for w in caught if w.category is tilewright.TilewrightWarning]


def entry(session: Session, factor: float) -> Path:
    """The file that a compilation adds."""
    before = set(session.folder.glob("*.tw"))
    tilewright.compile(times(factor), session=session)
    (added,) = set(session.folder.glob("*.tw")) - before
    return added


def check(session: Session, why: str) -> None:
    """A false entry of the model is not used, and told of once; it is replaced by the right one."""
    y, told = result(session, 2.0)
    np.testing.assert_array_equal(y, 2 * X)
    assert len(told) == 1 and why in told[0] and "hint" in told[0], told
    y, told = result(session, 2.0)
    np.testing.assert_array_equal(y, 2 * X)
    assert not told


def test_what_is_written_is_for_this_user_alone(session: Session) -> None:
    before = os.umask(0)
    try:
        path = entry(session, 2.0)
        session.note("about", b"fact")
    finally:
        os.umask(before)
    assert stat.S_IMODE(session.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (note,) = (n for n in (session.folder / "notes").iterdir() if n.read_bytes().endswith(b"fact"))
    assert stat.S_IMODE(note.stat().st_mode) == 0o600 and stat.S_IMODE(note.parent.stat().st_mode) == 0o700


@needs_root
def test_an_entry_of_another_user_is_not_run(session: Session) -> None:
    two, five = entry(session, 2.0), entry(session, 5.0)
    shutil.copy(five, two)
    os.chown(two, NOBODY, NOBODY)
    check(session, f"it belongs to the user {NOBODY}")


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_an_entry_that_others_may_write_to_is_not_run(session: Session, mode: int) -> None:
    two, five = entry(session, 2.0), entry(session, 5.0)
    shutil.copy(five, two)
    two.chmod(mode)
    check(session, f"its mode is {mode:o}")


def test_a_link_is_neither_run_nor_followed(session: Session, tmp_path: Path) -> None:
    two, five = entry(session, 2.0), entry(session, 5.0)
    target = tmp_path / "important"
    shutil.copy(five, target)
    content = target.read_bytes()
    two.unlink()
    two.symlink_to(target)
    check(session, "it is a link")
    assert target.read_bytes() == content and not two.is_symlink()


def test_a_second_name_of_a_file_from_elsewhere_is_not_run(session: Session, tmp_path: Path) -> None:
    two, five = entry(session, 2.0), entry(session, 5.0)
    shutil.copy(five, tmp_path / "download")
    two.unlink()
    os.link(tmp_path / "download", two)
    check(session, "a hard link")


def test_a_pipe_is_not_waited_for(session: Session) -> None:
    two = entry(session, 2.0)
    two.unlink()
    os.mkfifo(two, 0o600)
    check(session, "not a regular file")


def test_an_entry_under_another_name_is_not_run(session: Session) -> None:
    two, five = entry(session, 2.0), entry(session, 5.0)
    shutil.copy(five, two)
    y, _ = result(session, 2.0)
    np.testing.assert_array_equal(y, 2 * X)
    assert two.read_bytes() != five.read_bytes()


def test_no_key_leaves_the_cache(session: Session) -> None:
    entry(session, 2.0)
    kept, made = (tilewright.compile(times(2.0), session=session, cache=cache).artifact for cache in (True, False))
    assert kept.attached == made.attached


@needs_root
def test_a_folder_of_another_user_is_not_used(session: Session) -> None:
    two, five = entry(session, 2.0), entry(session, 5.0)
    shutil.copy(five, two)
    before = set(session.folder.iterdir())
    os.chown(session.folder, NOBODY, NOBODY)
    check(session, f"{session.folder}: it belongs to the user {NOBODY}")
    assert set(session.folder.iterdir()) == before


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_of_a_folder_where_others_may_write_only_own_files_are_used(session: Session, mode: int) -> None:
    two = entry(session, 2.0)
    session.folder.chmod(mode)
    check(session, f"chmod go-w {session.folder}")
    assert stat.S_IMODE(session.folder.stat().st_mode) == mode  # it may be shared for another purpose
    five = entry(session, 5.0)
    two.unlink()
    two.symlink_to(five)
    y, told = result(session, 2.0)
    np.testing.assert_array_equal(y, 2 * X)
    assert len(told) == 1 and "it is a link" in told[0]


def test_the_folder_that_we_made_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier version made it as the umask says."""
    monkeypatch.delenv("TILEWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = Session()
    session.folder.mkdir()
    session.folder.chmod(0o775)
    assert not result(session, 2.0)[1]
    assert stat.S_IMODE(session.folder.stat().st_mode) == 0o700


def test_a_link_of_the_users_own_may_lead_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "cache").symlink_to(tmp_path / "disk")
    assert not result(Session(tmp_path / "cache"), 2.0)[1]
    assert list((tmp_path / "disk").glob("*.tw"))


def test_a_note_of_somebody_else_or_about_something_else_says_nothing(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "notes")
    notes.write("one", b"1")
    notes.write("other", b"2")
    assert (notes.read("one"), notes.read("other"), notes.read("third")) == (b"1", b"2", None)
    (one,) = (path for path in notes.files() if path.read_bytes().endswith(b"1"))
    (other,) = set(notes.files()) - {one}
    shutil.copy(other, one)
    assert notes.read("one") is None
    other.chmod(0o622)
    assert notes.read("other") is None
    other.unlink()
    other.symlink_to(one)
    assert notes.read("other") is None


def test_files_of_others_in_the_folder_are_neither_counted_nor_removed(session: Session) -> None:
    """Somebody may keep models in the folder that TILEWRIGHT_CACHE names."""
    path = entry(session, 2.0)
    mine = session.folder / "server.tw"
    shutil.copy(path, mine)
    session.note("about", b"fact")
    (session.folder / "notes" / "diary.txt").write_text("mine")
    Session(session.folder, limit=0).keep("0" * 40, tilewright.compile(times(3.0), cache=False).artifact)
    assert mine.exists() and not path.exists()
    session.clear()
    assert mine.exists() and (session.folder / "notes" / "diary.txt").exists() and not session.entries()


def nothing(folder: Path) -> None:
    folder.write_text("")


def read_only(folder: Path) -> None:
    folder.mkdir(mode=0o500)


@pytest.mark.parametrize("spoil", [nothing, read_only])
def test_a_cache_that_cannot_be_written_says_so_once(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    if spoil is read_only and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    spoil(tmp_path / "cache")
    session = Session(tmp_path / "cache")
    y, told = result(session, 2.0)
    np.testing.assert_array_equal(y, 2 * X)
    assert len(told) == 1 and "cannot be used" in told[0] and "TILEWRIGHT_CACHE" in told[0]
    assert not result(session, 3.0)[1]


def test_a_full_disk_is_told_of(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> Iterator[None]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilewright.session.replacing_private", full)
    assert "No space left on device" in result(session, 2.0)[1][0]
    assert not list(session.folder.glob("*.tw"))


def test_the_command_line_says_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    onnx.save(times(2.0), tmp_path / "model.onnx")
    command = [sys.executable, "-m", "tilewright", "run", str(tmp_path / "model.onnx"), "--input", "random"]
    environment = {**os.environ, "TILEWRIGHT_CACHE": str(tmp_path / "file" / "cache")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.count("warning: the cache of compiled models cannot be used") == 1
    assert "Warning:" not in done.stderr and ".py:" not in done.stderr and "--no-cache" in done.stderr


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NotPrivateError, match="not a regular file"):
        open_private(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_private(tmp_path / "missing")
    with pytest.raises(FileNotFoundError):
        check_private_folder(tmp_path / "missing")
