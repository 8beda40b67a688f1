"""`explain` of layers and certificates, and `diff`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

from tests import models
from tests.comparison.networks import feeds, quantised, residual
from tilewright.cli.app import commands
from tilewright.quantization.certificate import KEY, Certificate, LayerRecord


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments], env={"COLUMNS": "300"})


def succeed(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A network, and a quantised form with a wrong layer."""
    network = residual()
    paths = (tmp_path / "wide.onnx", tmp_path / "small.onnx")
    onnx.save(network, paths[0])
    onnx.save(quantised(network, wrong_weights="block1.first"), paths[1])
    return paths


def test_explain_says_in_which_types_layers_are_computed(files: tuple[Path, Path]) -> None:
    said = succeed("explain", files[1], "--target", "zen3")
    assert "1 MatMul: i16 x i8 in i32 by vpmaddwd: both operands are quantised" in said
    assert "the machine multiplies no more integers than floats in a cycle" in said
    assert "block0.first: 8 channels (and 1 like it)" in said and "between the layers" in said
    everything = succeed("explain", files[1], "--target", "zen3", "--all")
    assert "block1.first: 8 channels" in everything and "like it" not in everything.partition("between")[0]


def test_explain_lists_layers_of_floats_on_demand(files: tuple[Path, Path]) -> None:
    said = succeed("explain", files[0], "--target", "zen3")
    assert "5 Conv: f32 x f32 by fused multiply-adds: the model has floats" in said
    path = models.written(models.mlp(), files[0].parent, "mlp")
    assert "dense" not in succeed("explain", path).partition("fuse")[0]
    assert "channels" in succeed("explain", path, "--all")


def certificate() -> Certificate:
    records = (
        LayerRecord("head", "MatMul", "head", "int8", "min-max", "faster", 2.0, {"int8": 0.0005}, {"int8": 0.001}),
        LayerRecord("stem", "Conv", "stem", "float32", "", "nothing is faster", 1.0, {}, {}),
    )
    return Certificate(
        metric="accuracy", before=0.9, after=0.89, drop=0.01, interval=(0.0, 0.02), bound=0.02, max_drop=0.03,
        confidence=0.95, basis="counted", items=100, changed=0.0, outcome="1 of 2 groups are smaller", layers=records,
        seconds_before=0.004, seconds_after=0.003, bytes_before=2, bytes_after=1, calibration={}, model="",
        model_digest="", weights_digest="", data="", data_digest="", options={},
    )  # fmt: skip


def test_explain_says_what_a_certificate_says_of_layers(files: tuple[Path, Path]) -> None:
    model = onnx.load(files[1])
    model.metadata_props.add(key=KEY, value=json.dumps(certificate().record()))
    onnx.save(model, files[1])
    said = succeed("explain", files[1])
    assert "head: 8 channels; certified as int8, its group saves 0.5 ms of 2 ms, and alone costs 0.1 % at most" in said
    assert "certified as float32: nothing is faster" in said
    assert "a call took 4 ms in float32, and takes 3 ms" in said and "the drop is 1 %, at most 2 %" in said


def test_diff_names_the_layer(files: tuple[Path, Path]) -> None:
    np.savez(files[0].parent / "x.npz", x=np.concatenate([feed["x"] for feed in feeds()]))
    said = succeed("diff", *files, "--data", files[0].parent / "x.npz", "--threads", 1)
    assert "the error grows most in block1.first (Conv)" in said
    assert "3 samples" in said and "output y: error" in said


def test_diff_prints_json(files: tuple[Path, Path]) -> None:
    found = json.loads(succeed("diff", *files, "--random", 1, "--json"))
    assert found["worst"] == "block1.first" and found["samples"] == 1
    assert len(found["layers"]) > 5 and found["outputs"]["y"]["error"] > 0


def test_diff_of_equal_models_says_so(files: tuple[Path, Path]) -> None:
    assert "no layer differs" in succeed("diff", files[0], files[0], "--random", 1, "--all")


def test_mistakes_of_diff(files: tuple[Path, Path]) -> None:
    result = call("diff", *files, "--random", 1, "--data", "x.npz")
    assert result.exit_code == 2 and "give one of them" in result.output
    result = call("diff", files[0], files[0].parent / "missing.onnx")
    assert result.exit_code == 1 and "does not exist" in result.output
    other = models.written(models.mlp(), files[0].parent, "mlp")
    result = call("diff", files[0], other)
    assert result.exit_code == 1 and "different inputs" in result.output
