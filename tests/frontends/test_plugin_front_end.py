"""A front end of a plugin: installed in a folder of its own, or given, it gets all that ONNX gets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright
from tests.frontends import toy
from tests.frontends.helpers import run
from tilewright.frontends.problems import ConstantNeededError
from tilewright.ir.core import Module
from tilewright.ir.diag import ModelError, TypeRuleError, UnsupportedError, VerifyError
from tilewright.runtime.errors import InputError, OptionError, PluginError
from tilewright.session import Session
from tilewright.stages import programs

X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
W = [[1.0, 2.0], [0.0, 1.0], [-1.0, 0.5], [2.0, -3.0]]


def model(**changes: Any) -> dict[str, Any]:
    whole = {
        "toy": 1,
        "inputs": {"x": ["n", 4]},
        "weights": {"w": W, "b": [0.5, -1.0]},
        "nodes": [["matmul", "x", "w", "h"], ["add", "h", "b", "s"], ["relu", "s", "y"]],
        "outputs": ["y"],
    }
    return whole | changes


EXPECTED = np.maximum(X.astype(np.float64) @ np.array(W) + [0.5, -1.0], 0)


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "m.toy"
    path.write_text(json.dumps(model(**changes)))
    return path


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path / "cache", plugins=(toy.PLUGIN,))


# Given


def test_a_given_front_end_reads_files_and_bytes(tmp_path: Path, session: Session) -> None:
    path = written(tmp_path)
    for source in (path, str(path), path.read_bytes()):
        compiled = tilewright.compile(source, session=session)
        assert [str(i) for i in compiled.inputs] == ["x: float32[n, 4]"]
        np.testing.assert_allclose(compiled(X)[0], EXPECTED, rtol=1e-6)
    assert compiled.report().nodes == 3


def test_the_cache_has_the_model_until_its_file_changes(tmp_path: Path, session: Session) -> None:
    def kept() -> int:
        return len(list(session.folder.glob("*.tw")))

    path = written(tmp_path)
    for _ in range(2):
        tilewright.compile(path, session=session)
        assert kept() == 1
    compiled = tilewright.compile(written(tmp_path, weights={"w": W, "b": [0.0, 0.0]}), session=session)
    assert kept() == 2
    np.testing.assert_allclose(compiled(X)[0], np.maximum(X @ np.array(W), 0), rtol=1e-6)


def test_a_plugin_whose_code_comes_from_no_file_keeps_no_models(tmp_path: Path) -> None:
    made = type("Made", (toy.ToyFrontEnd,), {"__module__": "a_module_that_is_no_file"})
    session = Session(tmp_path / "cache", plugins=(toy.Plugin("made", front_ends=(made(),)),))
    sys.modules["a_module_that_is_no_file"] = types.ModuleType("a_module_that_is_no_file")
    try:
        compiled = tilewright.compile(written(tmp_path), session=session)
    finally:
        del sys.modules["a_module_that_is_no_file"]
    assert not list(session.folder.glob("*.tw"))
    (remark,) = [r for r in compiled.report().remarks if r.stage == "cache"]
    assert remark.message == "a plugin's code comes from no file"


def test_shapes_and_constants_fix_its_inputs(tmp_path: Path, session: Session) -> None:
    path = written(tmp_path)
    fixed = tilewright.compile(path, session=session, shapes={"x": [3, 4]})
    assert [str(i) for i in fixed.inputs] == ["x: float32[3, 4]"]
    (y,) = tilewright.compile(path, session=session, constants={"x": X})()
    np.testing.assert_allclose(y, EXPECTED, rtol=1e-6)
    with pytest.raises(ModelError, match="names 'z', which is no input of the model"):
        tilewright.compile(path, session=session, shapes={"z": [1]})


def test_its_programs_are_shown(tmp_path: Path, session: Session) -> None:
    (text,) = programs(written(tmp_path), "import", session=session).values()
    assert "matmul(x, " in text and "max(" in text


def test_what_all_front_ends_share_follows_values(tmp_path: Path, session: Session) -> None:
    """The value of an input is a dim where it is small, and a hint says how to fix it where it is not."""
    nodes = [["reshape", "x", "to", "y"]]
    path = written(tmp_path, nodes=nodes, sizes={"to": [2]})
    module = toy.ToyFrontEnd().load(path, constants={}, shapes={"x": [3, 4]})
    (y,) = run(module, X, np.array([6, 2]))
    assert np.array_equal(y, X.reshape(6, 2))
    path = written(tmp_path, nodes=nodes, sizes={"to": ["k"]})
    with pytest.raises(ConstantNeededError, match=r"pass constants=\{'to': <i64\[k\]>\}"):
        tilewright.compile(path, session=session)


# Errors have the places of the format


def test_all_that_is_not_supported_is_told_at_once(tmp_path: Path, session: Session) -> None:
    nodes = [["frobnicate", "x", "a"], ["relu", "a", "b"], ["defenestrate", "b", "y"]]
    with pytest.raises(UnsupportedError) as caught:
        tilewright.compile(written(tmp_path, nodes=nodes), session=session)
    assert "frobnicate: the operator is unknown [nodes[0] (frobnicate) of" in str(caught.value)
    assert "defenestrate: the operator is unknown [nodes[2] (defenestrate) of" in str(caught.value)


def test_operands_that_do_not_fit_are_shown(tmp_path: Path, session: Session) -> None:
    path = written(tmp_path, nodes=[["matmul", "w", "x", "y"]])
    with pytest.raises(TypeRuleError) as caught:
        tilewright.compile(path, session=session, shapes={"x": [3, 4]})
    assert "matmul(f32[4, 2], f32[3, 4])" in str(caught.value)
    assert f"nodes[0] (matmul) of {path}" in str(caught.value)
    assert "do shapes= and constants= fit the model?" in str(caught.value)


def test_calls_are_checked(tmp_path: Path, session: Session) -> None:
    compiled = tilewright.compile(written(tmp_path), session=session)
    with pytest.raises(InputError, match="'x'"):
        compiled(X[:, :3])


def test_a_damaged_file(tmp_path: Path, session: Session) -> None:
    path = tmp_path / "m.toy"
    path.write_text('{"toy": 1,')
    with pytest.raises(ModelError, match="not a toy model"):
        tilewright.compile(path, session=session)
    with pytest.raises(ModelError, match="does not exist"):
        tilewright.compile(tmp_path / "none.toy", session=session)


# Sources that no front end accepts


def test_an_unknown_source_lists_the_formats(tmp_path: Path, session: Session) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(ModelError) as caught:
        tilewright.compile(path, session=session)
    assert r"begins with b'PK\x03\x04 and more'" in str(caught.value) and "model.pt" in str(caught.value)
    assert "ONNX (.onnx files" in str(caught.value) and "toy models (.toy files" in str(caught.value)
    with pytest.raises(OptionError, match=r"model=3 is not allowed.*\n.*toy models"):
        tilewright.compile(3, session=session)
    with pytest.raises(ModelError, match="does not exist"):
        tilewright.compile(tmp_path / "nothing", session=session)
    with pytest.raises(ModelError, match=r"a folder without config\.json"):
        tilewright.compile(tmp_path, session=session)
    with pytest.raises(ModelError, match="is empty"):
        tilewright.compile(b"", session=session)


def test_a_plugin_that_is_left_out_is_named_where_no_front_end_accepts(tmp_path: Path) -> None:
    session = Session(tmp_path / "cache", plugins=(toy.PLUGIN, toy.PLUGIN))
    with pytest.raises(ModelError, match="plugin 'toy': the plugin is left out: a front end 'toy' exists"):
        tilewright.compile(b"unknown", session=session)
    compiled = tilewright.compile(written(tmp_path), session=session)
    (remark,) = [r for r in compiled.report().remarks if r.stage == "plugins"]
    assert (remark.kind, remark.subject) == ("failed", "plugin 'toy'")
    assert "a front end 'toy' exists already" in remark.message


def test_the_name_of_a_front_end_of_ours_is_taken(tmp_path: Path) -> None:
    class Onnx(toy.ToyFrontEnd):
        name = "onnx"

    session = Session(tmp_path / "cache", plugins=(toy.Plugin("mine", front_ends=(Onnx(),)),))
    (remark,) = session.loaded_plugins.refused
    assert remark.message == "the plugin is left out: a front end 'onnx' exists already"


class Strange(toy.ToyFrontEnd):
    """A front end with defects."""

    def accepts(self, source: Any) -> bool:
        if source == b"unknown":
            raise KeyError("magic")
        return super().accepts(source)

    def load(self, source: Any, **given: Any) -> Any:
        module = super().load(source, **given)
        if b"fails" in source:
            return {}["no such key"]
        if b"lacks" in source:
            raise NotImplementedError("dilated layers")
        module.main.body.ops[-2].attrs["axis"] = 3
        return module


def test_defects_of_a_front_end_are_told_with_its_name(tmp_path: Path) -> None:
    session = Session(tmp_path / "cache", plugins=(toy.Plugin("strange", front_ends=(Strange(),)),))
    with pytest.raises(ModelError, match="the front end 'toy' failed: KeyError: 'magic'"):
        tilewright.compile(b"unknown", session=session)
    text = json.dumps(model())
    with pytest.raises(VerifyError, match=r"the front end 'toy' made an illegal program: .*axis"):
        tilewright.compile(text.encode(), session=session)
    with pytest.raises(ModelError, match="the front end 'toy' of a plugin failed: KeyError: 'no such key'") as caught:
        tilewright.compile(json.dumps(model(fails=1)).encode(), session=session)
    assert "authors of the plugin" in str(caught.value)
    with pytest.raises(UnsupportedError, match="of a plugin does not support the model: dilated layers"):
        tilewright.compile(json.dumps(model(lacks=1)).encode(), session=session)


# Installed


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy's module and the metadata that an installer writes, and a model."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copy(toy.__file__, folder / "toy_format.py")
    metadata = folder / "toy_format-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[tilewright.plugins]\ntoy = toy_format:PLUGIN\n")
    written(folder)
    np.save(folder / "x.npy", X)
    return folder


def call(place: Path, *arguments: str, code: int = 0) -> str:
    """What a command prints; a process of its own, in which the plugin is found by its metadata."""
    places = [str(place), str(Path(tilewright.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "TILEWRIGHT_CACHE": str(place / "cache")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


COMMANDS = """
import shlex, sys
from click.testing import CliRunner
from tilewright.cli.app import commands
for line in sys.argv[1:]:
    result = CliRunner().invoke(commands, shlex.split(line))
    print(f"\x1e{result.exit_code}{result.output}", end="")
"""


def commands(place: Path, *lines: str) -> list[tuple[str, str]]:
    """Exit code and output of each command line."""
    said = call(place, "-c", COMMANDS, *lines).split("\x1e")[1:]
    assert len(said) == len(lines)
    return [(text[:1], text[1:]) for text in said]


def test_an_installed_front_end_has_all_commands(place: Path) -> None:
    said = commands(
        place,
        "compile m.toy -o m.tw",
        "run m.toy --input x=x.npy --output out",
        "bench m.toy --rounds 3 --turn 0.001 --threads 1",
        "show m.toy --level import",
        "explain m.toy",
        "info",
    )
    assert [code for code, _ in said] == ["0"] * 6, said
    compiled, _, measured, shown, explained, about = (text for _, text in said)
    assert "3 operators in" in compiled and "3 operators in" in explained
    np.testing.assert_allclose(np.load(place / "out" / "y.npy"), EXPECTED, rtol=1e-6)
    assert "3 rounds" in measured and "matmul(" in shown
    assert "toy models (.toy files, their bytes)" in about
    assert "toy-format 1.0" in about and "front ends: toy" in about


def test_an_installed_front_end_has_the_cache_and_needs_no_compiler_for_it(place: Path) -> None:
    program = (
        "import sys, tilewright; tilewright.compile('m.toy'); print('tilewright.compiler' in sys.modules)"
    )
    shutil.rmtree(place / "cache", ignore_errors=True)
    assert call(place, "-c", program).strip() == "True"
    assert len(list((place / "cache").glob("*.tw"))) == 1
    assert call(place, "-c", program).strip() == "False"
    with open(place / "toy_format.py", "a") as file:
        file.write("\n# edited\n")
    assert call(place, "-c", program).strip() == "True"
    assert len(list((place / "cache").glob("*.tw"))) == 2


def test_a_plugin_that_cannot_be_imported_is_a_warning_of_commands(place: Path) -> None:
    metadata = place / "broken-2.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[tilewright.plugins]\nbroken = no_such_module:PLUGIN\n")
    try:
        (place / "unknown.bin").write_bytes(b"what is this")
        said = commands(
            place,
            "run m.toy --input random",
            "show m.toy",
            "explain m.toy",
            "info",
            "run unknown.bin --input random",
        )
        assert [code for code, _ in said] == ["0", "0", "0", "0", "1"]
        for _, text in said[:3]:
            assert "warning: plugin 'broken' of broken 2.0: the plugin is left out: importing it" in text
        for _, text in said[3:]:
            assert "plugin 'broken' of broken 2.0" in text and "importing it failed" in text
    finally:
        shutil.rmtree(metadata)


@pytest.mark.parametrize("answer", [3, None, KeyError("x")])
def test_a_digest_that_fails_is_told_as_theirs(tmp_path: Path, answer: object) -> None:
    class Wrong(toy.ToyFrontEnd):
        def digest(self, source: object, remember: object) -> bytes:
            if isinstance(answer, Exception):
                raise answer
            return answer  # type: ignore[return-value]

    session = Session(tmp_path / "cache", plugins=(toy.Plugin("wrong", front_ends=(Wrong(),)),))
    with pytest.raises(PluginError, match="the front end 'toy' of a plugin failed: "):
        tilewright.compile(written(tmp_path), session=session)


def test_what_is_no_module_is_told_as_theirs(tmp_path: Path) -> None:
    class Wrong(toy.ToyFrontEnd):
        def load(self, source: object, **given: object) -> Module:
            return "a module"  # type: ignore[return-value]

    session = Session(tmp_path / "cache", plugins=(toy.Plugin("wrong", front_ends=(Wrong(),)),))
    for ask in (tilewright.compile, tilewright.check):
        with pytest.raises(ModelError, match="plugin failed: TypeError: its 'load' gave a str, and no Module"):
            ask(written(tmp_path), session=session)
