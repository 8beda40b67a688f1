"""From the text of any stage to an artefact: `show --stage`, an editor, and `compile`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tests import models
from tests.frontends.helpers import info, model_of
from tilewright.cli.app import commands
from tilewright.stages import TEXT_STAGES

X = np.random.default_rng(2).standard_normal((5, 64)).astype(np.float32)


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def said(result: Result) -> str:
    """What a command says of an error, as one line."""
    assert result.exit_code != 0
    return re.sub(r"\s+", " ", f"{result.output} {result.exception if result.exit_code == 1 else ''}")


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    return models.written(models.mlp(), tmp_path, "mlp")


def shown(model: Path, stage: str, *options: object) -> Path:
    result = call("show", model, "--stage", stage, *options)
    assert result.exit_code == 0, result.output
    text = model.with_name(f"{stage}.txt")
    text.write_text(result.stdout)
    return text


def compiled(text: Path, *options: object) -> tilewright.Model:
    result = call("compile", text, "-o", text.with_suffix(".tw"), *options)
    assert result.exit_code == 0, said(result)
    return tilewright.load(text.with_suffix(".tw"))


def refused(text: Path, *options: object) -> str:
    output = text.with_suffix(".tw")
    message = said(call("compile", text, "-o", output, *options))
    assert not output.exists()
    return message


@pytest.mark.parametrize("stage", TEXT_STAGES)
def test_the_text_of_each_stage_becomes_the_model(stage: str, mlp: Path) -> None:
    model = compiled(shown(mlp, stage), "--of", mlp)
    np.testing.assert_array_equal(model(X)[0], tilewright.compile(mlp, cache=False)(X)[0])
    assert [i.name for i in model.inputs] == ["x"]


@pytest.mark.parametrize("stage", ["import", "graph", "fused"])
def test_what_is_edited_is_computed(stage: str, mlp: Path) -> None:
    text = shown(mlp, stage)
    assert text.read_text().count("max(") >= 1
    text.write_text(re.sub(r"\bmax\(", "min(", text.read_text(), count=1))
    w, b = weights()
    hidden = np.minimum(X.astype(np.float64) @ w + b, 0)
    powers = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(compiled(text, "--of", mlp)(X)[0], powers / powers.sum(-1, keepdims=True), rtol=1e-4)


@pytest.mark.parametrize("stage", ["scheduled", "planned"])
def test_loops_are_edited(stage: str, mlp: Path) -> None:
    text = shown(mlp, stage)
    edited = text.read_text()
    assert re.search(r"\bmax\(.*, 0\)", edited), edited
    text.write_text(re.sub(r"\bmax\((.*), 0\)", r"min(\1, 0)", edited))
    w, b = weights()
    hidden = np.minimum(X.astype(np.float64) @ w + b, 0)
    powers = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(compiled(text, "--of", mlp)(X)[0], powers / powers.sum(-1, keepdims=True), rtol=1e-4)


def weights() -> tuple[np.ndarray, np.ndarray]:
    arrays = [numpy_helper.to_array(t) for t in models.mlp().graph.initializer]
    (w,), (b,) = ([a for a in arrays if a.ndim == rank] for rank in (2, 1))
    return w.astype(np.float64), b.astype(np.float64)


def test_constants_come_from_files_and_small_ones_from_the_text(mlp: Path, tmp_path: Path) -> None:
    text = shown(mlp, "import")
    names = re.findall(r"^constant @(\S+): \S+\[64, 32\]$", text.read_text(), re.M)
    others = re.findall(r"^constant @(\S+): \S+\[32\]$", text.read_text(), re.M)
    assert len(names) == len(others) == 1
    w = np.zeros((64, 32), np.float32)
    np.save(tmp_path / "w.npy", w)
    model = compiled(text, "--of", mlp, "--constant", f"{names[0]}={tmp_path / 'w.npy'}")
    powers = np.exp(np.maximum(weights()[1], 0))
    np.testing.assert_allclose(model(X)[0], np.broadcast_to(powers / powers.sum(), (5, 32)), rtol=1e-5)
    text.with_suffix(".tw").unlink()
    missing = refused(text, "--constant", f"{names[0]}={tmp_path / 'w.npy'}")
    assert f"the text has no elements of @{others[0]}" in missing and "name the model" in missing
    np.save(tmp_path / "w.npy", np.zeros((64, 31), np.float32))
    wrong = refused(text, "--of", mlp, "--constant", f"{names[0]}={tmp_path / 'w.npy'}")
    assert f"'{names[0]}' is float32[64, 32] in the text, and float32[64, 31]" in wrong
    assert "the text has no constant @q" in refused(text, "--of", mlp, "--constant", "q=1")
    small = tmp_path / "small.txt"
    small.write_text("""constant @c: f32[2] = [1.5, -2.0]
    func @main(x: f32[2]) -> (f32[2]) with {inputs=("x",), outputs=("y",)} { c = constant @c : f32[2]
      y = add(x, c) : f32[2]
      return y }""")
    np.testing.assert_array_equal(compiled(small)(np.ones(2, np.float32))[0], [2.5, -1])


def test_another_model_does_not_fit(mlp: Path, tmp_path: Path) -> None:
    w = np.ones((3, 4), np.float32)
    other = model_of(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", ["n", 3])], [info("y", ["n", 4])], {"w": w}
    )
    path = models.written(other, tmp_path, "other")
    assert "float32[64, 32] in the text, and float32[3, 4]" in refused(shown(mlp, "fused"), "--of", path)


@pytest.mark.parametrize("stage", TEXT_STAGES)
def test_mistakes_have_a_line_and_a_column(stage: str, mlp: Path) -> None:
    text = shown(mlp, stage)
    lines = text.read_text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.strip().startswith("return"))
    lines[at] = lines[at].replace("return", "return (", 1)
    text.write_text("\n".join(lines))
    assert re.search(rf"{re.escape(str(text))}:{at + 1}:\d+", refused(text, "--of", mlp).replace(" ", "")) is not None


def test_programs_that_are_not_legal_are_told(mlp: Path) -> None:
    text = shown(mlp, "fused")
    text.write_text(text.read_text().replace("matmul(", "matmull(", 1))
    assert "matmull" in refused(text, "--of", mlp)


def sizes_of_data() -> onnx.ModelProto:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Cast", ["places"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "two"], ["y"]),
    ]
    return model_of(nodes, [info("x", [6])], [info("y", [1, "k"])], {"two": np.array(2, np.float32)})


@pytest.mark.parametrize("stage", ["import", "parts", "fused", "planned"])
def test_programs_of_parts_are_one_text(stage: str, tmp_path: Path) -> None:
    path = models.written(sizes_of_data(), tmp_path, "places")
    model = compiled(shown(path, stage), "--of", path)
    x = np.array([0, 1, 0, 2, 0, 3], np.float32)
    np.testing.assert_array_equal(model(x)[0], [[2, 6, 10]])


@pytest.mark.parametrize("stage", TEXT_STAGES[2:])
def test_a_text_says_what_is_kept(stage: str, tmp_path: Path) -> None:
    made = model_of([helper.make_node("Add", ["x", "h"], ["hn"])], [info("x", [3]), info("h", [3])], [info("hn", [3])])
    path = models.written(made, tmp_path, "sum")
    model = compiled(shown(path, stage, "--state", "h=hn"), "--of", path)
    assert [i.name for i in model.inputs] == ["x"] and not model.outputs
    for _ in range(3):
        model(np.array([1, 2, 3], np.float32))
    np.testing.assert_array_equal(model.state("h"), [3, 6, 9])


def test_options_that_the_text_answers_are_refused(mlp: Path, tmp_path: Path) -> None:
    text = shown(mlp, "fused")
    assert "says what shapes it takes" in refused(text, "--of", mlp, "--shape", "x=1,64")
    assert "frequent= is not allowed for a text" in refused(text, "--of", mlp, "--frequent", "batch=1")
    assert "states= is not allowed for a text" in refused(text, "--of", mlp, "--state", "x=y")
    assert "is no text of a stage" in said(call("compile", mlp, "-o", tmp_path / "m.tw", "--of", mlp))
    for beside in (("--level", "graph"), ("--kernel", "k0")):
        assert "--stage prints the whole program" in said(call("show", mlp, "--stage", "fused", *beside))
    text.write_bytes(b"\xff\xfe")
    assert "cannot read" in refused(text, "--of", mlp)
    assert "cannot read" in refused(tmp_path / "none.txt", "--of", mlp)
