"""The cache of compiled models: what makes its key another one, and what a model that it has needs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
import tilewright.session as session_module
from tests import models
from tilewright.frontends import files
from tilewright.frontends import onnx as onnx_front_end
from tilewright.options import Options, Request
from tilewright.plugins import file_states_since
from tilewright.runtime import Artifact, Model
from tilewright.session import Notes, Session, compiler_stamp


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


def test_what_code_of_before_a_change_has_compiled_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where files have changed before models were first looked for, nor where they have since."""
    compiler_stamp.cache_clear()
    path, session = tmp_path / "model.onnx", Session(tmp_path / "cache")
    small(path, 1)
    request, kept = Request.of(path, None, None), tmp_path / "cache"
    assert session.key(request, Options()) is not None
    with monkeypatch.context() as patched:
        patched.setattr("tilewright.session._IMPORTED", 1)
        for _ in range(2):
            report = tilewright.compile(path, session=session).report()
            assert any("have changed since" in remark.message for remark in report.remarks)
            assert not [*kept.glob("*.tw")]
            compiler_stamp.cache_clear()
        assert session.key(request, Options()) is None
    compiler_stamp.cache_clear()
    tilewright.compile(path, session=session)
    assert len([*kept.glob("*.tw")]) == 1


def test_files_from_the_future_say_nothing_of_changes(tmp_path: Path) -> None:
    """Clocks of machines without a battery begin anew."""
    source, begin = tmp_path / "fuse.py", time.time_ns() - 10**9
    source.write_text("")
    assert file_states_since(tmp_path, begin)[1] and not file_states_since(tmp_path, begin + 10**12)[1]
    os.utime(source, ns=(1, time.time_ns() + 10**12))
    assert not file_states_since(tmp_path, begin)[1]


def test_a_model_that_the_cache_has_needs_no_compiler(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    path, cache = tmp_path / "relu.onnx", tmp_path / "cache"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    tilewright.compile(path, session=Session(cache))
    program = f"""
import sys, pathlib, tilewright
from tilewright.session import Session
model = tilewright.compile({str(path)!r}, session=Session(pathlib.Path({str(cache)!r})))
assert model.report().kernels == 1
assert not {{"onnx", "tilewright.compiler"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def small(path: Path, value: float) -> None:
    """A model that adds `value`, all versions of the same size."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    constant = onnx.numpy_helper.from_array(np.full(3, value, np.float32), "c")
    graph = helper.make_graph([helper.make_node("Add", ["x", "c"], ["y"])], "g", [x], [y], [constant])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written while a test runs was written long ago."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 60 * 10**9)


class Counted:
    """A function that counts its calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self._function = getattr(owner, name)
        self.calls: list[dict[str, object]] = []
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args: object, **named: object) -> object:
        self.calls.append(named)
        return self._function(*args, **named)


def test_a_file_that_did_not_change_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    path, session = tmp_path / "model.onnx", Session(tmp_path / "cache")
    small(path, 1.0)
    hashed = Counted(monkeypatch, onnx_front_end, "digest_of_file")
    keys = {session.key(Request.of(path, None, None), Options()) for _ in range(3)}
    assert len(keys) == 1 and len(hashed.calls) == 1
    small(path, 2.0)
    assert session.key(Request.of(path, None, None), Options()) not in keys
    assert len(hashed.calls) == 2


def test_a_file_written_just_now_is_hashed_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock may tick too slowly to tell the next change, even of a file whose times were set back."""
    path, session = tmp_path / "model.onnx", Session(tmp_path / "cache")
    hashed = Counted(monkeypatch, onnx_front_end, "digest_of_file")
    keys = set()
    for value in (1.0, 2.0, 3.0):
        small(path, value)
        os.utime(path, ns=(10**9, 10**9))
        keys.add(session.key(Request.of(path, None, None), Options()))
    assert len(keys) == 3 and len(hashed.calls) == 3


def test_only_a_model_with_data_outside_depends_on_the_files_beside_it(tmp_path: Path) -> None:
    inside, outside, session = (
        tmp_path / "inside.onnx",
        tmp_path / "outside.onnx",
        Session(tmp_path / "cache"),
    )
    small(inside, 1.0)
    small(outside, 1.0)
    model = onnx.load(outside)
    onnx.save(model, outside, save_as_external_data=True, location="weights.bin", size_threshold=0)
    first = [session.key(Request.of(path, None, None), Options()) for path in (inside, outside)]
    weights = tmp_path / "weights.bin"
    weights.write_bytes(np.full(3, 2.0, np.float32).tobytes())
    os.utime(weights, ns=(1, 1))
    second = [session.key(Request.of(path, None, None), Options()) for path in (inside, outside)]
    assert first[0] == second[0] and first[1] != second[1]


def test_weights_of_an_entry_are_checked_until_they_were_found_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: None
) -> None:
    path, session = tmp_path / "model.onnx", Session(tmp_path / "cache")
    small(path, 1.0)
    tilewright.compile(path, session=session)
    loads = Counted(monkeypatch, Artifact, "load")
    for _ in range(3):
        assert tilewright.compile(path, session=session)(np.zeros(3, np.float32))[0].tolist() == [1.0] * 3
    assert [call["check_weights"] for call in loads.calls] == [True, False, False]
    (entry,) = session.folder.glob("*.tw")
    damaged = bytearray(entry.read_bytes())
    damaged[damaged.index(np.full(3, 1.0, np.float32).tobytes()) + 2] ^= 64
    entry.write_bytes(damaged)
    assert tilewright.compile(path, session=session)(np.zeros(3, np.float32))[0].tolist() == [1.0] * 3


def test_notes_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_NOTES", 3)
    session = Session(tmp_path)
    notes = Notes(tmp_path / "notes")
    for k in range(9):
        notes.write(f"model {k}", b"inside")
    assert notes.read("model 0") == b"inside" and notes.read("model 9") is None
    small(tmp_path / "model.onnx", 1.0)
    tilewright.compile(tmp_path / "model.onnx", session=session)
    assert len(list(notes.folder.iterdir())) == 3


@pytest.mark.parametrize("size", [3, 8, 10, 64])
def test_a_text_is_found_wherever_a_file_is_cut_into_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(files, "CHUNK", size)
    path = tmp_path / "model.onnx"
    for before in range(24):
        path.write_bytes(b"l" * before + b"location" + b"n" * 5)
        assert files.file_mentions(path, b"location")
        path.write_bytes(b"l" * before + b"locatio" + b"_n" * 5)
        assert not files.file_mentions(path, b"location")
    path.write_bytes(b"")
    assert not files.file_mentions(path, b"location")


def test_the_weights_of_an_entry_stay_in_its_file(tmp_path: Path) -> None:
    """Processes share them; nobody writes into files of the cache, they are only renamed and deleted."""
    session = Session(tmp_path / "cache")
    model = tilewright.compile(models.written(models.mlp(), tmp_path, "model"), session=session)
    x = np.ones((3, models.FEATURES), np.float32)
    session.keep("key", model.artifact)
    found = session.find("key")
    assert found is not None
    assert np.frombuffer(found.constants, np.uint8).ctypes.data % 4096 == 0
    again = Model(found)
    (session.folder / "key.tw").unlink()
    np.testing.assert_array_equal(again(x)[0], model(x)[0])


def test_what_a_process_lacks_costs_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(tmp_path / "cache")
    session.keep("key", tilewright.compile(models.mlp(), session=session).artifact)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("mmap.mmap", refuse)
        assert session.find("key") is None
    assert session.find("key") is not None
    (session.folder / "key.tw").write_bytes(b"damaged")
    assert session.find("key") is None and not (session.folder / "key.tw").exists()


def test_large_artefacts_are_written_while_the_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache knows an artefact from when it is kept on; whoever lists or clears the folder waits for its file."""
    monkeypatch.setattr(session_module, "_LARGE", 0)
    session, go, write = Session(tmp_path / "cache"), threading.Event(), Artifact.write

    def write_later(artifact: Artifact, file: BinaryIO) -> None:
        assert go.wait(60)
        write(artifact, file)

    monkeypatch.setattr(Artifact, "write", write_later)
    model = tilewright.compile(models.written(models.mlp(), tmp_path, "model"), session=session)
    x = np.ones((3, models.FEATURES), np.float32)
    again = tilewright.compile(tmp_path / "model.onnx", session=session)
    assert again.artifact is model.artifact and not list(session.folder.glob("*.tw"))
    np.testing.assert_array_equal(again(x)[0], model(x)[0])
    go.set()
    (entry,) = session.entries()
    assert entry.path.exists()
    assert tilewright.compile(tmp_path / "model.onnx", session=session).artifact is not model.artifact
    assert session.clear().files == 1


def test_a_process_ends_when_the_cache_has_what_it_compiled(tmp_path: Path) -> None:
    models.written(models.mlp(), tmp_path, "model")
    code = (
        "import time, tilewright, tilewright.session as s\n"
        "s._LARGE, save = 0, s.Artifact.save\n"
        "s.Artifact.save = lambda *a: (time.sleep(0.3), save(*a))\n"
        f"tilewright.compile({str(tmp_path / 'model.onnx')!r}, session=s.Session(s.Path({str(tmp_path / 'cache')!r})))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert len(Session(tmp_path / "cache").entries()) == 1
