"""Weights of .safetensors files: right ones are mapped, and no header makes anything but an error."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import tilewright
from tilewright.cli.app import commands
from tilewright.frontends.weights.folders import read_folder, read_stored
from tilewright.frontends.weights.safetensors import read_safetensors
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.runtime.errors import OptionError, TilewrightError

W = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.array([1, -2, 0.5], ml_dtypes.bfloat16)
ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def written(folder: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """A file with a header (JSON data, or bytes as they are) and these elements."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def weights(folder: Path) -> Path:
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [48, 54]},
    }
    text = json.dumps(header).encode()
    return written(folder, text.ljust(-(-len(text) // 8) * 8), W.tobytes() + B.tobytes())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["product"]),
            helper.make_node("Cast", ["b"], ["bias"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["product", "bias"], ["y"]),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]),
            helper.make_tensor_value_info("b", TensorProto.BFLOAT16, [3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_inputs_are_bound_to_the_tensors_of_a_file(model: Path, tmp_path: Path) -> None:
    path = weights(tmp_path)
    compiled = tilewright.compile(model, constants=path, threads=1, session=tilewright.Session(tmp_path / "cache"))
    os.replace(written(tmp_path / "..", {}), path)  # the model has its own copy
    assert [info.name for info in compiled.inputs] == ["x"]
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(compiled(x)[0], x @ W + B.astype(np.float32), rtol=1e-6)


def test_the_command_line(model: Path, tmp_path: Path) -> None:
    path, out = weights(tmp_path), tmp_path / "m.tw"
    command = ["compile", str(model), "--no-cache", "-o", str(out), "--constant", str(path)]
    result = CliRunner().invoke(commands, command)
    assert result.exit_code == 0, result.output
    assert len(tilewright.load(out, threads=1).inputs) == 1
    result = CliRunner().invoke(commands, [*command, "--constant", "b=[1,2,3]"])
    assert result.exit_code == 2 and "--constant is given twice for b" in result.output


def test_other_arguments(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"a file of constants is a \.safetensors file"):
        tilewright.compile(model, constants=tmp_path / "w.pt", cache=False)
    with pytest.raises(OptionError, match=r"hint: or the path of a \.safetensors file"):
        tilewright.compile(model, constants=[1], cache=False)  # type: ignore[arg-type]
    path = written(tmp_path, {"other": ENTRY}, bytes(8))
    with pytest.raises(ModelError, match="constants= names 'other', which is no input of the model"):
        tilewright.compile(model, constants=str(path), cache=False)


def test_arrays_are_read_only_views_of_the_file(tmp_path: Path) -> None:
    found = read_safetensors(weights(tmp_path))
    np.testing.assert_array_equal(found["w"], W)
    np.testing.assert_array_equal(found["b"], B)
    assert found["b"].dtype == ml_dtypes.bfloat16 and not any(array.flags.writeable for array in found.values())


def test_shapes_and_dtypes(tmp_path: Path) -> None:
    header = {
        "odd": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "far": {"dtype": "F64", "shape": [], "data_offsets": [3, 11]},
        "none": {"dtype": "I64", "shape": [0, 5], "data_offsets": [11, 11]},
        "flag": {"dtype": "BOOL", "shape": [2, 1], "data_offsets": [11, 13]},
        "small": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [13, 14]},
    }
    one = np.ones(1, ml_dtypes.float8_e4m3fn).tobytes()
    found = read_safetensors(written(tmp_path, header, bytes([1, 2, 3]) + np.float64(2.5).tobytes() + b"\1\0" + one))
    assert found["odd"].tolist() == [1, 2, 3] and found["far"].shape == () and found["far"] == 2.5
    assert found["far"].flags.aligned and found["none"].shape == (0, 5)
    assert found["flag"].tolist() == [[True], [False]] and found["small"].astype(float) == 1


def test_files_of_the_package_itself(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy")
    tensors = {"a": W, "b": np.array([True, False]), "c": np.array(7), "d": np.zeros((0, 2), np.float16)}
    package.save_file(tensors, tmp_path / "w.safetensors", {"made by": "a test"})
    found = read_safetensors(tmp_path / "w.safetensors")
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def entry(**other: Any) -> dict[str, Any]:
    return {"w": {**ENTRY, **other}}


DAMAGED: list[tuple[Any, str]] = [
    (b"", "does not begin with {"),
    (b"[]", "does not begin with {"),
    (b"{", "no JSON of tensors"),
    (b"{\xff}", "no JSON of tensors"),
    (b"{" * 100_000, "no JSON of tensors"),
    (b'{"w": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "no JSON of tensors|not made of dtype"),
    (b'{"w": ' + b"9" * 5000 + b"}", "no JSON of tensors"),
    (b'{"w": NaN}', "NaN is no number"),
    (b'{"\\ud800": 1}', "no JSON of tensors"),
    (b'{"w": {"dtype": "F32", "shape": [2], "shape": [2], "data_offsets": [0, 8]}}', "a name is there twice"),
    ({"__metadata__": {"a": 1}, **entry()}, "__metadata__ holds other things"),
    ({"__metadata__": [], **entry()}, "__metadata__ holds other things"),
    ({"w": 5}, "not made of dtype, shape and data_offsets"),
    (entry(pickle="os.system"), "not made of dtype, shape and data_offsets"),
    ({"w": {"dtype": "F32", "shape": [2]}}, "not made of dtype, shape and data_offsets"),
    (entry(dtype="F128"), "'F128' is no dtype of the format"),
    (entry(dtype=["F32"]), "is no dtype of the format"),
    (entry(shape=[-2]), "the shape .* is not possible"),
    (entry(shape=[True, 2]), "the shape .* is not possible"),
    (entry(shape=[2.0]), "the shape .* is not possible"),
    (entry(shape="2"), "the shape .* is not possible"),
    (entry(shape=[2**62, 0]), "the shape .* is not possible"),
    (entry(shape=[2**32, 2**32]), "the shape .* is not possible"),
    (entry(shape=[1] * 65), "the shape .* is not possible"),
    (entry(shape=[3]), r"F32\[3\] takes 12 bytes, the header gives 8"),
    (entry(data_offsets=[0]), "the offsets .* are not possible"),
    (entry(data_offsets=[8, 0]), "the offsets .* are not possible"),
    (entry(data_offsets=[-8, 0]), "the offsets .* are not possible"),
    (entry(data_offsets=[0, 2**70]), "the offsets .* are not possible"),
    (entry(data_offsets=[0, 2**40]), "the tensors take 1099511627776 bytes, the file has 8"),
    (entry(data_offsets=[4, 12]), "its elements begin at 4"),
    ({"a": ENTRY, "b": ENTRY}, "its elements begin at 0, those of the tensor before end at 8"),
    ({}, "the tensors take 0 bytes, the file has 8"),
    (entry(dtype="BOOL", shape=[8]), "a truth value is neither 0 nor 1"),
]


@pytest.mark.parametrize(("header", "message"), DAMAGED, ids=range(len(DAMAGED)))
def test_hostile_headers(tmp_path: Path, header: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_safetensors(written(tmp_path, header, b"\7" * 8))


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 10**9, 200])
def test_hostile_lengths(tmp_path: Path, length: int) -> None:
    with pytest.raises(ModelError, match=f"the header should have {length} bytes"):
        read_safetensors(written(tmp_path, {}, length=length))


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "short.safetensors").write_bytes(b"\1\2")
    for path, message in (
        (tmp_path / "short.safetensors", "the header should have 513 bytes, the file has 2"),
        (tmp_path / "missing.safetensors", "cannot be read: No such file"),
        (tmp_path, "cannot be read|not a regular file"),
        (Path("a\0b.safetensors"), "cannot be read"),
        (Path("/dev/zero"), "not a regular file"),
    ):
        with pytest.raises(ModelError, match=message):
            read_safetensors(path)


def test_every_dtype_without_a_counterpart_is_named(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]},
        "b": {"dtype": "C64", "shape": [1], "data_offsets": [2, 10]},
    }
    with pytest.raises(UnsupportedError, match="'a' is F4, 'b' is C64"):
        read_safetensors(written(tmp_path, header, bytes(10)))


def test_damaged_bytes_are_errors_or_arrays_within_the_file(tmp_path: Path) -> None:
    whole, rng = weights(tmp_path).read_bytes(), np.random.default_rng(0)
    path = tmp_path / "damaged.safetensors"
    for _ in range(300):
        data = bytearray(whole)
        for at in rng.integers(0, 200, rng.integers(1, 4)):
            data[at] = rng.choice(list(b'0123456789-[]{}",:\0\xffFUB'))
        path.write_bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.2 else data)
        try:
            found = read_safetensors(path)
        except TilewrightError:
            continue
        assert sum(array.nbytes for array in found.values()) == 54
        assert all(np.isfinite(array.astype(np.float64)).sum() >= 0 for array in found.values())


# As stored weights, and folders of several files


def test_stored_weights_are_views_of_the_file(tmp_path: Path) -> None:
    found = read_stored(weights(tmp_path))
    assert [(t.name, t.kind.name, t.shape) for t in found.values()] == [("w", "F32", (4, 3)), ("b", "BF16", (3,))]
    np.testing.assert_array_equal(found["w"].decoded(), W)
    np.testing.assert_array_equal(found["b"].elements(), B)
    assert not found["w"].data.flags.writeable


@pytest.mark.parametrize(
    "header",
    [b'{"a":[' + b"[]," * 600_000 + b"[]]}", b'{"a":"' + "é".encode() * 9_000_000 + b'"}', b"{" + b'"":[{' * 600_000],
    ids=["lists", "text", "open"],
)
def test_headers_that_would_take_more_memory_than_the_file(header: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="values, which take more memory than the file"):
        read_safetensors(written(tmp_path, header))


def folder(path: Path) -> Path:
    """Two tensors in two files, with an index."""
    places = {"one": "model-00001-of-00002.safetensors", "two": "model-00002-of-00002.safetensors"}
    for k, (name, file) in enumerate(places.items(), 1):
        os.replace(written(path, {name: ENTRY}, np.full(2, k, np.float32).tobytes()), path / file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return path


def test_a_folder_with_an_index(tmp_path: Path) -> None:
    found = read_folder(folder(tmp_path))
    assert {name: t.decoded().tolist() for name, t in found.items()} == {"one": [1, 1], "two": [2, 2]}


@pytest.mark.parametrize("name", ["model.safetensors", "any.safetensors"])
def test_a_folder_of_one_file(name: str, tmp_path: Path) -> None:
    os.replace(weights(tmp_path), tmp_path / name)
    assert list(read_folder(tmp_path)) == ["w", "b"]


def test_folders_that_are_not_whole(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the folder has 0 \.safetensors files and no model"):
        read_folder(tmp_path)
    for missing in (tmp_path / "none", weights(tmp_path)):
        with pytest.raises(ModelError, match=r"the folder cannot be read: (No such|Not a)"):
            read_folder(missing)
    missing.rename(tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match=r"the folder has 2 \.safetensors files and no model.safetensors.index.json"):
        read_folder(tmp_path)
    index = folder(tmp_path) / "model.safetensors.index.json"
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="the weights cannot be read: No such file"):
        read_folder(tmp_path)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(("one", "t"), "model-00001-of-00002.safetensors")}))
    with pytest.raises(ModelError, match=r"'t' is not in model-00001-of-00002\.safetensors, where the index says"):
        read_folder(tmp_path)
    index.unlink()
    index.mkdir()
    with pytest.raises(ModelError, match="the index cannot be read: Is a directory"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("", "the index is no JSON"),
        ("[]", "the index is no JSON object"),
        ("{}", "the index has no weight_map"),
        ('{"weight_map": {"a": 1}}', "the index has no weight_map of names"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "a name is there twice"),
        ('{"weight_map": {"a": "../w.safetensors"}}', r"names the file '\.\./w\.safetensors', which is no"),
        ('{"weight_map": {"a": "/etc/w.safetensors"}}', "names the file '/etc/w.safetensors'"),
        ('{"weight_map": {"a": "w.bin"}}', "names the file 'w.bin'"),
        ('{"weight_map": {"a": "w\\u0000.safetensors"}}', "names the file"),
        ('{"weight_map": ' + "[" * 100_000, "the index is no JSON"),
        ('{"weight_map": [' + "1," * 600_000 + "1]}", "the index of .* values, which take more memory than the file"),
    ],
)
def test_an_index_that_lies(index: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=message) as error:
        read_folder(tmp_path)
    assert "hint" in str(error.value)
