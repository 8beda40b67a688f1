"""`tilewright check`: what it prints, its JSON data, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

from tests import models
from tests.validation.planted import beyond_the_end
from tilewright.cli.app import commands

AMOUNT = {"formula", "value"}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["check", *map(str, arguments)])


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.written(models.mlp(), tmp_path, "mlp")


def test_a_model_that_runs(mlp: Path) -> None:
    result = call(mlp, "--dim", "batch=4", "--threads", 1)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "mlp.onnx can be compiled: 4 nodes" in said
    assert "x: float32[batch, 64]" in said and "numbers are for batch=4" in said
    assert "MatMul 1 f32" in said and "2.08 k" in said and "with 1 threads" in said


def test_a_model_that_does_not_run(tmp_path: Path) -> None:
    result = call(models.written(models.unsupported(), tmp_path, "unsupported"))
    assert result.exit_code == 1
    assert "Frobnicate" in result.output and "Defenestrate" in result.output
    assert "first" in result.output and "second" in result.output


def test_the_json_data_have_the_form_that_is_documented(mlp: Path) -> None:
    result = call(mlp, "--json", "--shape", "x=3,64", "--target", "zen3", "--threads", 2)
    assert result.exit_code == 0, result.output
    data = json.loads(result.output)
    assert set(data) == {
        "schema", "model", "runs", "problems", "notes", "nodes", "inputs", "outputs", "costs", "bounds",
    }  # fmt: skip
    assert (data["schema"], data["model"], data["runs"], data["problems"]) == (1, "mlp.onnx", True, [])
    assert data["bounds"] is None
    told = {"name": "x", "dtype": "float32", "shape": [3, 64], "kind": "tensor", "element": None}
    assert data["inputs"] == [told]
    costs = data["costs"]
    assert set(costs) == {
        "sizes", "kernels", "operators", "parameters", "flops", "moved_bytes", "memory", "time", "blocks",
    }  # fmt: skip
    assert set(costs["flops"]) == set(costs["moved_bytes"]) == AMOUNT
    assert costs["flops"]["formula"] == str(costs["flops"]["value"])
    assert set(costs["operators"][0]) == {"operator", "nodes", "dtypes", "flops", "bytes", "cycles"}
    assert costs["parameters"] == [{"dtype": "float32", "count": 64 * 32 + 32, "bytes": 4 * (64 * 32 + 32)}]
    assert set(costs["memory"]) == {"inputs", "outputs", "weights", "arena", "peak"}
    assert costs["memory"]["outputs"]["value"] == 3 * 32 * 4
    assert set(costs["time"]) == {"target", "threads", "cycles", "hertz", "seconds"}
    assert costs["time"]["seconds"] is None and costs["time"]["threads"] == 2


def test_json_data_of_what_does_not_run(tmp_path: Path) -> None:
    result = call(models.written(models.unsupported(), tmp_path, "unsupported"), "--json")
    assert result.exit_code == 1
    data = json.loads(result.output)
    assert data["runs"] is False and data["costs"] is None and data["nodes"] is None
    assert [set(p) for p in data["problems"]] == [{"operator", "node", "reason", "hint"}] * 2


def test_mistakes(mlp: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes(mlp.read_bytes()[:-40])
    damaged = call(tmp_path / "cut.onnx")
    assert damaged.exit_code == 1 and damaged.output.startswith("error:")
    assert call(tmp_path / "model.tw").exit_code == 2
    assert call(mlp, "--target", "abacus").exit_code == 2
    assert call(mlp, "--dim", "height=4").exit_code == 2
    assert call(mlp, "--dim", "batch").exit_code == 2


def test_accesses_are_counted_and_one_that_leaves_its_buffer_is_an_error(
    mlp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = call(mlp, "--bounds")
    assert right.exit_code == 0 and "0 not proved" in " ".join(right.output.split()), right.output
    beyond_the_end(monkeypatch)
    softplus = helper.make_graph(
        [helper.make_node("Softplus", ["x"], ["y"], name="last")], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])], [helper.make_empty_tensor_value_info("y")],
    )  # fmt: skip
    path = models.written(helper.make_model(softplus, ir_version=9), mlp.parent, "wrong")
    wrong = call(path, "--bounds")
    said = " ".join(wrong.output.replace("│", "").split())
    assert wrong.exit_code == 1
    assert "error: beyond their buffers" in said and "store of 'y'" in said and "which fails for" in said, said
    data = json.loads(call(path, "--bounds", "--json").output)["bounds"]
    assert set(data) == {"by_range", "by_guard", "not_proved", "not_looked_at", "unproved"}
    access = next(each for each in data["unproved"] if each["leaves"])
    assert set(access) == {
        "kernel", "buffer", "type", "access", "index", "axis", "missing", "looked_at", "leaves",
    }  # fmt: skip
    assert access["access"] == "store" and access["axis"] == 0 and access["looked_at"] and access["leaves"]
