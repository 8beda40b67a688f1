"""Frequent sizes on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tilewright
from tests import models
from tilewright.cli.app import commands


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def succeed(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.written(models.mlp(), tmp_path, "mlp")


def test_compile_says_what_each_variant_adds(mlp: Path) -> None:
    said = succeed("compile", mlp, "--frequent", "batch=1", "--frequent", "batch=8", "--report")
    assert "for batch=1: 2 kernels, 0.0 MB more" in said and "for batch=8: 2 kernels" in said
    assert "variants:" in said and "outputs: y: float32[8, 32]" in said
    found = tilewright.load(mlp.with_suffix(".tw")).artifact.variants
    assert [v.text for v in found] == ["batch=1", "batch=8"]


def test_other_commands_take_them(mlp: Path) -> None:
    assert "2 kernels of a variant for batch=4" in succeed("explain", mlp, "--frequent", "batch=4")
    assert "f32[4, 64]" in succeed("show", mlp, "--frequent", "batch=4")
    assert "float32[4, 32]" in succeed("run", mlp, "--frequent", "batch=4", "--dim", "batch=4", "--input", "random")
    said = succeed("bench", mlp, "--frequent", "batch=4", "--dim", "batch=4", "--kernels", "--rounds", 2)
    assert "the variant for batch=4" in said and "k2_" in said and "k0_" not in said
    said = succeed("bench", mlp, "--frequent", "batch=4", "--dim", "batch=5", "--kernels", "--rounds", 2)
    assert "variant" not in said and "k0_" in said
    assert call("check", mlp, "--frequent", "batch=4").exit_code == 0


def test_sizes_of_runs_are_added_up(mlp: Path, tmp_path: Path) -> None:
    file = tmp_path / "sizes.json"
    for batch in (3, 5, 3):
        succeed("run", mlp, "--input", "random", "--dim", f"batch={batch}", "--sizes-seen", file)
    assert json.loads(file.read_text()) == [
        {"calls": 2, "sizes": {"batch": 3}},
        {"calls": 1, "sizes": {"batch": 5}},
    ]
    succeed("compile", mlp, "--frequent", file)
    found = tilewright.load(mlp.with_suffix(".tw")).artifact.variants
    assert [v.text for v in found] == ["batch=3", "batch=5"]


@pytest.mark.parametrize("text", ["batch", "=3", "batch=", "batch=x", "batch=-1", "batch=1,batch=2", "batch=1,", ""])
def test_what_is_no_size(mlp: Path, text: str) -> None:
    result = call("compile", mlp, "--frequent", text)
    assert result.exit_code == 2 and f"--frequent {text}: write sizes of different dims" in result.output


def test_dims_that_there_are_not(mlp: Path) -> None:
    for command in (["compile", mlp], ["check", mlp], ["show", mlp]):
        result = call(*command, "--frequent", "width=3")
        assert result.exit_code == 2 and "no symbolic dim 'width'; its symbolic dims are: batch" in result.output


def test_artefacts_have_theirs(mlp: Path) -> None:
    succeed("compile", mlp)
    result = call("run", mlp.with_suffix(".tw"), "--input", "random", "--frequent", "batch=1")
    assert result.exit_code == 2 and "mlp.tw is compiled already" in result.output


@pytest.mark.parametrize("text", ["", "[1]", '[{"calls": 1}]', '[{"calls": "x", "sizes": {"batch": 1}}]', "[" * 9999])
def test_files_that_hold_no_sizes(mlp: Path, tmp_path: Path, text: str) -> None:
    file = tmp_path / "sizes.json"
    file.write_text(text)
    result = call("compile", mlp, "--frequent", file)
    assert result.exit_code == 1 and "does not hold sizes" in result.output and "--sizes-seen" in result.output


def test_a_file_that_is_not_there(mlp: Path, tmp_path: Path) -> None:
    result = call("compile", mlp, "--frequent", tmp_path / "none.json")
    assert result.exit_code == 1 and "cannot read" in result.output
