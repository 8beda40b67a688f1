"""The commands say which dims are taken for equal."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

import tilewright
from tests.broadcasting.test_both_meanings import sums
from tilewright.cli.app import commands


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(sums(), tmp_path / "sums.onnx")
    return tmp_path / "sums.onnx"


def output(*args: str, code: int = 0) -> str:
    result = CliRunner().invoke(commands, args)
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_check(model: Path) -> None:
    said = output("check", str(model))
    assert "dims that are broadcast, and taken for equal" in said
    assert "Add: a == b, or one of them is 1: calls of that kind have a program of their own" in said
    assert "the_sum" in said


def test_explain_and_inspect(model: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "sums.tw"
    said = output("compile", str(model), "-o", str(compiled), "--no-cache")
    assert "for dims that are 1 where others are not: 2 kernels, 0.0 MB more" in said
    for source in (model, compiled):
        said = output("explain", str(source))
        assert "assumed of the dims, and checked when the model is called" in said
        assert "a == b or one of them is 1" in said
        assert "kernels of the program for dims that are 1 where others are not" in said
    said = output("inspect", str(compiled))
    assert "(x: float32[a, 64], y: float32[b, 64]) -> (z: float32[a, 64]) where a == b or one of them is 1" in said


def test_programs_are_shown(model: Path) -> None:
    assert "select(b == 1, a, b)" in output("show", str(model), "--level", "graph")
    assert list(tilewright.stages.programs(model, "graph")) == ["main", "broadcasting: main"]
