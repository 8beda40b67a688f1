"""The page about schedules: its commands and its Python run, and the kernel that it shows can be made so."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests import models
from tilewright.cli.app import commands

PAGE = (Path(__file__).parent.parent.parent / "docs" / "schedules.md").read_text()
X = np.ones((8, models.FEATURES), np.float32)


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    models.written(models.mlp(), tmp_path, "model")
    return tmp_path


def run(line: str, code: int = 0) -> str:
    arguments, _, output = line.removeprefix("$ tilewright ").partition(" > ")
    result = CliRunner().invoke(commands, shlex.split(arguments))
    assert result.exit_code == code, result.output
    if output:
        Path(output).write_text(result.output)
    return result.output


def test_the_page_runs(folder: Path) -> None:
    show, *others = [line for block in blocks("console") for line in block.splitlines()]
    run(show)
    names: dict[str, np.ndarray] = {}
    (code,) = blocks("python")
    exec(compile(code, "docs/schedules.md", "exec"), names)
    np.testing.assert_allclose(names["y"], models.mlp_expected(X), rtol=1e-5)
    assert len(others) == 3
    for line in others:
        run(line)


def test_the_kernel_of_the_page(folder: Path) -> None:
    kernel, _ = blocks("text")
    model = tilewright.compile(
        "model.onnx", shapes={"x": [8, 64]}, target="x86-64-v3", cache=False, schedule=kernel.encode()
    )
    np.testing.assert_allclose(model(X)[0], models.mlp_expected(X), rtol=1e-5)


def test_the_error_of_the_page(folder: Path) -> None:
    kernel, error = blocks("text")
    Path("edited.txt").write_text(kernel.replace("split(i3, factor=2", "split(i33, factor=4"))
    said = run(
        "$ tilewright compile model.onnx --schedule edited.txt --shape x=8,64 --target x86-64-v3", code=1
    )
    assert said.strip() == error.strip()
