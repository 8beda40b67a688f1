"""The page about serving is true."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from docs import tour
from tests.llm.checkpoints import model_file
from tests.llm.serving.servers import server
from tilewright import llm
from tilewright.cli.app import commands

PAGE = Path(__file__).parent.parent.parent / "docs" / "serving.md"


def test_its_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the server of a small checkpoint in place of the one that the page begins with."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    with server(llm.load(model_file(tmp_path / "model.gguf")), name="model") as found:
        page = PAGE.read_text()
        assert page.count("http://127.0.0.1:8000/v1") == 2
        (_, asked), (_, scheduled) = tour.blocks(page.replace("http://127.0.0.1:8000", found.url))
    # a model of random weights may write white space until its tokens are used up
    assert '"city"' in asked and ("weather" in asked or "length" in asked), asked
    assert len(scheduled.strip()) > 5


def test_its_commands_have_the_options_that_it_shows() -> None:
    told = CliRunner().invoke(commands, ["serve", "--help"]).output
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("$ tilewright serve")]
    options = {word for line in lines for word in line.split() if word.startswith("--")}
    assert options and all(option in told for option in options)
