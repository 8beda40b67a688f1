"""What commands write: the place is checked before any work, and nothing half-written stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import tilewright
from tests import models
from tilewright.cli.app import commands
from tilewright.cli.inputs.specs import write_outputs
from tilewright.runtime import TensorInfo
from tilewright.runtime.errors import ArtifactError

resource = pytest.importorskip("resource", reason="limits on the size of files are POSIX")

LIMIT = 200_000
"""Bytes that a file may have in `limited`: enough for one of the outputs of `two_outputs`, not for the other."""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def two_outputs(folder: Path) -> Path:
    """small = x + x; big = x spread over 1000 rows."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])
    outputs = [
        helper.make_tensor_value_info("small", TensorProto.FLOAT, [64]),
        helper.make_tensor_value_info("big", TensorProto.FLOAT, [1000, 64]),
    ]
    nodes = [
        helper.make_node("Add", ["x", "x"], ["small"]),
        helper.make_node("Expand", ["x", "shape"], ["big"]),
    ]
    shape = onnx.numpy_helper.from_array(np.array([1000, 64], np.int64), "shape")
    graph = helper.make_graph(nodes, "two", [x], outputs, [shape])
    return models.written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), folder, "two"
    )


def limited(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command in a process whose files end at `LIMIT` bytes, as on a full disk."""
    program = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT}, {LIMIT}));"
        "from tilewright.cli import main; main()"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_outputs_that_do_not_fit_the_disk_leave_nothing(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    done = limited(
        "run", two_outputs(tmp_path), "--no-cache", "--threads", 1, "--input", "random", "--output", out
    )
    assert done.returncode == 1, done.stderr
    assert f"cannot write {out / 'big.npy'}: File too large" in done.stderr and "free space" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["two.onnx"]


def test_old_outputs_stay_when_new_ones_do_not_fit_the_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "small.npy", np.arange(3))
    old = (tmp_path / "small.npy").read_bytes()
    done = limited("run", two_outputs(tmp_path), "--no-cache", "--input", "random", "--output", tmp_path)
    assert done.returncode == 1, done.stderr
    assert sorted(os.listdir(tmp_path)) == ["small.npy", "two.onnx"]
    assert (tmp_path / "small.npy").read_bytes() == old


def test_an_artefact_that_does_not_fit_the_disk_leaves_nothing(tmp_path: Path) -> None:
    weights = onnx.numpy_helper.from_array(np.ones((256, 256), np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 256]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    model = models.written(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path, "m"
    )
    done = limited("compile", model, "--no-cache")
    assert done.returncode == 1, done.stderr
    assert f"cannot write {tmp_path / 'm.tw'}: File too large" in done.stderr
    assert os.listdir(tmp_path) == ["m.onnx"]


@pytest.mark.sweep(1)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
@pytest.mark.parametrize("command", [["show"], ["explain"], ["run", "--input", "random"]])
def test_a_full_standard_output_is_named(tmp_path: Path, command: list[str]) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    line = [sys.executable, "-m", "tilewright", command[0], str(model), *command[1:]]
    with open("/dev/full", "w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=300)
    assert done.returncode == 1
    assert "error: cannot write to the standard output: No space left on device" in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("place", ["absent/m.tw", "file/m.tw"])
def test_compile_checks_the_place_of_its_output_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr("tilewright.cli.artifacts.compile_artifact", _never)
    model = models.written(models.mlp(), tmp_path, "mlp")
    (tmp_path / "file").write_text("")
    result = call("compile", model, "-o", tmp_path / place)
    assert result.exit_code == 1 and f"cannot write {tmp_path / place}" in result.output


def test_run_checks_the_place_of_its_outputs_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tilewright, "compile", _never)
    model = models.written(models.mlp(), tmp_path, "mlp")
    (tmp_path / "file").write_text("")
    result = call("run", model, "--input", "random", "--output", tmp_path / "file" / "out")
    assert result.exit_code == 1 and f"cannot write {tmp_path / 'file' / 'out'}" in result.output


def _never(*_: object, **__: object) -> None:
    raise AssertionError("this is work")


def test_a_missing_model_is_said_before_a_missing_place(tmp_path: Path) -> None:
    result = call("compile", tmp_path / "m.onnx", "-o", tmp_path / "absent" / "m.tw")
    assert result.exit_code == 1 and "does not exist" in result.output


def test_outputs_of_any_name_have_files(tmp_path: Path) -> None:
    names = ["a" * 300, "\u00e9" * 300, "..", "a/b", "a:b"]
    infos = [TensorInfo(name, "float32", (1,)) for name in names]
    paths = write_outputs(tmp_path, infos, [np.full(1, k, np.float32) for k in range(len(names))])
    assert [float(np.load(path)[0]) for path in paths] == [0, 1, 2, 3, 4]
    assert {path.parent for path in paths} == {tmp_path}


def test_an_interrupt_while_outputs_are_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = np.save

    def interrupted(file: object, array: np.ndarray) -> None:
        save(file, array)  # type: ignore[arg-type]
        if array[0]:
            raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    infos = [TensorInfo(name, "float32", (1,)) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        write_outputs(tmp_path / "new", infos, [np.full(1, k, np.float32) for k in range(2)])
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"cannot write .*out: Not a directory\n  hint"):
        write_outputs(tmp_path / "file" / "out", [], [])


def test_strings_go_in_and_come_out_as_files(tmp_path: Path) -> None:
    node = helper.make_node("StringConcat", ["x", "x"], ["y"])
    infos = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.array(["a", "bc"]))
    given = ["--input", f"x={tmp_path / 'x.npy'}", "--output", str(tmp_path / "out")]
    result = call("run", tmp_path / "m.onnx", *given)
    assert result.exit_code == 0, result.output
    assert np.load(tmp_path / "out" / "y.npy").tolist() == ["aa", "bcbc"]
    result = call("run", tmp_path / "m.onnx", "--input", "random")
    assert result.exit_code == 0, result.output


def test_a_sequence_is_not_given_on_the_command_line(tmp_path: Path) -> None:
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    info = helper.make_value_info("x", helper.make_sequence_type_proto(element))
    node = helper.make_node("SequenceLength", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [info], [helper.make_empty_tensor_value_info("y")])
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    result = call("run", tmp_path / "m.onnx", "--input", "random")
    assert result.exit_code == 1 and "cannot be given on the command line" in result.output
