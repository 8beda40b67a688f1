"""What is given in place of a model: each kind is named, with the way on, and nothing in it is run."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilewright
from tests import models
from tilewright.frontends.built_in import FRONT_ENDS
from tilewright.frontends.front_end import find_front_end
from tilewright.frontends.weights.foreign import foreign_format
from tilewright.ir.diag import ModelError

torch = pytest.importorskip("torch")


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (exec, ("raise SystemExit('it was run')",))


def zipped(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, b"{}")


def folder(path: Path, *names: str) -> None:
    path.mkdir()
    for name in names:
        (path / name).write_bytes(b"x")


def tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"), io.BytesIO())


KINDS: list[tuple[str, Callable[[Path], object], str, str]] = [
    ("a.pth", lambda p: torch.save({"w": torch.ones(2)}, p), "a checkpoint of PyTorch", "torch.export"),
    ("a.pt", lambda p: torch.save(torch.nn.Linear(2, 2), p), "a checkpoint of PyTorch", "torch.export"),
    ("a.onnx", lambda p: torch.save({"w": torch.ones(2)}, p), "a checkpoint of PyTorch", "torch.export"),
    ("a.bin", lambda p: torch.save({}, p, _use_new_zipfile_serialization=False), "a checkpoint of", "torch.export"),
    ("b.pt", lambda p: torch.jit.save(torch.jit.script(torch.nn.ReLU()), p), "TorchScript", "torch.jit.load"),
    ("c.pt", lambda p: zipped(p, "c/archive_format", "c/models/model.json"), "an exported program", ".pt2"),
    ("a.pkl", lambda p: p.write_bytes(pickle.dumps(Bomb())), "a pickled Python object", "export"),
    ("a.safetensors", lambda p: p.write_bytes((16).to_bytes(8, "little") + b'{"w":{}}        '), "weights", "module"),
    ("a.h5", lambda p: p.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64)), "HDF5", "model.export"),
    ("a.keras", lambda p: zipped(p, "metadata.json", "config.json", "model.weights.h5"), "a model of Keras", "onnx"),
    ("a.bin", lambda p: p.write_bytes(b"ggml\3\0\0\0"), "before GGUF", ".gguf"),
    ("a.pb", lambda p: p.write_bytes(b"\n\x10" + bytes(32)), "a graph of TensorFlow", "tf2onnx"),
    ("saved", lambda p: folder(p, "saved_model.pb"), "a SavedModel of TensorFlow", "tf2onnx"),
    ("hub", lambda p: folder(p, "config.json", "pytorch_model.bin"), "a folder of transformers", "safe_serialization"),
    ("models", lambda p: folder(p, "small.onnx"), "a folder, which holds small.onnx", "give one of these"),
    ("a.npz", lambda p: np.savez(p, x=np.ones(2)), "arrays of NumPy", "--input"),
    ("a.npy", lambda p: np.save(p, np.ones(2)), "arrays of NumPy", "--input"),
    ("lfs.onnx", lambda p: p.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0"), "Git LFS", "pull"),
    ("page.onnx", lambda p: p.write_text("\n<!DOCTYPE html><html>"), "a web page", "download"),
    ("a.xml", lambda p: p.write_text('<?xml version="1.0"?>\n<net name="x">'), "a model of OpenVINO", "converted"),
    ("a.ort", lambda p: p.write_bytes(b"\x20\0\0\0ORTM" + bytes(64)), "ONNX Runtime's own format", ".onnx"),
    ("a.onnx.gz", lambda p: p.write_bytes(gzip.compress(b"x")), "compressed (gzip)", "unpack"),
    ("a.tar", tar, "an archive (tar)", "unpack"),
    ("a.onnx", lambda p: tilewright.compile(models.mlp(), cache=False).save(p), "tilewright has compiled", "load"),
]


@pytest.mark.parametrize(("name", "write", "what", "hint"), KINDS)
def test_each_kind_is_named_with_the_way_on(
    tmp_path: Path, name: str, write: Callable[[Path], object], what: str, hint: str
) -> None:
    write(tmp_path / name)
    with pytest.raises(ModelError) as caught:
        tilewright.compile(tmp_path / name)
    assert what in caught.value.what and hint in (caught.value.hint or ""), str(caught.value)
    assert caught.value.where == str(tmp_path / name)


def test_bytes_are_named_too() -> None:
    with pytest.raises(ModelError, match="GGUF"):
        tilewright.compile(b"GGUF\3\0\0\0" + bytes(20))


def test_quantisation_and_checks_name_them_too(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pth")
    for use in (tilewright.check, lambda path: tilewright.quantize(path, {"x": np.ones(3)}, max_drop=0.1)):
        with pytest.raises(ModelError, match="a checkpoint of PyTorch"):
            use(tmp_path / "a.pth")


def test_models_are_none_of_these(tmp_path: Path) -> None:
    path = models.written(models.mlp(), tmp_path, "mlp")
    assert foreign_format(path) is None and foreign_format(path.read_bytes()) is None
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    torch.export.save(program, tmp_path / "linear.pt2")
    assert foreign_format(tmp_path / "linear.pt2") is None
    assert find_front_end(tmp_path / "linear.pt2", FRONT_ENDS, []) is not None
    for nothing in (tmp_path, tmp_path / "missing", b"", 3, Path("a\0b")):
        found = foreign_format(nothing)
        assert found is None or "a folder" in found.what
