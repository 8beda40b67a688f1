"""The page about language models is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from docs import tour
from tests.llm.checkpoints import model_file
from tilewright.cli.app import commands

PAGE = Path(__file__).parent.parent.parent / "docs" / "language-models.md"


def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_file(tmp_path / "model.gguf")
    (_, printed), *_ = tour.blocks(PAGE.read_text())
    assert "length" in printed or "end" in printed


def test_its_costs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    model_file(tmp_path / "model.gguf")
    lines = [line.removeprefix("$ tilewright ") for line in PAGE.read_text().splitlines() if "tilewright cost" in line]
    assert len(lines) == 3
    for line in lines:
        result = CliRunner().invoke(commands, [word.replace("512", "64") for word in line.split()])
        assert result.exit_code == 0, result.output
        assert "operations" in result.stdout


def test_its_commands_have_the_options_that_it_shows() -> None:
    for command in ("generate", "chat", "cost", "score", "compile", "inspect"):
        told = CliRunner().invoke(commands, [command, "--help"]).output
        lines = [line for line in PAGE.read_text().splitlines() if line.startswith(f"$ tilewright {command}")]
        options = {word for line in lines for word in line.split() if word.startswith("--")}
        assert (options or command == "inspect") and all(option in told for option in options)
