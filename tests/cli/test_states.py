"""States on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from onnx import parser

from tilewright.cli.app import commands

GRAPH = """<ir_version: 9, opset_import: ["" : 17]>
g (float[3] x, float[3] h) => (float[3] y, float[3] hn) {
    hn = Add (x, h)
    y = Mul (hn, x)
}"""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def succeed(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "sums.onnx"
    path.write_bytes(parser.parse_model(GRAPH).SerializeToString())
    return path


def test_a_run_goes_on_where_the_last_one_ended(model: Path, tmp_path: Path) -> None:
    compiled, states = tmp_path / "sums.tw", tmp_path / "h.npz"
    said = succeed("compile", model, "--state", "h=hn", "-o", compiled, "--report")
    assert "states:" in said and ("in place" in said or "swapped" in said)
    for turn in (1, 2, 3):
        succeed("run", compiled, "--input", "x=1,2,3", "--states", states, "--output", tmp_path / "out")
        np.testing.assert_array_equal(np.load(tmp_path / "out" / "y.npy"), turn * np.array([1, 4, 9], np.float32))
    with np.load(states) as file:
        np.testing.assert_array_equal(file["state h"], [3, 6, 9])


def test_other_commands_take_them(model: Path) -> None:
    assert "update(h, hn)" in succeed("show", model, "--level", "program", "--state", "h=hn")
    assert "float32[3]" in succeed("run", model, "--state", "h=hn", "--input", "random")
    assert succeed("check", model, "--state", "h=hn")
    assert succeed("bench", model, "--state", "h=hn", "--rounds", 2, "--turn", 0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--state", "h"], "--state h: give the names of an input and an output, such as --state h=hn"),
        (["--state", "h=hn", "--state", "h=y"], "--state is given twice for h"),
        (["--state", "all", "--state", "h=hn"], "--state all: give no other --state beside it"),
        (["--state", "all"], "states=True keeps the variables that a model declares"),
        (["--state", "h=q"], "the model has no output 'q'"),
        (["--states", "h.npz"], "--states h.npz: the model keeps no states (see --state)"),
    ],
)
def test_mistakes(model: Path, arguments: list[str], message: str) -> None:
    result = call("run", model, "--input", "random", *arguments)
    assert result.exit_code and message in " ".join(result.output.split())


def test_what_is_compiled_has_its_states(model: Path, tmp_path: Path) -> None:
    succeed("compile", model, "-o", tmp_path / "sums.tw")
    result = call("run", tmp_path / "sums.tw", "--input", "random", "--state", "h=hn")
    assert "--state, --strict, --guarded and --schedule need the model it came from" in " ".join(result.output.split())


def test_caches_get_room(tmp_path: Path) -> None:
    path = tmp_path / "cache.onnx"
    graph = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1, s] x, float[1, p] before) => (float[1, a] y, float[1, b] after) {
        after = Concat <axis = 1> (before, x)
        y = Mul (x, x)
    }"""
    path.write_bytes(parser.parse_model(graph).SerializeToString())
    assert "along axis 1 up to past" in succeed("compile", path, "--state", "all", "--capacity", "9", "--report")
    room = ("--state", "all", "--capacity", "9", "--dim", "s=9", "--rounds", 1)
    assert "_put" in succeed("bench", path, *room, "--kernels")  # the call that finds sizes left it empty
    assert "tilewright" in succeed("bench", path, *room, "--turn", 0)  # and each call finds it so
    assert "Invalid value for '--capacity'" in call("compile", path, "--state", "all", "--capacity", "0").output


def test_diff_of_one_model_keeps_states(model: Path, tmp_path: Path) -> None:
    assert "no kernel makes an error" in succeed("diff", model, "--state", "h=hn", "--threads", 1)
    assert "no step of the compiler" in succeed("diff", model, "--bisect", "--state", "h=hn", "-o", tmp_path / "out")
    refused = call("diff", model, "--state", "h=gone")
    assert refused.exit_code == 2 and "gone" in refused.output, refused.output
    refused = call("diff", model, model, "--state", "h=hn")
    assert refused.exit_code == 2 and "--state is for one model" in refused.output, refused.output
