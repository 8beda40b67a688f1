"""The recipes of the page about deploying run, and its table says what the package says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import tour

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")


def test_its_code_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for found, printed in tour.blocks(PAGE):
        assert tour.shown(printed) == (found["output"] or "")


def test_its_versions_are_those_of_the_package() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', project)
    (torch,) = re.findall(r'"torch>=([\d.]+)"', project)
    assert f"| Python | {python} and newer |" in PAGE and f"| PyTorch | {torch} (" in PAGE


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    code = "import sys; from tilewright.cli import main; sys.argv = ['tilewright']; main()"
    made = subprocess.run(
        [sys.executable, "-c", code], env={"_TILEWRIGHT_COMPLETE": f"{shell}_source", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "_TILEWRIGHT_COMPLETE" in made.stdout, made.stderr
