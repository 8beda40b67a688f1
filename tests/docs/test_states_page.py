"""The page about states is true."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import tour

PAGE = Path(__file__).parent.parent.parent / "docs" / "states.md"


def test_its_code_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = list(tour.blocks(PAGE.read_text()))
    assert len(found) == 2
    for block, printed in found:
        assert block["output"] == tour.shown(printed)
