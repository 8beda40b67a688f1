"""What deployed models take: ours in processes of its own, models that fail, and the table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from bench import footprint, table
from bench.__main__ import main
from bench.cases import write_arrays
from bench.footprint import MIB, Footprint
from bench.machine import Memory

SQUARE = """
<ir_version: 9, opset_import: ["" : 17]>
square (float[n, 3] x) => (float[n, 3] y) { y = Mul (x, x) }
"""
WEIGHTS = 1 << 19


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with 2 MiB of weights."""
    path, x = tmp_path / "square.onnx", np.ones((2, 3), np.float32)
    made = parser.parse_model(SQUARE)
    weights = onnx.numpy_helper.from_array(np.zeros((3, WEIGHTS // 3), np.float32), "w")
    made.graph.initializer.append(weights)
    made.graph.node.append(onnx.helper.make_node("MatMul", ["y", "w"], ["z"]))
    made.graph.output.append(onnx.helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    onnx.save(made, path)
    write_arrays(path.with_suffix(".npz"), {"x": 3 * x}, [9.0 * x, np.zeros((2, WEIGHTS // 3))])
    return path


def test_an_engine_is_measured_with_what_it_deploys(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is no model is a row with the reason, and stops no other."""
    broken, out = tmp_path / "broken.onnx", tmp_path / "out.jsonl"
    broken.write_bytes(b"no model")
    broken.with_suffix(".npz").write_bytes(model.with_suffix(".npz").read_bytes())
    words = ["--beside", "", "--rounds", "1", "--home", str(tmp_path), "--out", str(out)]
    assert main(["memory", str(model), str(broken), *words]) == 0
    row, failed = footprint.read(out)
    (deployed,) = tmp_path.rglob("square.tw")
    assert row.artefact == deployed.stat().st_size > 4 * WEIGHTS
    assert 0.1 * MIB < row.runtime < MIB
    assert row.relative_error == 0 and row.machine
    assert row.answer_ms > row.load_ms + row.first_ms > row.load_ms > 0 < row.steady_ms
    assert row.peak >= row.resident >= row.private > 0 < row.loaded
    assert "broken.onnx" in failed.failure and str(tmp_path) not in failed.failure
    first, second = capsys.readouterr().out.splitlines()[-2:]
    assert first.startswith(f"| square | tilewright | {row.artefact / MIB:.1f} |")
    assert second.startswith("| broken | tilewright | fails: ModelError: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.onnx", "--beside", ""], "there is no nowhere.onnx, no nowhere.npz"),
        (["nowhere.onnx", "--beside", "", "--threads", "0"], "at least 1"),
        (["nowhere.onnx", "--beside", "", "--rounds", "0"], "at least 1"),
    ],
)
def test_mistakes_are_told(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory", *words]) == 1
    assert said in capsys.readouterr().err


def test_the_table_has_the_later_of_two_rows(tmp_path: Path) -> None:
    path = tmp_path / "deployed.jsonl"
    sizes, times = (3 * MIB, 70 * MIB), (123.4, 56.78, 9.9, 1.234)
    row = Footprint("m", "onnxruntime", 1, "1.2", *sizes, *times, MIB, 2 * MIB, MIB, 4 * MIB)
    failed = Footprint("m", "litert", 1, failure="no `pt2` | none")
    footprint.write([replace(row, artefact=1), row, failed], path)
    assert len(path.read_text().splitlines()) == 3
    lines = table.page([], [], [], footprint.read(path)).splitlines()
    assert "| m | ONNX Runtime | 3.0 | 70.0 | 123 | 56.8 | 9.9 | 1.23 | 1.0 | 2.0 | 1.0 | 4.0 |  |" in lines
    assert any(line.startswith("| m | LiteRT | fails: no 'pt2' \\| none |") for line in lines)
    assert {line.count("|") - line.count("\\|") for line in lines if line.startswith("| m |")} == {14}
    assert json.loads(path.read_text().splitlines()[0])["machine"]["cpus"] >= 1


def test_memory_that_was_added_is_over_what_was_resident() -> None:
    assert Memory(30, 12, 70) - Memory(20, 10, 65) == Memory(10, 2, 50)
