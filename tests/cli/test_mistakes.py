"""What a user's mistakes get from the command line: a message, an exit code, never a traceback."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import tilewright
from tests import models
from tilewright.cli.app import commands

INPUT, USAGE, INTERNAL, INTERRUPTED = 1, 2, 3, 130


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def refuse(code: int, *arguments: object) -> str:
    """The message of a command that fails with this exit code."""
    result = call(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    path = models.written(models.mlp(), folder, "mlp")
    models.written(models.unsupported(), folder, "unsupported")
    tilewright.compile(path).save(folder / "mlp.tw")
    np.save(folder / "rank.npy", np.zeros(64, np.float32))
    np.save(folder / "dtype.npy", np.zeros((2, 64), np.float64))
    np.save(folder / "width.npy", np.zeros((2, 63), np.float32))
    (folder / "text.npy").write_text("not an array")
    np.savez(folder / "several.npz", a=np.zeros(1), b=np.zeros(1))
    (folder / "truncated.onnx").write_bytes(path.read_bytes()[:-40])
    (folder / "text.onnx").write_text("this is no model")
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "truncated.tw").write_bytes((folder / "mlp.tw").read_bytes()[:-100])
    (folder / "bad.txt").write_text("func @main(x: f32[2]) {\n  y = frob(x) : f32[2]\n  return y\n}\n")
    return folder


def test_model_files_that_cannot_be_read(folder: Path) -> None:
    assert "does not exist" in refuse(INPUT, "run", folder / "missing.onnx")
    for name in ("truncated", "text", "empty"):
        assert f"{name}.onnx" in refuse(INPUT, "compile", folder / f"{name}.onnx")
    refuse(INPUT, "compile", folder)


def test_artefacts_that_cannot_be_read(folder: Path) -> None:
    assert "missing.tw" in refuse(INPUT, "run", folder / "missing.tw")
    assert "truncated.tw" in refuse(INPUT, "run", folder / "truncated.tw")


def test_all_unsupported_operators_are_listed_with_their_nodes(folder: Path) -> None:
    said = refuse(INPUT, "compile", folder / "unsupported.onnx")
    for word in ("Frobnicate", "first", "Defenestrate", "second"):
        assert word in said


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("z=random", ["no input 'z'", "x: float32[batch, 64]"]),
        ("x=rank.npy", ["x", "[64]"]),
        ("x=dtype.npy", ["x", "float64", "float32"]),
        ("x=width.npy", ["x", "63", "64"]),
        ("x=text.npy", ["text.npy is not a .npy file"]),
        ("x=several.npz", ["several arrays"]),
        ("x=missing.npy", ["cannot read missing.npy"]),
    ],
)
def test_inputs_that_do_not_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spec: str, words: list[str]
) -> None:
    monkeypatch.chdir(folder)
    said = refuse(INPUT, "run", "mlp.tw", "--input", spec)
    for word in words:
        assert word in said


def test_inputs_that_are_missing(folder: Path) -> None:
    assert "no values are given for: x" in refuse(INPUT, "run", folder / "mlp.tw")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["run"],
        ["run", "mlp.tw", "--dim", "batch=many"],
        ["run", "mlp.tw", "--threads", "0"],
        ["run", "mlp.tw", "--target", "zen3"],
        ["run", "mlp.tw", "--numerics", "strict"],
        ["run", "mlp.tw", "--integer-only"],
        ["run", "mlp.tw", "--threads", "5000", "--input", "random"],
        ["compile", "mlp.onnx", "--target", "zen99"],
        ["compile", "mlp.onnx", "--target", "zen3,+warp"],
        ["compile", "mlp.onnx", "--target", ""],
        ["compile", "mlp.tw"],
        ["compile", "mlp.onnx", "--shape", "x"],
        ["bench", "mlp.onnx", "--vs", "abacus"],
        ["bench", "mlp.tw", "--vs", "onnxruntime"],
        ["show", "mlp.onnx", "--level", "quantum"],
        ["opt"],
    ],
)
def test_a_wrong_command_line_is_usage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(folder)
    refuse(USAGE, *arguments)


def test_unknown_names_are_listed(folder: Path) -> None:
    assert "batch" in refuse(INPUT, "run", folder / "mlp.tw", "--input", "random", "--dim", "length=3")
    assert "zen3" in refuse(USAGE, "compile", folder / "mlp.onnx", "--target", "zen99")
    assert "there are: " in refuse(INPUT, "opt", "--passes", "magic", _text(folder))
    refuse(INPUT, "opt", folder / "bad.txt")


def _text(folder: Path) -> Path:
    path = folder / "good.txt"
    path.write_text(call("show", folder / "mlp.onnx", "--level", "import").output)
    return path


def test_an_output_that_cannot_be_written(folder: Path) -> None:
    (folder / "file").write_text("")
    assert "file" in refuse(INPUT, "compile", folder / "mlp.onnx", "-o", folder / "file" / "m.tw")
    refuse(INPUT, "run", folder / "mlp.tw", "--input", "random", "--output", folder / "file" / "out")


def test_a_defect_asks_for_a_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("oops")

    monkeypatch.setattr(tilewright, "load", broken)
    assert "please report" in refuse(INTERNAL, "run", folder / "mlp.tw")
    result = call("--traceback", "run", folder / "mlp.tw")
    assert isinstance(result.exception, KeyError)


def test_an_interrupt_is_no_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tilewright, "load", interrupted)
    assert refuse(INTERRUPTED, "run", folder / "mlp.tw") == "interrupted"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "cannot read x.txt: 'utf-8' codec"),
        (b"", "x.txt has no function @main"),
        (b"\0\1\2", "x.txt"),
    ],
)
def test_texts_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_bytes(content)
    assert words in refuse(INPUT, "opt", "x.txt")
    assert "cannot read absent.txt: No such file" in refuse(INPUT, "opt", "absent.txt")
    assert "cannot read .: Is a directory" in refuse(INPUT, "opt", ".")


_NO_ROOM = b"\x93NUMPY\x01\x00\x76\x00" + (
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999,), }".ljust(117) + b"\n"
)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "x.npy is not a .npy file: it begins otherwise"),
        (b"\x80\x04garbage", "x.npy is not a .npy file: it begins otherwise"),
        (b"PK\x03\x04garbage", "x.npy is not a .npy file"),
        (b"\x93NUMPY\x01\x00garbage", "x.npy is not a .npy file"),
        (_NO_ROOM, "no memory for x.npy"),
    ],
)
def test_arrays_that_are_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.npy").write_bytes(content)
    assert words in refuse(INPUT, "run", folder / "mlp.tw", "--input", "x=x.npy")


@pytest.mark.parametrize("spec", ["random", "zeros"])
@pytest.mark.parametrize("size", [10**12, 10**17])
def test_sizes_that_no_machine_has_memory_for(folder: Path, spec: str, size: int) -> None:
    said = refuse(INPUT, "run", folder / "mlp.tw", "--input", spec, "--dim", f"batch={size}")
    assert f"no memory for input 'x': float32[{size}, 64]" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "mlp.tw", "--input", "x=zeros", "--input", "x=random"], "--input is given twice for x"),
        (["run", "mlp.tw", "--input", "zeros", "--input", "random"], "--input is given twice without NAME="),
        (["run", "mlp.tw", "--dim", "batch=2", "--dim", "batch=3"], "--dim is given twice for batch"),
        (["run", "mlp.tw", "--dim", "=2"], "--dim =2: write NAME=SIZE"),
        (["run", "mlp.tw", "--dim", "batch=-2"], "--dim batch=-2: write NAME=SIZE"),
        (["run", "mlp.tw", "--dim", "batch=\u00b2"], "write NAME=SIZE"),
        (["run", "mlp.tw", "--dim", "batch=" + "9" * 5000], "write NAME=SIZE"),
        (["run", "mlp.tw", "--constant", "x=1"], "mlp.tw is compiled already"),
        (["run", "mlp.onnx", "--shape", "x=1,,64"], "--shape x=1,,64: write NAME=DIMS"),
        (["run", "mlp.onnx", "--shape", "x=-1,64"], "--shape x=-1,64: write NAME=DIMS"),
        (["bench", "mlp.onnx", "--turn", "nan"], "nan is not a finite number"),
        (["bench", "mlp.onnx", "--turn", "inf"], "inf is not a finite number"),
        (["cache", "clear", "--unused", "nan"], "nan is not a finite number"),
        (["cache", "empty"], "No such command 'empty'"),
        (["show", "mlp.onnx", "--kernel", "k0"], "the level graph has no kernels"),
        (["compile", "mlp.onnx", "--target", "graviton9"], "did you mean 'graviton"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(folder)
    assert words in refuse(USAGE, *arguments)


def test_explain_needs_no_machine_that_runs_the_code(folder: Path) -> None:
    other = "neoverse-n1" if platform.machine() == "x86_64" else "x86-64-v3"
    result = call("explain", folder / "mlp.onnx", "--target", other, "--no-cache")
    assert result.exit_code == 0 and "kernels" in result.output


def command(*arguments: object, **named: Any) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tilewright", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, **named)


def test_names_that_the_terminal_cannot_show(tmp_path: Path) -> None:
    model = models.mlp()
    model.graph.node[-1].output[0] = model.graph.output[0].name = "\u00e9"
    path = models.written(model, tmp_path, "accent")
    done = command("run", path, "--input", "zeros", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0 and "\\xe9" in done.stdout, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="the shell is POSIX's")
def test_a_reader_that_goes_and_streams_that_are_closed(folder: Path) -> None:
    python = shlex.quote(sys.executable)
    for rest in (f"show {folder}/mlp.onnx --level asm | head -n 1", f"info {folder} >&- 2>&-", "info >&-"):
        done = subprocess.run(
            ["sh", "-c", f"{python} -m tilewright {rest}"], capture_output=True, text=True, timeout=300
        )
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr, done.stderr


def test_no_home_and_no_cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for changes in (
        {"HOME": "/nonexistent", "TILEWRIGHT_CACHE": ""},
        {"TILEWRIGHT_CACHE": f"{tmp_path}/file/c"},
    ):
        with monkeypatch.context() as patch:
            for name, value in changes.items():
                patch.setenv(name, value)
            done = call("run", folder / "mlp.onnx", "--input", "zeros")
        assert done.exit_code == 0, done.output


WRONG = (
    # command, exit code, type of the error, words of it
    (("run", "nope.onnx", "--input", "random"), 1, "ModelError", "does not exist"),
    (("compile", "nope.onnx"), 1, "ModelError", "does not exist"),
    (("bench", "nope.onnx"), 1, "ModelError", "does not exist"),
    (("check", "nope.onnx"), 1, "ModelError", "does not exist"),
    (("explain", "nope.onnx"), 1, "ModelError", "does not exist"),
    (("inspect", "nope.onnx"), 1, "", ""),
    (("diff", "nope.onnx", "nope.onnx"), 1, "", ""),
    (("run", "mlp.onnx", "--input", "x=abc"), 1, "InputError", "neither a number"),
    (("run", "mlp.onnx", "--input", "random", "--target", "nope"), 2, "TargetError", "unknown target"),
    (("run", "mlp.onnx", "--input", "random", "--dim", "batch"), 2, "UsageError", "NAME=SIZE"),
    (("info", "--nope"), 2, "NoSuchOption", "--nope"),
)


@pytest.mark.parametrize(("arguments", "code", "type", "words"), WRONG, ids=lambda v: str(v)[:40])
def test_errors_are_json_where_that_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, type: str, words: str
) -> None:
    models.written(models.mlp(), folder, "mlp")
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(commands, [arguments[0], "--json", *arguments[1:]])
    record = json.loads(result.stdout)
    assert result.exit_code == code == record["exit code"]
    assert set(record["error"]) == {"type", "what", "where", "hint"}
    assert record["error"]["type"].startswith(type) and words in record["error"]["what"]
    assert record["error"]["what"].splitlines()[0] in result.stderr  # people are told as ever


def test_a_defect_is_json_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a fault of the test")

    monkeypatch.setattr("tilewright.cli.commands.check.check", fail)
    result = CliRunner().invoke(commands, ["check", "--json", str(folder / "mlp.onnx")])
    assert result.exit_code == 3 and json.loads(result.stdout)["error"]["type"] == "KeyError"
