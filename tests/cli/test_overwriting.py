"""Nothing that somebody may want back is written over: a model's source, its inputs, files of another kind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result

import tilewright
from tests import models
from tilewright.cli.app import commands
from tilewright.quantization.state import State, check_work
from tilewright.runtime.errors import ArtifactError, OptionError


def call(*arguments: object) -> Result:
    return CliRunner().invoke(commands, [str(a) for a in arguments])


def refused(*arguments: object) -> str:
    result = call(*arguments)
    assert result.exit_code == 1 and "Traceback" not in result.output, result.output
    return " ".join(result.output.split())


def hard_link(model: Path) -> Path:
    os.link(model, model.with_name("other.onnx"))
    return model.with_name("other.onnx")


def symlink(model: Path) -> Path:
    model.with_name("link.tw").symlink_to(model)
    return model.with_name("link.tw")


def other_spelling(model: Path) -> Path:
    (model.parent / "deep").mkdir()
    return model.parent / "deep" / ".." / model.name


@pytest.mark.parametrize("to", [lambda model: model, hard_link, symlink, other_spelling])
def test_the_source_of_a_compiled_model_is_kept(tmp_path: Path, to: object) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    content = model.read_bytes()
    output = to(model)  # type: ignore[operator]
    said = refused("compile", model, "-o", output)
    assert f"it is what is read from ({model})" in said and "--force" in said
    assert model.read_bytes() == content and not list(tmp_path.glob(".*.tmp"))


def test_force_replaces_it(tmp_path: Path) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    assert call("compile", model, "-o", model, "--force").exit_code == 0
    assert tilewright.load(model).inputs[0].name == "x"


def test_a_file_of_another_kind_is_kept_and_compiled_models_are_replaced(tmp_path: Path) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    notes, empty = tmp_path / "notes.txt", tmp_path / "empty"
    notes.write_text("a thesis")
    empty.write_bytes(b"")
    assert f"nothing was written to {notes}: there is a file that is not a compiled model" in refused(
        "compile", model, "-o", notes
    )
    assert notes.read_text() == "a thesis"
    for _ in range(2):  # a file of no bytes, then a compiled model
        assert call("compile", model, "-o", empty).exit_code == 0


def test_saving_in_python_keeps_what_is_there(tmp_path: Path) -> None:
    path = models.written(models.mlp(), tmp_path, "mlp")
    content = path.read_bytes()
    model = tilewright.compile(path, cache=False)
    for save in (model.save, model.artifact.save):
        with pytest.raises(ArtifactError, match="is not a compiled model, which would be lost") as caught:
            save(path)
        assert "force=True" in str(caught.value)
    assert path.read_bytes() == content
    model.save(path, force=True)
    tilewright.load(path).save(path)  # over the compiled file that it came from
    damaged = path.read_bytes()[:-10]
    path.write_bytes(damaged)
    model.save(path)


def test_a_file_that_cannot_be_looked_at_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "secret"
    path.write_text("of others")
    real = open

    def closed(file: object, *arguments: object, **named: object) -> object:
        if file == path:
            raise PermissionError(13, "Permission denied")
        return real(file, *arguments, **named)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", closed)
    with pytest.raises(ArtifactError, match="cannot be looked at"):
        tilewright.compile(models.mlp(), cache=False).save(path)


def test_compiled_code_is_known_by_its_content(tmp_path: Path) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    compiled = tmp_path / "deployed.bin"
    assert call("compile", model, "-o", compiled).exit_code == 0
    assert call("run", compiled, "--input", "random").exit_code == 0
    result = call("compile", compiled, "-o", compiled)
    assert result.exit_code == 2 and "is compiled code" in result.output
    source = tmp_path / "source.tw"
    shutil.copy(model, source)
    assert call("run", source, "--input", "random").exit_code == 0
    assert "it is what is read from" in refused("compile", source)  # whose name would be that of the default output


def test_outputs_of_a_run_replace_neither_its_inputs_nor_other_files(tmp_path: Path) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    x = np.ones((2, 64), np.float32)
    np.save(tmp_path / "y.npy", x)
    arguments = ["run", model, "--input", f"x={tmp_path / 'y.npy'}", "--output", tmp_path]
    assert "y.npy: it is what is read from" in refused(*arguments)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x)
    assert call(*arguments, "--force").exit_code == 0
    assert np.load(tmp_path / "y.npy").shape == (2, 32)
    (tmp_path / "y.npy").write_text("text")
    assert "not a .npy file" in refused("run", model, "--input", "random", "--output", tmp_path)
    assert (tmp_path / "y.npy").read_text() == "text"


@pytest.mark.parametrize("text", ["{}", '{"name": "package"}', "text"])
def test_counts_of_sizes_are_not_written_over_other_json(tmp_path: Path, text: str) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    other = tmp_path / "package.json"
    other.write_text(text)
    assert "does not hold sizes" in refused("run", model, "--input", "random", "--sizes-seen", other)
    assert other.read_text() == text


def test_a_quantised_model_does_not_replace_what_it_is_made_of(tmp_path: Path) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    np.savez(tmp_path / "data.npz", x=np.ones((64, 64), np.float32))
    content = model.read_bytes()
    arguments = ["quantize", model, "--data", tmp_path / "data.npz", "--max-drop", "50%"]
    assert "it is what is read from" in refused(*arguments, "-o", model)
    other = tmp_path / "weights.onnx"
    other.write_text("no model")
    assert "not an ONNX model" in refused(*arguments, "-o", other)
    with pytest.raises(ArtifactError, match="it is what is read from"):
        tilewright.quantize(model, tmp_path / "data.npz", max_drop=0.5, output=model)
    assert model.read_bytes() == content and other.read_text() == "no model"


def test_a_quantised_model_is_not_saved_over_what_it_was_made_of(tmp_path: Path) -> None:
    model = models.written(models.mlp(), tmp_path, "mlp")
    x = np.random.default_rng(0).standard_normal((20, 64), np.float32)
    found = tilewright.quantize(model, {"x": x}, max_drop=0.5, threads=1, kinds=["int8"])
    with pytest.raises(ArtifactError, match="it is what is read from"):
        found.save(model)
    found.save(tmp_path / "small.onnx")
    found.save(tmp_path / "small.onnx")
    onnx.load(tmp_path / "small.onnx")


def test_findings_of_a_run_are_not_put_among_files_of_others(tmp_path: Path) -> None:
    """The folder is emptied when another model comes, and removed at the end."""
    theirs = tmp_path / "calls"
    theirs.mkdir()
    np.savez(theirs / "0.npz", x=np.ones(3))
    with pytest.raises(OptionError, match="it holds files of yours"):
        check_work(theirs)
    said = call("quantize", models.written(models.mlp(), tmp_path, "mlp"), "--data", theirs, "--max-drop", "1%", "-o",
                tmp_path / "small.onnx", "--work", theirs)  # fmt: skip
    assert said.exit_code == 2 and "files of yours" in " ".join(said.output.split())
    assert (theirs / "0.npz").exists()


def test_what_others_put_into_the_folder_of_a_run_stays(tmp_path: Path) -> None:
    work = tmp_path / "work"
    state = State(work, 32 * "a")
    state.put("times", [1, 2])
    (work / "notes.txt").write_text("mine")
    np.savez(work / "mine.npz", x=np.ones(3))
    check_work(work)  # a later run goes on there
    State(work, 32 * "b").done()
    assert sorted(os.listdir(work)) == ["mine.npz", "notes.txt"]
    State(tmp_path / "other", 32 * "a").done()
    assert not (tmp_path / "other").exists()
