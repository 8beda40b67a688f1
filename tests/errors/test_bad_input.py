"""Bad input to the Python interface: one error whose message says what, where, and how to go on."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests import models
from tilewright import TilewrightError
from tilewright.ir.diag import ModelError, TypeRuleError, UnsupportedError
from tilewright.runtime.errors import ArtifactError, ExecutionError, InputError, OptionError
from tilewright.session import Session


def says(error: BaseException, *words: str) -> None:
    """Assert that the message holds all of the words."""
    text = re.sub(r"\s+", " ", str(error))
    assert [w for w in words if w not in text] == [], text


@pytest.fixture(scope="module")
def mlp() -> tilewright.Model:
    return tilewright.compile(models.mlp(), cache=False)


# Files


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"no model at all", b"\x08\x07" * 50], ids=repr)
def test_files_that_are_no_models(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(path)
    says(caught.value, "m.onnx")


def test_every_truncation_of_a_model_is_refused(tmp_path: Path) -> None:
    whole = models.mlp().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(whole), len(whole) // 25):
        path.write_bytes(whole[:length])
        with pytest.raises(TilewrightError):
            tilewright.compile(path, cache=False)


@pytest.mark.parametrize("text", [b"MatMul", b"hidden", b"batch"], ids=["operator", "value", "dim"])
def test_a_name_that_is_not_text(tmp_path: Path, text: bytes) -> None:
    whole = models.mlp().SerializeToString()
    assert text in whole
    path = tmp_path / "m.onnx"
    path.write_bytes(whole.replace(text, b"\xff" + text[1:]))
    with pytest.raises(ModelError) as caught:
        tilewright.compile(path, cache=False)
    says(caught.value, "m.onnx", "not UTF-8", "\\xff")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        tilewright.compile(tmp_path / "nothing.onnx")
    says(caught.value, "nothing.onnx", "does not exist")


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(TilewrightError):
        tilewright.compile(tmp_path)


# Models


def test_all_unsupported_operators_at_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        tilewright.compile(models.unsupported(), cache=False)
    says(caught.value, "Frobnicate", "'first'", "Defenestrate", "'second'")


def test_an_opset_from_the_future() -> None:
    model = models.mlp()
    model.opset_import[0].version = 999
    with pytest.raises(UnsupportedError) as caught:
        tilewright.compile(model, cache=False)
    says(caught.value, "999")


def test_shapes_that_contradict_each_other() -> None:
    model = models.mlp()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 63
    with pytest.raises(TypeRuleError) as caught:
        tilewright.compile(model, cache=False)
    says(caught.value, "matmul", "63", "64", "f32", "node 'dense'")


def test_a_value_that_nothing_defines() -> None:
    model = models.mlp()
    model.graph.node[0].input[1] = "ghost"
    with pytest.raises(ModelError) as caught:
        tilewright.compile(model, cache=False)
    says(caught.value, "ghost")


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threads": 0}, ["threads=0", "from 1 to 1024, or None"]),
        ({"threads": -1}, ["threads=-1", "from 1 to 1024"]),
        ({"threads": 5000}, ["threads=5000", "from 1 to 1024"]),
        ({"threads": True}, ["threads=True", "whole number"]),
        ({"threads": "2"}, ["threads='2'", "whole number"]),
        ({"compile_threads": 0}, ["compile_threads=0", "from 1 to 1024"]),
        ({"numerics": "loose"}, ["numerics='loose'", "default, strict, fast"]),
        ({"target": 5}, ["target=5", "'zen3'"]),
        ({"cache": "no"}, ["cache='no'", "True or False"]),
        ({"verify": 1}, ["verify=1", "True or False"]),
        ({"speed": 11}, ["'speed'", "override, placement, profile, schedule, share_weights, states, strict, target"]),
        ({"options": {"threads": 1}}, ["options={'threads': 1}", "tilewright.Options"]),
        ({"session": "/tmp/cache"}, ["session='/tmp/cache'", "tilewright.Session"]),
        ({"shapes": {"x": 5}}, ["'x': 5", "list of dims"]),
        ({"shapes": {"x": "ab"}}, ["'x': 'ab'", "list of dims"]),
        ({"shapes": {"x": [1.5, 64]}}, ["1.5", "whole number"]),
        ({"shapes": {"x": [None, 64]}}, ["None", "whole number"]),
        ({"shapes": [1, 64]}, ["shapes=[1, 64]", "dict of input names"]),
        ({"constants": [1]}, ["constants=[1]", "dict of input names"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("cache", [False, True])
def test_options_out_of_range(options: dict[str, Any], words: list[str], cache: bool, tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        tilewright.compile(models.mlp(), **{"cache": cache, "session": Session(folder=tmp_path), **options})
    says(caught.value, *words)


@pytest.mark.parametrize("model", [5, None, [], np.zeros(3)], ids=repr)
def test_what_is_no_model_at_all(model: Any) -> None:
    with pytest.raises(OptionError) as caught:
        tilewright.compile(model)
    says(caught.value, f"model={model!r}", "give a path")


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    for path in ("a\0b", tmp_path / "missing"):
        with pytest.raises(ModelError):
            tilewright.compile(path, session=Session(folder=tmp_path))
        with pytest.raises(ArtifactError):
            tilewright.load(path)
    with pytest.raises(ArtifactError) as caught:
        tilewright.load(5)  # type: ignore[arg-type]
    says(caught.value, "cannot load 5", "path of a compiled model")


def test_dims_may_be_integers_of_any_kind(tmp_path: Path) -> None:
    for shape in ([2, 64], (np.int64(2), 64), np.array([2, 64])):
        model = tilewright.compile(models.mlp(), shapes={"x": shape}, session=Session(folder=tmp_path))
        assert model.inputs[0].shape == (2, 64)
    assert len(list(tmp_path.glob("*.tw"))) == 1


def test_an_unknown_target() -> None:
    with pytest.raises(TilewrightError) as caught:
        tilewright.compile(models.mlp(), target="zen99")
    says(caught.value, "zen99", "zen3")


# Calls


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"z": np.zeros((2, 64), np.float32)}, ["'z'", "x: float32[batch, 64]"]),
        ({}, ["missing", "x"]),
        ({"x": np.zeros(64, np.float32)}, ["'x'", "[64]", "x: float32[batch, 64]"]),
        ({"x": np.zeros((2, 63), np.float32)}, ["'x'", "[2, 63]", "64"]),
        ({"x": np.zeros((2, 64), np.float64)}, ["'x'", "float64", "float32"]),
        ({"x": np.zeros((2, 64), np.int32)}, ["'x'", "int32", "float32"]),
        ({"x": "text"}, ["'x'"]),
        ({"x": None}, ["'x'"]),
    ],
    ids=["name", "missing", "rank", "shape", "float64", "int32", "text", "none"],
)
def test_inputs_that_do_not_fit(mlp: tilewright.Model, inputs: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        mlp(**inputs)
    says(caught.value, *words)


def test_an_index_out_of_range_at_run_time() -> None:
    model = tilewright.compile(models.gather(), cache=False)
    (rows,) = model(np.array([4, -5]))
    assert rows.tolist() == [[8, 9], [0, 1]]
    for wrong in (5, -6, 2**62, -(2**63)):
        with pytest.raises(ExecutionError) as caught:
            model(np.array([0, wrong]))
        says(caught.value, "ids", "look_up")
    assert model(np.array([1]))[0].tolist() == [[2, 3]]  # the model is still good


def test_an_integer_division_by_zero_at_run_time() -> None:
    graph = helper.make_graph(
        [helper.make_node("Div", ["a", "b"], ["c"], name="ratio")],
        "division",
        [helper.make_tensor_value_info(n, TensorProto.INT32, ["n"]) for n in "ab"],
        [helper.make_tensor_value_info("c", TensorProto.INT32, ["n"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    model = tilewright.compile(proto, cache=False)
    a = np.array([7, -7, -(2**31)], np.int32)
    assert model(a, np.array([2, 2, 1], np.int32))[0].tolist() == [3, -3, -(2**31)]
    with pytest.raises(ExecutionError) as caught:
        model(a, np.array([1, 0, 1], np.int32))
    says(caught.value, "zero", "ratio")


# Artefacts


def test_every_truncation_of_an_artefact_is_refused(tmp_path: Path, mlp: tilewright.Model) -> None:
    path = tmp_path / "m.tw"
    mlp.save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:length])
        with pytest.raises(ArtifactError) as caught:
            tilewright.load(path)
        says(caught.value, "m.tw")


def test_flipped_bits_never_give_other_numbers(tmp_path: Path, mlp: tilewright.Model) -> None:
    path = tmp_path / "m.tw"
    mlp.save(path)
    whole = path.read_bytes()
    x = np.ones((2, 64), np.float32)
    (right,) = mlp(x)
    for position in np.random.default_rng(0).integers(0, len(whole), 40):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        try:
            (found,) = tilewright.load(path)(x)
        except ArtifactError:
            continue
        assert np.array_equal(found, right)  # the byte lies between the sections


def test_code_for_another_machine_is_refused(tmp_path: Path) -> None:
    model = tilewright.compile(models.mlp(), cache=False)
    foreign = "aarch64-neon" if "x86_64" in model.artifact.target.triple else "x86-64-v3"
    with pytest.raises(ArtifactError) as caught:
        tilewright.compile(models.mlp(), target=foreign, cache=False)
    says(caught.value, foreign.split("-")[0])


# Disks


def test_a_full_disk_leaves_no_file(
    tmp_path: Path, mlp: tilewright.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ArtifactError) as caught:
        mlp.save(tmp_path / "m.tw")
    says(caught.value, "m.tw", os.strerror(errno.ENOSPC))
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    session = Session(folder=tmp_path / "file" / "cache")  # nobody can make a folder inside of a file
    model = tilewright.compile(models.mlp(), session=session)
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(model(x)[0], models.mlp_expected(x), rtol=1e-5)


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("TILEWRIGHT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(tilewright.compile(models.mlp())(x)[0], models.mlp_expected(x), rtol=1e-5)


def test_a_damaged_entry_of_the_cache_is_replaced(tmp_path: Path) -> None:
    session = Session(folder=tmp_path)
    tilewright.compile(models.mlp(), session=session)
    (entry,) = tmp_path.glob("*.tw")
    good = entry.read_bytes()
    entry.write_bytes(good[: len(good) // 2])
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(
        tilewright.compile(models.mlp(), session=session)(x)[0], models.mlp_expected(x), rtol=1e-5
    )
    assert entry.stat().st_size == len(good)


def test_a_damaged_weight_in_the_cache_never_gives_other_numbers(tmp_path: Path) -> None:
    session = Session(folder=tmp_path)
    tilewright.compile(models.mlp(), session=session)
    (entry,) = tmp_path.glob("*.tw")
    damaged = bytearray(entry.read_bytes())
    weight = models.mlp_parameters()[1].tobytes()
    damaged[damaged.index(weight) + 2] ^= 64
    entry.write_bytes(damaged)
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(
        tilewright.compile(models.mlp(), session=session)(x)[0], models.mlp_expected(x), rtol=1e-5
    )


def test_a_cache_stays_within_its_bound(tmp_path: Path) -> None:
    session = Session(folder=tmp_path, limit=1)
    tilewright.compile(models.mlp(), session=session)
    assert list(tmp_path.glob("*.tw")) == []


def test_the_cache_is_used_and_keyed_by_content(tmp_path: Path) -> None:
    session = Session(folder=tmp_path)
    tilewright.compile(models.mlp(), session=session)
    tilewright.compile(models.mlp(), session=session)
    assert len(list(tmp_path.glob("*.tw"))) == 1
    other = models.mlp()
    other.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(32, np.float32), "b"))
    tilewright.compile(other, session=session)
    assert len(list(tmp_path.glob("*.tw"))) == 2
