"""Exports that cannot be: the message says what and how to go on, and no file is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto
from onnx import helper as h

import tilewright
from tests.models import mlp
from tests.staging.models import model_of
from tilewright.exporters.library.symbols import renamed
from tilewright.runtime.errors import ArtifactError, OptionError


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("model.exe", {}, "has not the name of a library.*\n.*.so, .a, .o"),
        ("lib.so", {"name": "1st"}, "functions of C cannot begin so"),
        ("libtw_net.so", {}, "the library's own"),
        ("lib1st.so", {}, "functions of C cannot begin so"),
        ("a.so", {"weights": "outside"}, "'inside' or 'beside'"),
        ("a.so", {"freestanding": True}, "make a .a or .o"),
        ("a.o", {"freestanding": True, "weights": "beside"}, "opens no files"),
        ("a.so", {"freestanding": 1}, "give True or False"),
        ("a.so", {"cc": 'cc "-O'}, "is not a command"),
        ("a.so", {"cc": " "}, "is not a command"),
        ("a.so", {"cc": 3}, "is not a command"),
        (3, {}, "give the path of a file"),
    ],
)
def test_options(output: Any, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=message):
        tilewright.export(mlp(), tmp_path / output if isinstance(output, str) else output, **options)
    assert not list(tmp_path.iterdir())


def test_other_files_stay(tmp_path: Path) -> None:
    header = tmp_path / "net.h"
    header.write_text("#define MINE 1\n")
    with pytest.raises(ArtifactError, match="not a header of a model"):
        tilewright.export(mlp(), tmp_path / "libnet.so")
    assert [p.name for p in tmp_path.iterdir()] == ["net.h"]
    tilewright.export(mlp(), tmp_path / "libnet.so", force=True)
    tilewright.export(mlp(), tmp_path / "libnet.so")


def test_what_needs_python_is_named(tmp_path: Path) -> None:
    nodes = [h.make_node("StringConcat", ["x", "x"], ["y"])]
    with pytest.raises(tilewright.UnsupportedError, match=r"input x: string\[n\]; output y"):
        tilewright.export(model_of(nodes, [("x", TensorProto.STRING, ["n"])], ["y"], {}), tmp_path / "liba.so")
    nodes = [h.make_node("ImageDecoder", ["x"], ["y"], name="photo")]
    with pytest.raises(tilewright.UnsupportedError, match="decode_image of photo"):
        tilewright.export(model_of(nodes, [("x", TensorProto.UINT8, ["n"])], ["y"], {}), tmp_path / "libb.so")


@pytest.mark.parametrize("command", ["/nowhere/cc", "false", "cc -no-such-option"])
def test_compilers_that_fail(command: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="--cc"):
        tilewright.export(mlp(), tmp_path / "libnet.so", cc=command)
    assert not list(tmp_path.iterdir())


def test_objects_of_other_formats() -> None:
    with pytest.raises(ArtifactError, match="64-bit ELF"):
        renamed(b"\xcf\xfa\xed\xfe" + bytes(100), lambda name: name)
