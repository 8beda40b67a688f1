"""`tilewright cost`: formulas for people and programs, measured times, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from onnx import parser

from tests.llm.checkpoints import CONTEXT, HEADS, LAYERS, WIDTH, model_file, model_folder
from tests.llm.test_compiled_decoder import exported
from tilewright.cli.app import commands
from tilewright.cli.language_models.cost_table import _added


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["cost", *(str(a) for a in arguments)])


def record(*arguments: object) -> dict[str, Any]:
    result = call(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return model_file(tmp_path / "m.gguf")


def test_formulas_are_told_with_the_numbers_of_the_model(file: Path) -> None:
    result = call(file, "--prompt", 20, "--new", 10, "--threads", 1)
    assert result.exit_code == 0, result.output
    found = record(file, "--prompt", 20, "--new", 10, "--threads", 1)
    cache = LAYERS * 2 * (WIDTH // 2) * 4
    assert found["cache bytes per position"] == cache and found["cache bytes"] == 29 * cache
    assert f"caches of {cache} bytes for a position, at most {CONTEXT} positions" in result.stdout
    formulas = found["formulas"]["operations"]
    for name in ("token, cached", "token, recomputed", "all tokens, cached", "all tokens, recomputed"):
        assert formulas[name]["formula"] in result.stdout
    degrees = [len(formulas[name]["coefficients"]) - 1 for name in ("all tokens, cached", "all tokens, recomputed")]
    assert degrees == [2, 3]
    # 4 products and sums for each element of a head, and 5 operations of softmax, at least
    pairs = LAYERS * HEADS * (4 * WIDTH // HEADS + 5)
    assert pairs <= formulas["token, cached"]["coefficients"][1] <= 1.2 * pairs
    together = found["generation"]
    assert together["cached"]["operations"] < together["recomputed"]["operations"]
    assert together["cached"]["seconds"] < together["recomputed"]["seconds"]
    assert found["prompt at once"]["serial share"] == 0 < found["recurrent network"]["serial share"]
    assert found["recurrent network"]["products in a row"] > 20 * LAYERS > found["prompt at once"]["products in a row"]
    assert found["exponents"]["cached"]["in the end"] == 1 and found["exponents"]["recomputed"]["in the end"] == 2
    assert found["exponents"]["cached"]["measured"] is None


def test_folders_and_other_weights(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    plain, small = (record(folder, "--prompt", 8, "--new", 4, *more) for more in ((), ("--weights", "int8")))
    assert small["formulas"]["operations"]["token, cached"] == plain["formulas"]["operations"]["token, cached"]
    refused = call(folder, "--weights", "int3")
    assert refused.exit_code == 2 and "weights='int3' is not allowed" in refused.stderr


def test_times_are_measured_beside_the_estimates(file: Path) -> None:
    asked = [file, "--prompt", 20, "--new", 10, "--at", 1, "--at", 8, "--at", 16, "--measure", "--no-cache"]
    found = record(*asked, "--threads", 1)
    assert [row["length"] for row in found["lengths"]] == [1, 8, 16]
    for row in found["lengths"]:
        assert all(row[kind][how] > 0 for kind in ("cached", "recomputed") for how in ("measured", "estimated"))
    assert all(isinstance(found["exponents"][kind]["measured"], float) for kind in ("cached", "recomputed"))


def test_a_decoder_of_another_kind_is_counted_and_measured(tmp_path: Path) -> None:
    (tmp_path / "d.onnx").write_bytes(exported())
    result = call(tmp_path / "d.onnx", "--prompt", 4, "--new", 3, "--at", 2, "--at", 4, "--measure", "--no-cache")
    assert result.exit_code == 0, result.output
    assert "33 n + 344" in result.stdout and "11 n^3" in result.stdout and "measured" in result.stdout
    assert "t=s + val_past_0" in result.stdout


def test_a_model_without_caches_has_costs_of_whole_sequences(tmp_path: Path) -> None:
    graph = """<ir_version: 9, opset_import: ["" : 17]>
    net (float[b, n, 4] x) => (float[b, n, n] y) {
        t = Transpose <perm = [0, 2, 1]> (x)
        y = MatMul (x, t)
    }"""
    path = tmp_path / "e.onnx"
    path.write_bytes(parser.parse_model(graph).SerializeToString())
    result = call(path, "--length", "n", "--dim", "b=2", "--prompt", 4)
    assert result.exit_code == 0, result.output
    assert "16 n^2" in result.stdout and "keeps nothing from call to call" in result.stdout
    assert list(record(path, "--length", "n")["generation"]) == ["recomputed"]
    for arguments, said, code in (
        ((path,), "which of the dims b, n is the length", 2),
        ((path, "--length", "m"), "no symbolic dim 'm'", 2),
        ((path, "--length", "n", "--measure"), "--measure takes decoders", 2),
        ((path, "--length", "n", "--weights", "int8"), "--weights needs a GGUF file", 2),
    ):
        refused = call(*arguments)
        assert said in refused.stderr and refused.exit_code == code, refused.output


def test_times_of_many_lengths_are_added_up_as_lines() -> None:
    def line(n: int) -> float:
        return 3.0 * n + 2

    for first, end in ((5, 5), (5, 6), (5, 8), (1, 100)):
        assert _added(line, first, end) == pytest.approx(sum(map(line, range(first, end))))
    assert _added(lambda n: None if n > 50 else 1.0, 1, 100) is None


def test_a_text_of_a_billion_tokens_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "d.onnx").write_bytes(exported())
    found = record(tmp_path / "d.onnx", "--prompt", 10**9, "--new", 10**9)
    assert found["generation"]["cached"]["operations"] > 33 * 10**18


def test_lengths_that_cannot_be(file: Path) -> None:
    for option in ("--prompt", "--new", "--at"):
        refused = call(file, option, 0)
        assert refused.exit_code == 2 and "0 is not in the range x>=1" in refused.stderr
    for arguments in (("--prompt", CONTEXT, "--new", 2), ("--prompt", 1, "--new", 1, "--at", CONTEXT + 1)):
        refused = call(file, *arguments)
        assert refused.exit_code == 1, refused.output
        assert f"{CONTEXT + 1} positions is longer than the context of {CONTEXT}" in refused.stderr
    assert record(file, "--prompt", CONTEXT, "--new", 1)["cache bytes"] == CONTEXT * LAYERS * 2 * (WIDTH // 2) * 4
    assert record(file, "--prompt", 1, "--new", 1)["lengths"][0]["length"] == 1
    larger = call(file, "--prompt", 9, "--new", 2, "--context", 8)
    assert "longer than the context of 8" in larger.stderr
    missing = call(file.parent / "none.gguf")
    assert missing.exit_code == 1 and "none.gguf" in missing.stderr
