"""`tilewright inspect` and `tilewright sign` on compiled models."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.runtime.native import dynamic_artifact
from tests.runtime.test_signing import new_key
from tilewright.cli.app import commands
from tilewright.runtime import Artifact


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(commands, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    dynamic_artifact().save(tmp_path / "model.tw")
    return tmp_path / "model.tw"


def test_what_a_compiled_model_is(model: Path) -> None:
    said = call("inspect", model)
    assert said.startswith("model.tw: (x: float32[n, m], y: float32[n, m]) -> (z: float32[n, m])\nmade by: ")
    for line in (
        "format 13", "signed by: nobody", "made for: generic (", "CPU features: none beyond the baseline",
        "code: 7 functions, which need clock_gettime, ", "section: image 4.094 KiB (",
        "section: weights 0 B (00000000)",
    ):
        assert line in said
    told = json.loads(call("inspect", model, "--json"))["artifact"]
    assert told["size"] == model.stat().st_size and "pthread_create" in told["imports"]
    assert told["inputs"] == ["x: float32[n, m]", "y: float32[n, m]"] and told["signed_by"] == ""


def test_what_a_file_says_of_itself_is_one_line_each(model: Path) -> None:
    """Else a file could say who has signed it."""
    lie = "x\nsigned by: somebody\nmade for: all"
    artifact = Artifact.load(model)
    target = dataclasses.replace(artifact.target, cpu=lie, features=(lie,) * 200)
    dataclasses.replace(artifact, producer=lie, target=target).save(model)
    said = call("inspect", model).splitlines()
    assert [line for line in said if line.startswith("signed by")] == ["signed by: nobody"]
    assert "made by: x\\nsigned by: somebody\\nmade for: all, format 13" in said
    assert max(map(len, said)) < 2100


def test_a_model_is_signed_and_says_so(model: Path, tmp_path: Path) -> None:
    private, _ = new_key(tmp_path, "mine")
    said = call("sign", model, "--key", private, "-o", tmp_path / "signed.tw")
    key = said.split()[-1]
    assert f"signed by: {key} (not checked)" in call("inspect", tmp_path / "signed.tw")
    assert json.loads(call("sign", model, "--key", private, "--json")) == {"output": str(model), "signed_by": key}
    assert model.read_bytes() == (tmp_path / "signed.tw").read_bytes()
    assert "the key cannot be read" in call("sign", model, "--key", model, code=2)
    private.rename(tmp_path / "model.onnx")
    assert "is not a compiled model" in call("sign", tmp_path / "model.onnx", "--key", model, code=1)
