"""The table of plans of memory: graphs in orders that can be bettered, and boxes that are greedily packed too high."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.plans import row_of
from tests.bench.test_large_models import NO_SEARCH
from tilewright.program.memory.effort import FAST

BOXES = "id,lower,upper,size\n0,0,3,2\n1,2,5,2\n2,0,2,3\n3,3,5,3\n4,1,4,1\n"
GRAPH = {
    "ops": [
        {"kind": "conv", "in": ["x"], "out": ["a"]},
        {"kind": "conv", "in": ["x"], "out": ["b"]},
        {"kind": "sum", "in": ["a"], "out": ["c"]},
        {"kind": "sum", "in": ["b"], "out": ["d"]},
        {"kind": "add", "in": ["c", "d"], "out": ["y"]},
    ],
    "bytes": {"x": 500, "a": 80, "b": 70, "c": 8, "d": 8, "y": 8},
    "inputs": ["x"],
    "outputs": ["y"],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "boxes.csv").write_text(BOXES)
    (tmp_path / "graph.json").write_text(json.dumps(GRAPH))
    (tmp_path / "graph.csv").write_text(BOXES)  # the boxes of the graph in its own order: no row of its own
    return tmp_path


def test_rows_hold_every_strategy(folder: Path) -> None:
    boxes = row_of(folder / "boxes.csv", FAST)
    assert (boxes.naive, boxes.greedy, boxes.bound, boxes.ours) == (11, 8, 6, 6)
    graph = row_of(folder / "graph.json", FAST)
    assert (graph.naive, graph.given, graph.bound, graph.is_best, graph.ours) == (174, 158, 88, True, 88)
    assert row_of(folder / "boxes.csv", NO_SEARCH).ours == 8


def test_the_command_prints_a_row_for_each_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", str(folder)]) == 0
    table = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split("|")[1].split("/")[1].strip() for line in table] == ["boxes", "graph"]
    assert [line.split("|")[-3].strip() for line in table] == ["1.000", "1.000"]
