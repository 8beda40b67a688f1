"""Fleets: several models in one folder, compiled once, sharing what is the same, whatever ends a run half way."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.cli.app import commands
from tilewright.fleet import workers
from tilewright.fleet.build import compile_fleet
from tilewright.fleet.index import locked
from tilewright.fleet.members import named
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage.fleet import models_of

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def weights(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((4, 4)).astype(np.float32)


def net(path: Path, seed: int, output: str = "y") -> Path:
    """x @ w."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("x", output))
    node = helper.make_node("MatMul", ["x", "w"], [output])
    graph = helper.make_graph([node], "net", [x], [y], [numpy_helper.from_array(weights(seed), "w")])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tilewright.Session:
    return tilewright.Session(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two of one architecture, one of them twice."""
    folder = tmp_path_factory.mktemp("sources")
    return [net(folder / "one.onnx", 1), net(folder / "two.onnx", 2), net(folder / "again.onnx", 1)]


@pytest.fixture
def fleet(tmp_path: Path, sources: list[Path], session: tilewright.Session) -> Callable[..., dict[str, str]]:
    """Compiles into tmp_path / "fleet", and gives the states by name."""

    def compile(models: Any = sources, **options: Any) -> dict[str, str]:
        done = compile_fleet(models, tmp_path / "fleet", session=session, **options)
        return {model.name: model.state for model in done.models}

    return compile


@pytest.fixture(scope="module", autouse=True)
def known(sources: list[Path], session: tilewright.Session) -> None:
    """The cache has the models, so that tests do not wait for the compiler."""
    for source in sources:
        tilewright.compile(source, session=session)


def stored(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "store").iterdir()}


def check(folder: Path, names: dict[str, int]) -> None:
    """Each model computes what it should, by seeds."""
    with tilewright.load_fleet(folder, threads=1) as found:
        assert list(found) == sorted(names)
        for name, seed in names.items():
            np.testing.assert_allclose(found[name](X)[0], X @ weights(seed), rtol=1e-5)


def test_models_share_what_is_the_same(fleet: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    assert fleet() == {"again": "compiled", "one": "compiled", "two": "compiled"}
    check(tmp_path / "fleet", {"again": 1, "one": 1, "two": 2})
    assert len(stored(tmp_path / "fleet")) == 3  # one image, two sets of weights
    before = {path.name: path.read_bytes() for path in (tmp_path / "fleet").glob("*.tw")}
    found = tilewright.load(tmp_path / "fleet" / "two")
    np.testing.assert_allclose(found(X)[0], X @ weights(2), rtol=1e-5)
    found.save(tmp_path / "alone.tw")  # whole, and without the store
    shutil.rmtree(tmp_path / "fleet")
    np.testing.assert_allclose(tilewright.load(tmp_path / "alone.tw")(X)[0], X @ weights(2), rtol=1e-5)
    fleet(jobs=1)
    assert {path.name: path.read_bytes() for path in (tmp_path / "fleet").glob("*.tw")} == before


def test_models_of_one_image_run_in_the_same_pages(fleet: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    fleet()
    with tilewright.load_fleet(tmp_path / "fleet", threads=1) as found:
        one, two = found["one"].artifact.image, found["two"].artifact.image
        assert one is two is not None
    with tilewright.load_fleet(tmp_path / "fleet", threads=1, mmap=False) as copied:
        assert copied["one"].artifact.image is copied["two"].artifact.image is not one


def test_what_is_there_is_left(fleet: Callable[..., dict[str, str]], tmp_path: Path, sources: list[Path]) -> None:
    folder, own = tmp_path / "fleet", tmp_path / "own.onnx"
    shutil.copy(sources[0], own)
    models = [*sources[:2], own]
    fleet(models)
    os.utime(own)  # another time, the same bytes
    assert set(fleet(models).values()) == {"unchanged"}
    net(own, 4)
    assert fleet(models) == {"one": "unchanged", "own": "compiled", "two": "unchanged"}
    assert fleet(own, memory_effort="search") == {"own": "compiled"}
    assert fleet(models) == {"one": "unchanged", "own": "compiled", "two": "unchanged"}
    whole = stored(folder)
    for digest in whole:
        (folder / "store" / digest).unlink()
        assert "compiled" in fleet(sources[:2], cache=True).values() or fleet(own) == {"own": "compiled"}
    assert stored(folder) == whole
    check(folder, {"one": 1, "two": 2, "own": 4})
    (folder / "fleet.json").write_text("{")
    assert set(fleet(models).values()) == {"compiled"}
    count = len(stored(folder))
    assert fleet(models[:2], prune=True) == {"one": "unchanged", "own": "removed", "two": "unchanged"}
    assert len(stored(folder)) < count
    check(folder, {"one": 1, "two": 2})


def test_what_fails_stops_no_other(
    fleet: Callable[..., dict[str, str]], tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    given = [sources[0], tmp_path / "bad.onnx", tmp_path / "none.onnx"]
    assert fleet(given) == {"bad": "failed", "none": "failed", "one": "compiled"}
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        if Path(target).name == "one.tw":
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target)

    shutil.rmtree(tmp_path / "fleet")
    monkeypatch.setattr(os, "replace", replace)
    done = compile_fleet(sources, tmp_path / "fleet")
    (failed,) = done.failed
    assert failed.name == "one" and "SIGKILL" in failed.error
    check(tmp_path / "fleet", {"again": 1, "two": 2})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_that_is_killed_goes_on(
    fleet: Callable[..., dict[str, str]], tmp_path: Path, sources: list[Path], session: tilewright.Session
) -> None:
    """The process that leads is killed when it, or a process of it, is about to put the n-th file into its place."""
    seeds = {"again": 1, "one": 1, "two": 2}
    for n in itertools.count():
        leader = os.fork()
        if not leader:
            _killed_at(n, lambda: compile_fleet(sources, tmp_path / "fleet", session=session, jobs=1))
        code = os.waitstatus_to_exitcode(os.waitpid(leader, 0)[1])
        if (tmp_path / "fleet").is_dir():
            check(tmp_path / "fleet", {name: seeds[name] for name in models_of(tmp_path / "fleet")})
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert n > 2
    assert set(fleet().values()) == {"unchanged"}
    assert not list((tmp_path / "fleet").rglob("*.tmp"))


def _killed_at(n: int, run: Callable[[], Any]) -> None:
    leader, counted, real = os.getpid(), iter(range(10**6)), os.replace

    def replace(source: Any, target: Any) -> None:
        if "fleet" in str(target) and next(counted) == n:
            os.kill(leader, signal.SIGKILL)
            signal.pause()
        real(source, target)

    os.replace = replace
    try:
        run()
        os._exit(0)
    finally:
        os._exit(1)


def test_processes_end_with_the_one_that_began_them(tmp_path: Path) -> None:
    leader = os.fork()
    if not leader:
        list(workers.run_apart(_waits, [tmp_path / "a", tmp_path / "b"], 2, lambda piece, code: None))
        os._exit(0)
    while not ((tmp_path / "a").exists() and (tmp_path / "b").exists()):
        threading.Event().wait(0.01)
    others = [int((tmp_path / name).read_text()) for name in "ab"]
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)
    for other in others:
        for _ in range(6000):
            if not _is_alive(other):
                break
            threading.Event().wait(0.01)
        assert not _is_alive(other)


def _waits(path: Path) -> None:
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    threading.Event().wait(60)


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "files, names",
    [
        (["a/resnet.v2.onnx", "b/bert.onnx"], ["resnet.v2", "bert"]),
        (["a/model.onnx", "b/model.onnx", "c.onnx"], ["a/model", "b/model", "c"]),
        (["x/1/model.onnx", "x/2/Model.onnx"], ["1/model", "2/Model"]),
        (["a/m.onnx", "a/m.tflite"], ["m.onnx", "m.tflite"]),
        (["m.onnx", "a/m.onnx", "a/m.tflite"], ["m", "a/m.onnx", "a/m.tflite"]),
        (["a/m.onnx", "./a/m.onnx", "a/../a/m.onnx"], ["m"]),
    ],
)
def test_names(files: list[str], names: list[str], tmp_path: Path) -> None:
    assert set(named([tmp_path / file for file in files])) == set(names)


@pytest.mark.parametrize(
    "text, said",
    [
        ("models", "cannot be read"),
        ("[model.a]\nsource = 'x'", "has 'model'"),
        ("[models]", "lists no models"),
        ("[models.a]\nshapes = {}", "has no source"),
        ("[models.a]\nsource = 'x'\nnumeric = 'fast'", "did you mean 'numerics'"),
        ("[models.a]\nsource = 'x'\nshapes = {x = 'n'}", "a shape is a list of dims"),
        ("[models.'../a']\nsource = 'x'", "is no name for a model"),
        ("[models.'store/a']\nsource = 'x'", "store/ holds the code"),
        ("[models.'a.tw/b']\nsource = 'x'", "ends in .tw"),
        ("[models.a]\nsource = 'x'\n[models.A]\nsource = 'y'", "would both be the model"),
    ],
)
def test_lists_that_say_nothing(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(OptionError, match=said):
        compile_fleet(tmp_path / "list.toml", tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()


def test_a_list_has_options_for_each(tmp_path: Path, sources: list[Path], session: tilewright.Session) -> None:
    text = f"""
[defaults]
numerics = "strict"
[models."customers/a"]
source = "{os.path.relpath(sources[0], tmp_path)}"
[models.fixed]
source = "{sources[1]}"
shapes = {{ x = [2, 4] }}
numerics = "default"
"""
    (tmp_path / "list.toml").write_text(text)
    done = compile_fleet([tmp_path / "list.toml", sources[2]], tmp_path / "fleet", session=session)
    assert not done.failed
    check(tmp_path / "fleet", {"again": 1, "customers/a": 1, "fixed": 2})
    found = tilewright.load_fleet(tmp_path / "fleet")
    assert [str(found[name].inputs[0].shape) for name in ("customers/a", "fixed")] == ["('batch', 4)", "(2, 4)"]


def test_a_fleet_tells_what_is_wrong(fleet: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    with pytest.raises(ArtifactError, match="is no folder of compiled models"):
        tilewright.load_fleet(folder)
    fleet()
    with tilewright.load_fleet(folder) as found:
        with pytest.raises(KeyError, match="there are again, one, two"):
            found["three"]
        assert "three" not in found and found.get("three") is None and len(found) == 3
    shutil.copy(folder / "one.tw", folder / "three.tw")
    with pytest.raises(ArtifactError, match="is the model 'one' of a fleet, under another name"):
        tilewright.load_fleet(folder)["three"]
    shutil.copy(folder / "one.tw", tmp_path / "one.tw")
    with pytest.raises(ArtifactError, match=r"there is no [0-9a-f]{64}"):
        tilewright.load(tmp_path / "one.tw")
    with pytest.raises(ArtifactError, match="give the path of the file, where it lies in its fleet"):
        tilewright.load((folder / "one.tw").read_bytes())
    for path in (folder / "store").iterdir():
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
    with pytest.raises(ArtifactError, match="is damaged"):
        tilewright.load_fleet(folder)["one"]
    for path in (folder / "store").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ArtifactError, match="bytes in place of"):
        tilewright.load(folder / "one.tw")
    with locked(folder), pytest.raises(ArtifactError, match="another process is compiling"):
        fleet()


def test_a_signed_fleet(fleet: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization as s

    private = ed25519.Ed25519PrivateKey.generate()
    pem = private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    trust = private.public_key().public_bytes_raw()
    folder = tmp_path / "fleet"
    fleet()
    with pytest.raises(ArtifactError, match="is not signed"):
        tilewright.load_fleet(folder, trust=trust).load()
    tilewright.sign(folder, pem)
    with tilewright.load_fleet(folder, trust=trust).load() as found:
        np.testing.assert_allclose(found["two"](X)[0], X @ weights(2), rtol=1e-5)
    assert set(fleet().values()) == {"unchanged"}
    os.replace(folder / "one.tw", folder / "two.tw")
    with pytest.raises(ArtifactError, match="under another name"):
        tilewright.load_fleet(folder, trust=trust)["two"]


def test_threads_get_one_model(fleet: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    fleet()
    found, models = tilewright.load_fleet(tmp_path / "fleet", threads=1), []
    threads = [threading.Thread(target=lambda: models.append(found["one"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(models) == 8 and len(set(map(id, models))) == 1
    found.close()
    assert found["one"] is not models[0]


def test_the_command(tmp_path: Path, sources: list[Path], monkeypatch: pytest.MonkeyPatch, session: Any) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(session.folder))

    def run(*arguments: object) -> Any:
        return CliRunner().invoke(commands, [str(a) for a in arguments])

    (tmp_path / "bad.onnx").write_bytes(b"no model")
    folder = tmp_path / "fleet"
    done = run("compile", *sources[:2], tmp_path / "bad.onnx", "-o", folder)
    assert done.exit_code == 1 and "bad: " in done.stderr and "2 compiled" in done.stdout
    done = run("compile", *sources[:2], "-o", folder, "--json", "--jobs", 2)
    found = json.loads(done.stdout)
    assert done.exit_code == 0 and [model["state"] for model in found["models"]] == ["unchanged"] * 2
    done = run("compile", sources[0], "-o", f"{folder}/", "--prune")
    assert done.exit_code == 0 and "1 removed, 1 unchanged" in done.stdout
    done = run("inspect", folder)
    assert done.exit_code == 0 and "1 models" in done.stdout
    assert list(json.loads(run("inspect", folder, "--json").stdout)["models"]) == ["one"]
    for wrong, said in [
        ((*sources, ), "-o FOLDER/"),
        ((*sources, "-o", folder, "--report"), "--report is for one model"),
        ((sources[0], "-o", tmp_path / "one.tw", "--prune"), "--prune is for models that go to a folder"),
        ((folder / "one.tw", sources[1], "-o", folder), "is compiled code"),
    ]:  # fmt: skip
        done = run("compile", *wrong)
        assert done.exit_code == 2 and said in done.stderr, done.output
