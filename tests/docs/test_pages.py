"""The documents are true: their code runs, and the pages made from code are those of today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bench import table
from docs import operators, tour
from tests import models
from tilewright.cli.app import commands

ROOT = Path(__file__).parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tour.PAGE.read_text()
    ran = list(tour.blocks(page))
    assert len(ran) == page.count("```python") > 10
    for found, output in ran:
        assert bool(output) == (found["output"] is not None), f"run `make docs`: {found['code'][:200]}"


def test_the_operator_page_is_up_to_date() -> None:
    assert operators.PAGE.read_text() == operators.page(), "run `make docs`"


def test_the_table_of_results_is_up_to_date() -> None:
    readme = table.README.read_text()
    assert table.with_table(readme, table.load()) == readme, "run `make docs`"


def test_a_table_shows_losses_and_gaps() -> None:
    rows = [
        {"model": "a", "threads": 1, "tilewright": 2.0, "onnxruntime": 4.0, "openvino": 1.0},
        {"model": "b", "threads": 2, "tilewright": 150.4, "onnxruntime": 300.8, "openvino": None},
    ]
    made = table.table({"machine": "M", "date": "D", "rows": rows})
    assert "| a | 1 | 2 | 4 | 1 | 2.00 |" in made
    assert "| b | 2 | 150 | 301 |  | 0.50 |" in made
    assert "1.00. M; D." in made


def readme_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_python_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models.written(models.mlp(), tmp_path, "model")
    names: dict[str, object] = {}
    (code,) = readme_blocks("python")
    exec(compile(code, "README.md", "exec"), names)
    x = np.ones((3, models.FEATURES), np.float32)
    np.testing.assert_allclose(names["y"], models.mlp_expected(x), rtol=1e-5)


def test_the_commands_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    models.written(models.mlp(), tmp_path, "model")
    (block,) = readme_blocks("console")
    lines = [shlex.split(line.removeprefix("$ ")) for line in block.splitlines()]
    ours = [arguments for name, *arguments in lines if name == "tilewright"]
    assert len(ours) >= 5
    for arguments in ours:
        result = CliRunner().invoke(commands, arguments)
        assert result.exit_code == 0, (arguments, result.output)
    assert np.load("results/y.npy").shape == (3, models.CLASSES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", page.read_text())
    assert [t for t in targets if "://" not in t and not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"`((?:tilewright|tests|docs|bench)/[\w/.]+\.(?:py|md|json))`", page.read_text())
    made_later = {"bench/results.json"}
    assert [name for name in named if name not in made_later and not (ROOT / name).exists()] == []
