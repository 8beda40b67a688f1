"""`tilewright cache`, and what a `Session` lists and clears."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests import models
from tilewright.cli.amounts import ago, bytes_text
from tilewright.cli.app import commands
from tilewright.runtime.arena import aligned_bytes
from tilewright.runtime.storage import container
from tilewright.session import Session


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    return Session()


def filled(session: Session, folder: Path) -> None:
    """Two models: one of a file, one from memory."""
    tilewright.compile(models.written(models.mlp(), folder, "mlp"), session=session)
    tilewright.compile(models.gather(), session=session)


def cache(*arguments: str) -> str:
    result = CliRunner().invoke(commands, ["cache", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_entries_say_what_they_are(session: Session, tmp_path: Path) -> None:
    assert session.entries() == []
    filled(session, tmp_path)
    (first, second) = session.entries()
    assert (first.model, second.model) == ("", "mlp.onnx")
    assert first.size == first.path.stat().st_size and first.used >= second.used
    assert first.target == tilewright.compile(models.gather(), session=session).artifact.target.cpu


def test_listing_reads_no_weights(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache may hold gigabytes; what is looked at is copied, and the weights are left in their files."""
    big = np.arange(250 * 250, dtype=np.float32).reshape(250, 250)
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [250, 250]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], [numpy_helper.from_array(big, "w")])
    tilewright.compile(helper.make_model(graph, ir_version=9), session=session)
    copied: list[int] = []

    def memory(source: object, size: int) -> memoryview:
        copied.append(size)
        return aligned_bytes(size).data

    monkeypatch.setattr(container, "_memory", memory)
    assert len(session.entries()) == 1 and copied and max(copied) < big.nbytes


def test_the_command_lists_and_clears(session: Session, tmp_path: Path) -> None:
    assert f"{session.folder}: 0 models, 0 B of at most 4 GiB" in cache()
    filled(session, tmp_path)
    said = cache()
    assert "mlp.onnx" in said and "(from memory)" in said and "just now" in said and ": 2 models" in said
    size = sum(entry.size for entry in session.entries())
    assert f"{session.folder}: 2 models removed, {bytes_text(size)} freed" in cache("clear")
    assert session.entries() == [] and ": 0 models removed, 0 B freed" in cache("clear")


def test_only_what_was_not_used_for_long_is_cleared(session: Session, tmp_path: Path) -> None:
    filled(session, tmp_path)
    old = session.entries()[1].path
    os.utime(old, (time.time() - 10 * 86400, old.stat().st_mtime))
    assert "10 days ago" in cache() and "10 days ago" in cache(), "a look is no use"
    assert "0 models removed" in cache("clear", "--unused", "11")
    assert "1 model removed" in cache("clear", "--unused", "9.5")
    assert [entry.model for entry in session.entries()] == [""]


def test_a_cleared_model_goes_on_running(session: Session, tmp_path: Path) -> None:
    filled(session, tmp_path)
    model = tilewright.compile(tmp_path / "mlp.onnx", session=session)
    assert session.clear().files == 2
    x = np.ones((2, models.FEATURES), np.float32)
    np.testing.assert_allclose(model(x)[0], models.mlp_expected(x), rtol=1e-5)


def test_clearing_beside_others_that_fill_and_clear(session: Session, tmp_path: Path) -> None:
    path = models.written(models.mlp(), tmp_path, "mlp")
    failed: list[BaseException] = []
    artifact = tilewright.compile(path, session=session).artifact

    def work() -> None:
        try:
            for number in range(30):
                session.keep(f"{threading.get_ident():020}{number:020}", artifact)
                session.entries()
                session.clear()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    session.clear()
    assert list(session.folder.glob("*.tw")) == []


def test_what_a_killed_process_left_goes_when_it_is_old(session: Session, tmp_path: Path) -> None:
    filled(session, tmp_path)
    left, young = session.folder / ".x.tw.0123.tmp", session.folder / ".y.tw.0123.tmp"
    for path in (left, young):
        path.write_text("half")
    os.utime(left, (1, 1))
    session.keep("other", tilewright.compile(models.gather(), session=session).artifact)
    assert not left.exists() and young.exists()


def test_a_damaged_entry_is_not_listed_and_is_cleared(session: Session, tmp_path: Path) -> None:
    filled(session, tmp_path)
    session.entries()[0].path.write_bytes(b"")
    assert len(session.entries()) == 1 and session.clear().files == 2


def test_a_cache_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "file"))
    assert "0 models" in cache() and "0 models removed" in cache("clear")


def test_a_report_names_the_file_that_a_model_comes_from(tmp_path: Path) -> None:
    path = models.written(models.mlp(), tmp_path, "mlp")
    assert tilewright.compile(path, cache=False).report().model == "mlp.onnx"
    assert tilewright.compile(path.read_bytes(), cache=False).report().model == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (-5, "just now"),
        (90, "1 minute ago"),
        (180, "3 minutes ago"),
        (3 * 86400, "3 days ago"),
    ],
)
def test_times_that_have_passed(seconds: float, text: str) -> None:
    assert ago(seconds) == text
