"""Inputs of calls are kept in files, in bounded room, and read back; without that calls are as they were."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.models import mlp, written
from tilewright.cli.app import commands
from tilewright.quantization.data import open_data
from tilewright.runtime import Model
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.kept import recorder
from tilewright.validation.recorded import feeds_of

RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def model() -> Model:
    return tilewright.compile(mlp(), cache=False, threads=1)


def rows(count: int) -> np.ndarray:
    return RNG.standard_normal((count, 64)).astype(np.float32)


def test_calls_are_kept_and_read_back(model: Model, tmp_path: Path) -> None:
    plain = model._is_plain
    model.record(tmp_path / "calls")
    xs = [rows(n) for n in (1, 5, 3)]
    results = [model(x)[0] for x in xs]
    with pytest.raises(tilewright.TilewrightError):
        model(np.zeros((2, 63), np.float32))  # is not kept
    model.stop_recording()
    (after,) = model(xs[1])
    assert np.array_equal(after, results[1]) and model._is_plain is plain
    data = open_data(tmp_path / "calls", model.inputs)
    for feeds in (feeds_of(tmp_path / "calls"), [sample.feed for sample in data.samples("all")]):
        assert np.array_equal(np.concatenate([f["x"] for f in feeds]), np.concatenate(xs))


def test_room_is_bounded(model: Model, tmp_path: Path) -> None:
    model.record(tmp_path, calls=4)
    for _ in range(40):
        model(rows(1))
    assert len(list(tmp_path.iterdir())) == 4
    model.record(tmp_path, max_bytes=10_000)
    for _ in range(40):
        model(rows(8))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10_000
    model.stop_recording()


def test_a_folder_is_for_one_recording(model: Model, tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    other = Model(model.artifact, 1)
    model.record(tmp_path)
    model(rows(1))
    with pytest.raises(tilewright.TilewrightError, match="another model records its calls"):
        other.record(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    model.record(tmp_path)  # one's own begins anew
    model.stop_recording()
    other.record(tmp_path)
    del other
    model.record(tmp_path)
    model.stop_recording()


def test_what_cannot_be_written_costs_the_recording_alone(model: Model, tmp_path: Path) -> None:
    model.record(tmp_path / "calls")
    (tmp_path / "calls").rmdir()
    with pytest.warns(tilewright.TilewrightWarning, match="not recorded any more"):
        (y,) = model(rows(2))
    assert y.shape == (2, 32)
    (tmp_path / "file").write_text("x")
    with pytest.raises(tilewright.TilewrightError, match="cannot write"):
        model.record(tmp_path / "file" / "calls")
    for wrong in ({"calls": 0}, {"max_bytes": True}):
        with pytest.raises(tilewright.OptionError, match="is not allowed"):
            model.record(tmp_path, **wrong)  # type: ignore[arg-type]
    with pytest.raises(tilewright.OptionError, match="path of a folder"):
        model.record("")


def test_calls_are_kept_as_the_model_reads_them(model: Model, tmp_path: Path) -> None:
    mine = tmp_path / "call-of-mine.npz"
    mine.write_bytes(b"not of a recording")
    model.record(tmp_path)
    model(np.ones((2, 64), np.float32).tolist())
    model([[1] * 64])
    model(OnlyDlpack(rows(3)))
    model.stop_recording()
    assert mine.read_bytes() == b"not of a recording"
    mine.unlink()
    assert [(f["x"].dtype, len(f["x"])) for f in feeds_of(tmp_path)] == [(np.float32, n) for n in (2, 1, 3)]


class OnlyDlpack:
    """A tensor of a package that NumPy does not know."""

    def __init__(self, array: np.ndarray) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=RNG.standard_normal(1000))
    data = bytearray((tmp_path / "a.npz").read_bytes())
    local, central = data.find(b"PK\x03\x04"), data.find(b"PK\x01\x02")
    changes = {"flag of encryption": (6, 8, 1), "method": (8, 10, 99)}
    for a, b, value in changes.values():
        other = bytearray(data)
        other[local + a] = other[central + b] = value
        (tmp_path / "a.npz").write_bytes(other)
        with pytest.raises(tilewright.InputError):
            feeds_of(tmp_path)
    data[local + 200 : local + 240] = b"\xff" * 40
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(tilewright.InputError):
        feeds_of(tmp_path)


def test_files_become_recorded_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(mlp(), tmp_path, "mlp")
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", rows(2))
    files = [str(tmp_path / f"{name}.npy") for name in "ab"]
    made = CliRunner().invoke(commands, ["record", str(path), *files, "-o", str(tmp_path / "calls")])
    assert made.exit_code == 0, made.output
    assert "2 of 2 calls" in made.output
    np.save(tmp_path / "wrong.npy", np.ones((2, 63), np.float32))
    for wrong in (["missing.npy"], ["a.npy", "missing.npy"], ["wrong.npy"]):
        args = ["record", str(path), *(str(tmp_path / name) for name in wrong), "-o", str(tmp_path / "calls")]
        made = CliRunner().invoke(commands, args)
        assert made.exit_code == 1 and wrong[-1] in made.output
        assert len(list((tmp_path / "calls").iterdir())) == 2  # an earlier recording stays
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "packed", lambda arrays: (_ for _ in ()).throw(ArtifactError("no space")))
        made = CliRunner().invoke(commands, ["record", str(path), files[0], "-o", str(tmp_path / "full")])
    assert made.exit_code == 1 and "no space" in made.output
    output = tmp_path / "mlp.tw"
    fields = ["--validate", "--recorded", str(tmp_path / "calls"), "--no-cache", "--json"]
    made = CliRunner().invoke(commands, ["compile", str(path), "-o", str(output), *fields])
    assert made.exit_code == 0, made.output
    assert "compute what they are made of" in made.output
    made = CliRunner().invoke(commands, ["compile", str(path), "-o", str(output), "--recorded", str(tmp_path)])
    assert made.exit_code == 2 and "--recorded is for --validate" in made.output
