"""The documents are true: their code runs, and the pages made from code are those of today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx.reference import ReferenceEvaluator

from bench import table
from docs import operators, tour
from tests import models
from tests.ops.sampling import normal
from tilewright.cli.app import commands
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ops.define.interp import evaluate_func

ROOT = Path(__file__).parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tour.PAGE.read_text()
    ran = list(tour.blocks(page))
    assert len(ran) == page.count("```python") > 10
    for found, printed in ran:
        line = page.count("\n", 0, found.start()) + 1
        assert tour.masked(found["output"] or "") == tour.masked(tour.shown(printed)), (
            f"line {line}: run `make docs`"
        )


def test_what_varies_between_machines_is_not_compared_and_all_else_is() -> None:
    page = "```python\nprint(7, 'bytes')\nprint(8, 'rows')\n```\n\n```text\n6 bytes\n{rows} rows\n```\n"
    assert tour.with_outputs(page.format(rows=8)) == page.format(rows=8)
    assert tour.with_outputs(page.format(rows=9)) == page.format(rows=8).replace("6 bytes", "7 bytes")


needs_the_standard = pytest.mark.skipif(
    onnx.defs.onnx_opset_version() < operators.STANDARD[""],
    reason="the page is about a newer version of ONNX",
)


@needs_the_standard
def test_the_operator_page_is_up_to_date() -> None:
    assert operators.PAGE.read_text() == operators.page(), "run `make docs`"


@needs_the_standard
@pytest.mark.parametrize("name", operators.EXAMPLES)
def test_what_the_page_says_of_function_bodies_is_so(name: str) -> None:
    version = operators.STANDARD[""]
    schema = onnx.defs.get_schema(name, version)
    if operators.becomes(schema, version) != "function body":
        assert operators.lacks(schema, version)
        return
    model = operators.example(schema, version)
    module = load_onnx(model)
    arrays = [normal([d.value for d in arg.type.shape], seed=k) for k, arg in enumerate(module.main.args)]
    named = dict(zip(module.main.attrs["inputs"], arrays, strict=True))
    for found, expected in zip(
        evaluate_func(module.main, module, arrays), ReferenceEvaluator(model).run(None, named), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_tables_of_results_are_up_to_date() -> None:
    readme, found = table.README.read_text(), table.load()
    assert table.with_table(readme, found) == readme, "run `make docs`"
    page = table.page(found, table.load_compile(), table.load_roofline(), table.load_deployed())
    assert page == table.PAGE.read_text(), "run `make docs`"


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
    assert [name for name in named if not (ROOT / name).exists()] == []
