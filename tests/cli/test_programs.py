"""What programs and notebooks read: JSON data, whole lines, a log, HTML; and files of plugins."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import tilewright
from tests import models
from tilewright import plugins as plugins_module
from tilewright.cli.app import commands
from tilewright.runtime.errors import OptionError, Remark
from tilewright.runtime.report.records import CallRecord
from tilewright.runtime.report.shown import Report


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def data(*arguments: object) -> Any:
    result = call(*arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.written(models.mlp(), tmp_path, "mlp")


def test_commands_print_json(mlp: Path, tmp_path: Path) -> None:
    ran = data("run", mlp, "--input", "random", "--json", "--output", tmp_path / "out")
    assert ran["sizes"] == {"batch": 1} and ran["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 64]}]
    (output,) = ran["outputs"]
    assert output["shape"] == [1, 32] and output["least"] <= output["mean"] <= output["greatest"]
    benched = data("bench", mlp, "--json", "--rounds", 2, "--turn", 0)
    (ours,) = benched["engines"]
    assert ours["engine"] == "tilewright" and 0 < ours["ms_10"] <= ours["ms_median"] <= ours["ms_90"]
    assert benched["inputs"] == {"x": [1, 64]}
    compiled = data("compile", mlp, "-o", tmp_path / "m.tw", "--json")
    assert compiled["bytes"] == (tmp_path / "m.tw").stat().st_size and compiled["kernels"] >= 1
    explained = data("explain", mlp, "--json")
    assert explained["remarks"] and explained["layers"]
    known = data("info", "--json")
    assert known["tilewright"] == tilewright.__version__ and "zen3" in known["targets"] and known["formats"]
    cache = data("cache", "--json")
    assert any(entry["model"] == "mlp.onnx" for entry in cache["models"]) and cache["limit"] > 0


def test_lines_are_whole_where_there_is_no_terminal(tmp_path: Path) -> None:
    """A program reads them by lines, and a terminal of 80 columns is nobody's."""
    model = models.mlp()
    name = "an_output_with_a_name_" + "that_is_long_" * 12
    model.graph.node[-1].output[0] = model.graph.output[0].name = name
    path = models.written(model, tmp_path, "long")
    said = call("run", path, "--input", "random").output
    assert any(name in line and "float32[1, 32]" in line for line in said.splitlines())
    assert any(line.split()[:1] == ["features"] for line in call("info").output.splitlines())


def test_a_command_that_is_misspelt() -> None:
    result = call("complie", "model.onnx")
    assert result.exit_code == 2 and "There is no command 'complie'. Did you mean 'compile'?" in result.output
    assert "Did you mean" not in call("xyzzy").output


def test_names_that_are_misspelt() -> None:
    with pytest.raises(AttributeError, match="did you mean 'compile'"):
        tilewright.complie  # noqa: B018
    with pytest.raises(OptionError, match="unknown option 'thread'; did you mean 'threads'"):
        tilewright.compile(models.mlp(), thread=2)


def test_the_log_says_what_is_compiled(mlp: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = tilewright.Session(tmp_path / "cache")
    with caplog.at_level(logging.INFO, logger="tilewright"):
        tilewright.compile(mlp, session=session)
        tilewright.compile(mlp, session=session)
    first, second = caplog.messages
    assert first.startswith(f"{mlp}: compiled in ") and second == f"{mlp}: found in the cache {tmp_path / 'cache'}"


def test_verbose_commands_print_the_log(mlp: Path) -> None:
    command = [sys.executable, "-m", "tilewright", "--verbose", "run", str(mlp), "--no-cache", "--input", "random"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"tilewright: {mlp}: compiled in" in done.stderr and "compiled in" not in done.stdout


def test_notebooks_show_models_and_reports() -> None:
    model = tilewright.compile(models.mlp(), cache=False)
    shown = model._repr_html_()
    assert "<td>x</td><td>float32[batch, 64]</td>" in shown and shown.count("<tr>") == 2
    report = model.report()._repr_html_()
    assert "<b>kernels</b>" in report and "<table>" in report
    call = CallRecord("<script>", "<script>", ("<script>",), "<script>")
    remark = Remark("<script>", "<script>", "<script>", "failed")
    odd = Report(model="<script>", calls=(call,), attached={"<script>": {"<script>": "<script>"}}, remarks=(remark,))
    assert "<script>" not in odd._repr_html_()


OPERATOR = """
from tilewright.ir.core import Value
from tilewright.ops.define import op
from tilewright.ops.elementwise import mul, tanh

@op
def twice_tanh(x: Value) -> Value:
    '''2 * tanh(x).'''
    return mul(tanh(x), 2.0)

twice_tanh.onnx("TwiceTanh", domain="com.example")
"""


def with_operator(folder: Path) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("TwiceTanh", ["x"], ["y"], domain="com.example")], "g", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "model.onnx")
    return folder / "model.onnx"


def test_a_file_adds_operators(tmp_path: Path) -> None:
    model, file = with_operator(tmp_path), tmp_path / "operators_of_mine.py"
    file.write_text(OPERATOR)
    command = [sys.executable, "-m", "tilewright", "--plugin", str(file), "run", str(model), "--input", "x=0,1,2"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), 2 * np.tanh([0, 1, 2]), rtol=1e-5)
    assert "TwiceTanh" in call("run", model, "--input", "random").output


def test_a_file_brings_a_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins_module, "_OF_FILES", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "plugin_of_mine.py"
    file.write_text("from tilewright.plugins import Plugin\nPLUGIN = Plugin('mine')\n")
    assert "mine" in data("--plugin", file, "info", "--json")["plugins"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no Python file"),
        ("1 / 0", "failed when it was imported: ZeroDivisionError"),
        ("x =", "SyntaxError"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "broken_of_mine.py"
    if text is not None:
        file.write_text(text)
    result = call("--plugin", file, "info")
    assert result.exit_code == 1 and said in " ".join(result.output.split()) and "Traceback" not in result.output
