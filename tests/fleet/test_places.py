"""Where fleets lie, what leads to them, and what may have happened to their files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.fleet import workers
from tilewright.fleet.build import FleetResult, compile_fleet
from tilewright.fleet.members import named
from tilewright.runtime.errors import ArtifactError

X = np.arange(8, dtype=np.float32).reshape(2, 4)
Compile = Callable[..., FleetResult]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tilewright.Session:
    return tilewright.Session(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, session: tilewright.Session) -> Path:
    """x @ identity, which the cache has."""
    path = tmp_path_factory.mktemp("source") / "one.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    weights = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "net", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    tilewright.compile(path, session=session)
    return path


@pytest.fixture
def compile(tmp_path: Path, source: Path, session: tilewright.Session) -> Compile:
    """Compiles the source into tmp_path / "fleet" under some names, as a list has them."""

    def compile(*names: str, **options: Any) -> FleetResult:
        (tmp_path / "list.toml").write_text("\n".join(f'[models."{name}"]\nsource = "{source}"' for name in names))
        return compile_fleet(tmp_path / "list.toml", tmp_path / "fleet", session=session, jobs=1, **options)

    return compile


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    before = os.getcwd()
    yield tmp_path
    os.chdir(before)


def states(done: FleetResult) -> dict[str, str]:
    return {model.name: model.state for model in done.models}


def test_by_whatever_path(compile: Compile, here: Path) -> None:
    """Also where a folder has the name of a model, and of paths that are relative."""
    compile("net", "net/wide")
    os.chdir(here)
    fleet = tilewright.load_fleet("fleet", threads=1)
    os.chdir(here / "fleet" / "net")
    for path in ("wide.tw", "../net", here / "fleet" / "net", here / "fleet" / "net.tw"):
        np.testing.assert_array_equal(tilewright.load(path, threads=1)(X)[0], X)
    assert [model(X)[0].shape for model in fleet.values()] == [(2, 4)] * 2


def test_links(compile: Compile, tmp_path: Path) -> None:
    """The folder of a fleet may be one, and its store; what leads a model elsewhere is refused."""
    for folder in ("real", "elsewhere", "codes"):
        (tmp_path / folder).mkdir()
    (tmp_path / "fleet").symlink_to("real")
    (tmp_path / "real" / "store").symlink_to("../codes")
    (tmp_path / "real" / "out").symlink_to("../elsewhere")
    (tmp_path / "real" / "file.tw").symlink_to("../elsewhere/file.tw")
    done = compile("net", "out/net", "file")
    assert states(done) == {"file": "failed", "net": "compiled", "out/net": "failed"}
    assert all("leads out of its place" in model.error for model in done.failed)
    assert not list((tmp_path / "elsewhere").iterdir())
    np.testing.assert_array_equal(tilewright.load_fleet(tmp_path / "fleet", threads=1)["net"](X)[0], X)


def test_links_among_the_sources_are_models(tmp_path: Path) -> None:
    (tmp_path / "v2.onnx").touch()
    (tmp_path / "latest.onnx").symlink_to("v2.onnx")
    assert set(named([tmp_path / "v2.onnx", tmp_path / "latest.onnx", tmp_path / "." / "v2.onnx"])) == {"v2", "latest"}


def test_long_names(compile: Compile, tmp_path: Path) -> None:
    name = "\u754c" * 84  # 252 bytes, and 255 with the suffix
    assert states(compile(name)) == {name: "compiled"}
    assert states(compile("x" * 253))["x" * 253] == "failed"


def test_damage_is_repaired(compile: Compile, tmp_path: Path) -> None:
    """Also of files that have their size still."""
    compile("a", "b")
    store = tmp_path / "fleet" / "store"
    whole = {path.name: path.read_bytes() for path in store.iterdir()}
    one, other = whole
    for path in store.iterdir():
        path.write_bytes(bytes(len(whole[path.name])))
    assert set(states(compile("a", "b")).values()) == {"compiled"}
    assert {path.name: path.read_bytes() for path in store.iterdir()} == whole
    assert set(states(compile("a", "b")).values()) == {"unchanged"}
    os.rename(store / one, store / "x")
    os.rename(store / other, store / one)
    os.rename(store / "x", store / other)
    compile("a", "b")
    assert {path.name: path.read_bytes() for path in store.iterdir()} == whole


def test_pruning_keeps_what_may_be_needed(compile: Compile, tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    compile("a", "b", "sub/c")
    (folder / "fleet.json").unlink()  # nobody knows what has been compiled
    shutil.copy(tmp_path / "fleet" / "a.tw", tmp_path / "whole.tw")
    tilewright.load(folder / "a.tw").save(folder / "by_hand.tw")
    (folder / "loop.tw").symlink_to("loop.tw")  # which cannot be read
    with pytest.raises(ArtifactError, match=r"loop\.tw"):
        compile("a", prune=True)
    assert len(list((folder / "store").iterdir())) == 2
    (folder / "loop.tw").unlink()
    compile("a", "b", "sub/c")
    (folder / "fleet.json").unlink()
    assert states(compile("a", prune=True)) == {"a": "compiled", "b": "removed", "sub/c": "removed"}
    assert sorted(path.name for path in folder.iterdir()) == ["a.tw", "by_hand.tw", "fleet.json", "store"]


def test_what_others_write_is_left(compile: Compile, tmp_path: Path) -> None:
    name = f".x.tw.{'0' * 16}.tmp"
    for folder in ("fleet/sub", "fleet/others"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / name).touch()
    (tmp_path / "fleet" / name).touch()
    compile("sub/a")
    assert [path.parent.name for path in (tmp_path / "fleet").rglob("*.tmp")] == ["others"]


def test_a_process_that_ends_within_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(self: Connection, data: bytes) -> None:
        os.write(self.fileno(), bytes(data)[:9])
        os._exit(3)

    monkeypatch.setattr(Connection, "_send", half)
    assert list(workers.run_apart(str, [1, 2], 1, lambda piece, code: f"{piece} died: {code}")) == [
        (0, "1 died: 3"),
        (1, "2 died: 3"),
    ]


def test_signing_leaves_names(compile: Compile, tmp_path: Path) -> None:
    """What is signed is the file that was given, for the name that it has."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as s

    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    trust = private.public_key().public_bytes_raw()
    folder = tmp_path / "fleet"
    compile("net", "sub/net")
    tilewright.load(folder / "net.tw").save(tmp_path / "alone.tw")
    before = sorted(tmp_path.iterdir())
    tilewright.sign(tmp_path / "alone.tw", pem)
    assert sorted(tmp_path.iterdir()) == before
    np.testing.assert_array_equal(tilewright.load(tmp_path / "alone.tw", threads=1, trust=trust)(X)[0], X)
    with pytest.raises(ArtifactError, match="under another name"):
        tilewright.sign(folder / "sub", pem)  # of a fleet, and none itself
    assert [path.name for path in (folder / "sub").iterdir()] == ["net.tw"]
    tilewright.sign(folder / "sub" / "net.tw", pem)
    np.testing.assert_array_equal(tilewright.load_fleet(folder, 1, trust=trust)["sub/net"](X)[0], X)
