"""Artefacts with code for several levels of x86-64."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import pickle
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.models import mlp
from tests.staging.models import model_of
from tilewright.api import compile_artifact
from tilewright.options import Options
from tilewright.runtime.arena import aligned_zeros
from tilewright.runtime.artifact import Artifact, TargetInfo
from tilewright.runtime.errors import ArtifactError, OptionError
from tilewright.runtime.storage import container
from tilewright.runtime.storage.described import ArtifactFile
from tilewright.runtime.storage.fleet import with_shared
from tilewright.runtime.storage.levels import ASKED, at_level, best_of
from tilewright.target.named import NAMED

NAMES = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
X = np.random.default_rng(4).standard_normal((3, 64)).astype(np.float32)
is_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="levels of x86-64")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("levels") / "m.tw"
    compile_artifact(mlp(), options=Options(target=";".join(NAMES), cache=False)).save(path)
    return path


def cpu(*names: str) -> TargetInfo:
    """A machine with the features of these targets."""
    features = {feature for name in names for feature in NAMED[name].features}
    return TargetInfo("x86_64-unknown-linux", "CPU", tuple(sorted(features)))


def test_the_best_level_of_a_cpu_is_taken(file: Path) -> None:
    artifact = Artifact.load(file)
    assert [level.level for level in (artifact, *artifact.levels)] == ["x86-64-v4", "x86-64-v2", "x86-64-v3"]
    for host in NAMES:
        found = at_level(artifact, host=cpu(host))
        assert (found.level, found.target.features, found.levels) == (host, NAMED[host].features, ())
    assert at_level(artifact, host=cpu("zen3")).level == "x86-64-v3"
    assert at_level(artifact, host=cpu("cascadelake")).level == "x86-64-v4"
    with pytest.raises(ArtifactError, match=r"needs CPU features that this CPU lacks: popcnt, sse4.1"):
        at_level(artifact, host=cpu("x86-64"))
    with pytest.raises(ArtifactError, match="needs CPU features that this CPU lacks: avx"):
        at_level(artifact, "x86-64-v4", cpu("x86-64-v2"))


@is_x86
def test_each_level_computes_what_an_artefact_of_its_own_does(file: Path, tmp_path: Path) -> None:
    host = set(tilewright.load(file).artifact.target.features)
    for name in NAMES:
        if not host.issuperset(NAMED[name].features):
            continue
        wanted = tilewright.compile(mlp(), target=name, cache=False)(X)
        for mapped in (False, True):
            model = tilewright.load(file, level=name, mmap=mapped)
            assert model.artifact.level == name
            np.testing.assert_array_equal(model(X), wanted)
    again = tmp_path / "again.tw"
    tilewright.load(file).save(again)
    assert again.read_bytes() == file.read_bytes()
    with pytest.raises(OptionError, match=r"level='v9' is not allowed: the levels of this model are x86-64-v4, x86"):
        tilewright.load(file, level="v9")


@is_x86
def test_any_level_has_what_belongs_to_the_model(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is attached to the first level (a name in a fleet, a certificate) and the name of the source."""
    monkeypatch.setenv(ASKED, "x86-64-v2")
    artifact = replace(Artifact.load(file), attached={"note": 3}, model="mlp.onnx")
    with_shared(tmp_path, "group/m", artifact)
    with tilewright.load_fleet(tmp_path) as fleet:
        found = fleet["group/m"].artifact
    assert (found.level, found.model, found.attached["note"]) == ("x86-64-v2", "mlp.onnx", 3)


@is_x86
def test_copies_keep_all_levels(file: Path, tmp_path: Path) -> None:
    model = tilewright.load(file)
    for number, made in enumerate((copy.copy(model), pickle.loads(pickle.dumps(model)))):
        made.save(tmp_path / f"{number}.tw")
        assert (tmp_path / f"{number}.tw").read_bytes() == file.read_bytes()
    one = pickle.loads(pickle.dumps(tilewright.load(file, level="x86-64-v2")))
    assert (one.artifact.level, one.artifact.levels) == ("x86-64-v2", ())


@is_x86
def test_the_environment_names_a_level(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, "x86-64-v2")
    assert tilewright.load(file).artifact.level == "x86-64-v2"
    assert tilewright.load(file, level="x86-64-v3").artifact.level == "x86-64-v3"
    monkeypatch.setenv(ASKED, "v9")
    with pytest.raises(OptionError, match="TILEWRIGHT_LEVEL=v9 is not allowed: the levels of this model are x86-64-v4"):
        tilewright.load(file)
    assert tilewright.load(tilewright.load(file, level="x86-64-v3").artifact.to_bytes())(X)  # has no levels


def test_no_level_is_for_another_kind_of_machine(file: Path) -> None:
    artifact = Artifact.load(file)
    arm = TargetInfo("aarch64-unknown-linux", "CPU", NAMED["neoverse-n1"].features)
    baseline = replace(artifact.target, features=())
    assert best_of([baseline], arm) is None and best_of([baseline], cpu("x86-64")) == 0
    with pytest.raises(ArtifactError, match=r"was made for x86_64 linux .* this machine is aarch64 linux"):
        at_level(artifact, host=arm)


@is_x86
@pytest.mark.parametrize("mapped", [False, True])
def test_a_damaged_level_costs_that_level_alone(file: Path, tmp_path: Path, mapped: bool) -> None:
    """Of levels that are not taken the code is looked at when it is asked for: by name, by saving and by pickling."""
    raw = bytearray(file.read_bytes())
    entry = ArtifactFile.of(file).sections[1]
    assert entry.kind == "image"
    raw[entry.offset + 100] ^= 1
    damaged = tmp_path / "damaged.tw"
    damaged.write_bytes(raw)
    where = f"wrong checksum\n  where: section 1 \\(image\\), bytes {entry.offset} to"
    taken = tilewright.load(file).artifact.level
    if taken == "x86-64-v2":
        pytest.skip("this CPU takes the level that is damaged")
    model = tilewright.load(damaged, mmap=mapped)
    np.testing.assert_array_equal(model(X), tilewright.load(file)(X))
    for use in (lambda: model.save(tmp_path / "again.tw"), lambda: pickle.dumps(model)):
        with pytest.raises(ArtifactError, match=where):
            use()
    assert not (tmp_path / "again.tw").exists()
    np.testing.assert_array_equal(tilewright.load(damaged, level=taken)(X), model(X))
    with pytest.raises(ArtifactError, match=where):
        tilewright.load(damaged, level="x86-64-v2", mmap=mapped)
    with pytest.raises(ArtifactError, match=where):
        Artifact.load(damaged)


@is_x86
def test_a_level_outlives_its_file(file: Path, tmp_path: Path) -> None:
    """The other levels are read from the file that was loaded, also where it has lost its name; not where it was
    written over. A closed model lets go of it."""
    path = tmp_path / "m.tw"
    path.write_bytes(file.read_bytes())
    model = tilewright.load(path)
    path.unlink()
    path.write_bytes(b"something else")
    again = copy.copy(model)
    model.close()
    with pytest.raises(tilewright.TilewrightError, match="closed"):
        model.save(tmp_path / "closed.tw")
    again.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == file.read_bytes()
    last = tilewright.load(tmp_path / "again.tw")
    whole = Artifact.load(file)
    for other in (b"", replace(whole, producer=whole.producer[::-1]).to_bytes()):
        (tmp_path / "again.tw").write_bytes(other)
        with pytest.raises(ArtifactError, match=r"again\.tw was (cut off while|written over since)"):
            last.save(tmp_path / "lost.tw")
    np.testing.assert_array_equal(last(X), again(X))


KEY = """-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIEJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJC
-----END PRIVATE KEY-----
"""
PUBLIC = bytes.fromhex("2152f8d19b791d24453242e15f2eab6cb7cffa7b6a5ed30097960e069881db12")
"""Of Ed25519, for this test alone."""


def wide() -> onnx.ModelProto:
    """Products whose weights are packed in another way for each level."""
    rng = np.random.default_rng(0)
    arrays = {f"w{k}": rng.standard_normal((256, 256)).astype(np.float32) for k in range(2)}
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["v"]), helper.make_node("MatMul", ["v", "w1"], ["y"])]
    return model_of(nodes, [("x", TensorProto.FLOAT, ["n", 256])], ["y"], arrays)


@is_x86
def test_a_level_reads_its_own_weights_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, x = ("x86-64", "x86-64-v4"), X[:1, :1].repeat(256, 1)
    artifact = compile_artifact(wide(), options=Options(target=";".join(names), cache=False))
    (tmp_path / "key.pem").write_text(KEY)
    paths = [tmp_path / "m.tw"]
    artifact.save(paths[0])
    if importlib.util.find_spec("cryptography"):
        paths.append(tmp_path / "signed.tw")
        artifact.save(paths[1], key=tmp_path / "key.pem")
    wanted = tilewright.compile(wide(), target=names[0], cache=False)(x)
    not_a_number = np.uint8(0xFF)  # in place of what is not read
    monkeypatch.setattr(container, "aligned_zeros", lambda n: aligned_zeros(n) | not_a_number)
    for path in paths:
        trust = PUBLIC if path.stem == "signed" else None
        weights = ArtifactFile.of(path).sections[-1]
        reads = next(level.reads for level in (artifact, *artifact.levels) if level.level == names[0])
        ends = np.cumsum([part.size for part in weights.parts])
        needed = [any(first < end and end - part.size < last for first, last in reads)
                  for part, end in zip(weights.parts, ends, strict=True)]  # fmt: skip
        assert ends[-1] == weights.size and True in needed and False in needed
        assert all(bool(part.digest) == (trust is not None) for part in weights.parts)
        for number, is_needed in enumerate(needed):
            raw = bytearray(path.read_bytes())
            raw[weights.offset + ends[number] - 1] ^= 1
            damaged = tmp_path / "damaged.tw"
            damaged.write_bytes(raw)
            found = contextlib.nullcontext()
            if is_needed:
                found = pytest.raises(ArtifactError, match=r"damaged: wrong (checksum|digest)\n  where: section 2 ")
            for source in (damaged, bytes(raw)):
                with found:
                    np.testing.assert_array_equal(tilewright.load(source, level=names[0], trust=trust)(x), wanted)
            monkeypatch.setenv(ASKED, names[0])
            with found:
                model = tilewright.load(damaged, trust=trust)
                np.testing.assert_array_equal(model(x), wanted)
                with pytest.raises(ArtifactError, match="damaged: wrong"):
                    pickle.dumps(model)
        tilewright.load(path, trust=trust).save(tmp_path / "again.tw")
        assert (tmp_path / "again.tw").read_bytes() == paths[0].read_bytes()


@is_x86
def test_a_level_that_says_too_little_of_what_it_reads_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would compute with zeros; one that says nothing reads all."""
    name, path = "x86-64", tmp_path / "m.tw"
    artifact = compile_artifact(wide(), options=Options(target=f"{name};x86-64-v4", cache=False))
    artifact.save(path)
    x = X[:1, :1].repeat(256, 1)
    wanted = tilewright.load(path, level=name)(x)
    (level,) = artifact.levels
    (last,) = level.constant_table[-1:]
    for reads in (((0, last.offset),), ((0, last.offset + last.nbytes - 64),), ((last.offset, level.reads[-1][1]),)):
        replace(artifact, levels=(replace(level, reads=reads),)).save(path)
        for mmap in (False, True):
            with pytest.raises(ArtifactError, match="is not among the weights that the level reads"):
                tilewright.load(path, level=name, mmap=mmap)
        with pytest.raises(ArtifactError, match="is not among"):
            Artifact.load(path)
    sections = artifact._sections()  # in parts
    monkeypatch.setattr(Artifact, "_sections", lambda _: sections)
    replace(artifact, levels=(replace(level, reads=()),)).save(path)
    np.testing.assert_array_equal(tilewright.load(path, level=name)(x), wanted)


def test_levels_have_no_levels(file: Path) -> None:
    artifact = Artifact.load(file)
    inner = replace(artifact.levels[0], levels=(artifact.levels[1],))
    nested = replace(artifact, levels=(inner, artifact.levels[1]))
    with pytest.raises(ArtifactError, match="the metadata is malformed"):
        Artifact.load(nested.to_bytes())


def test_weights_are_shared(file: Path) -> None:
    alone = [compile_artifact(mlp(), options=Options(target=name, cache=False)) for name in NAMES]
    artifact = Artifact.load(file)
    assert artifact.weight_bytes < sum(one.weight_bytes for one in alone)
    starts = {memoryview(level.constants).obj is memoryview(artifact.constants).obj for level in artifact.levels}
    assert starts == {True}
    described = ArtifactFile.of(file)
    assert [name for name, _ in described.levels] == ["x86-64-v4", "x86-64-v2", "x86-64-v3"]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("x86-64-v3;neoverse-n1", "levels of one artefact are CPUs of one kind and system"),
        ("x86-64-v3;x86_64-windows", "levels of one artefact are CPUs of one kind and system"),
        ("x86-64-v3; x86-64-v3", "two levels are the same"),
    ],
)
def test_what_cannot_be_levels(target: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        tilewright.compile(mlp(), target=target, cache=False)
    with pytest.raises(tilewright.TargetError, match="unknown target ''"):
        tilewright.compile(mlp(), target="x86-64-v3;", cache=False)
