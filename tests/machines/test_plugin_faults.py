"""What a back end or an executor of a plugin raises is told as theirs, and never as a defect of the compiler."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright
from tests.machines.assembler import Assembler
from tests.machines.test_toy import X, model, session
from tests.machines.toy import PLUGIN, Toy, ToyBackEnd
from tilewright.cli.app import FAULT_OF_INPUT, commands
from tilewright.options import Options, Progress
from tilewright.plugins import Plugin
from tilewright.runtime.executor import DrivenCode
from tilewright.session import Session
from tilewright.stages import programs


class Failing:
    """A pass, or the code of a model, that fails."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def fail(self, *_: Any, **__: Any) -> Any:
        raise self.error

    run = kernel = program = begin = objects = fail
    submitted = 0
    failed = ""

    def __enter__(self) -> Failing:
        return self

    def __exit__(self, *_: object) -> None: ...


def failing(method: str, error: Exception) -> Plugin:
    """The toy, whose back end fails in a method, or in what that gives."""

    class Back(ToyBackEnd):
        pass

    def fail(*_: Any) -> Any:
        raise error

    given = {"a pass": ("passes", lambda *_: [Failing(error)]), "the code": ("code", lambda *_: Failing(error))}
    name, function = given.get(method, (method, fail))
    setattr(Back, name, function)
    return dataclasses.replace(PLUGIN, back_ends=(Back(),))


METHODS = ["check", "passes", "a pass", "strategies", "spec", "arrange", "code", "the code", "target"]


@pytest.mark.parametrize("method", METHODS)
def test_what_a_back_end_raises_names_it(method: str, tmp_path: Path) -> None:
    own = Session(folder=tmp_path, plugins=(failing(method, KeyError("tile")),))
    with pytest.raises(tilewright.PluginError) as error:
        tilewright.compile(model("relu"), target="toy", session=own)
    assert str(error.value) == (
        "the back end 'toy' of a plugin failed: KeyError: 'tile'\n  hint: report it to the authors of the plugin"
    )
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_back_end_has_not_implemented_is_not_supported(method: str, tmp_path: Path) -> None:
    own = Session(folder=tmp_path, plugins=(failing(method, NotImplementedError("no exp")),))
    with pytest.raises(tilewright.UnsupportedError, match=r"back end .toy. of a plugin does not support .*: no exp"):
        tilewright.compile(model("relu"), target="toy", session=own)


@pytest.mark.parametrize("method", ["the code", "target"])
def test_for_users_too(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their compilations try again without what failed, which helps as little."""
    monkeypatch.setattr("tilewright.compiler.failures_are_errors", lambda options: options.verify or options.strict)
    own = Session(folder=tmp_path, plugins=(failing(method, IndexError("tile")),))
    with pytest.raises(tilewright.PluginError, match="back end 'toy' of a plugin failed: IndexError: tile"):
        tilewright.compile(model("relu"), target="toy", session=own)


WRONG: dict[str, Any] = {
    "passes": [3], "strategies": None, "spec": "loops", "code": None, "target": {"kind": "toy"},
    "kernel": "text", "program": b"", "objects": ["text"], "submitted": "1",
}  # fmt: skip


@pytest.mark.parametrize("method", WRONG)
def test_an_answer_of_another_type_is_told_as_theirs(method: str, tmp_path: Path) -> None:
    class Other(Assembler):
        pass

    class Back(ToyBackEnd):
        def code(self, machine: Toy, options: Options) -> Assembler:
            return Other(machine)

    if hasattr(ToyBackEnd, method):
        setattr(Back, method, lambda *_: WRONG[method])
    else:
        setattr(Other, method, WRONG[method] if method == "submitted" else lambda *_: WRONG[method])
    own = Session(folder=tmp_path, plugins=(dataclasses.replace(PLUGIN, back_ends=(Back(),)),))
    with pytest.raises(tilewright.PluginError, match=f"the back end 'toy' of a plugin failed: its '{method}' gave a "):
        tilewright.compile(model("relu"), target="toy", session=own)


def test_a_method_that_it_lacks(tmp_path: Path) -> None:
    class Half:
        name = "toy"

    own = Session(folder=tmp_path, plugins=(dataclasses.replace(PLUGIN, back_ends=(Half(),)),))
    with pytest.raises(tilewright.PluginError, match="'Half' object has no attribute 'check'"):
        tilewright.compile(model("relu"), target="toy", session=own)


def test_stages_and_checks(tmp_path: Path) -> None:
    own = Session(folder=tmp_path, plugins=(failing("passes", ValueError("none")),))
    for ask in (
        lambda: programs(model("relu"), "graph", options=Options(target="toy"), session=own),
        lambda: tilewright.check(model("relu"), options=Options(target="toy"), session=own),
    ):
        with pytest.raises(tilewright.PluginError, match="back end 'toy' of a plugin failed: ValueError: none"):
            ask()


def test_what_its_client_raises_while_it_is_told_of_progress_stays(tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        tilewright.compile(model("relu"), target="toy", session=session(tmp_path), progress=stop)


@pytest.mark.parametrize("error", [NotImplementedError("no exp"), KeyError("tile")])
def test_the_command_calls_it_no_defect_of_ours(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "relu.onnx"
    path.write_bytes(model("relu"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    own = failing("the code", error)
    monkeypatch.setattr("tilewright.session.find_plugins", lambda: tilewright.plugins.given_plugins([own]))
    result = CliRunner().invoke(commands, ["compile", str(path), "-o", str(tmp_path / "a.tw"), "--target", "toy"])
    assert result.exit_code == FAULT_OF_INPUT, result.output
    assert "the back end 'toy' of a plugin" in result.output and "defect" not in result.output


@pytest.mark.parametrize("error", [NotImplementedError("no exp"), AssertionError("tile")])
def test_what_makes_an_executor(error: Exception, tmp_path: Path) -> None:
    own = Session(folder=tmp_path, plugins=(failing("executor", error),))
    with pytest.raises(tilewright.PluginError, match=f"machines of the kind 'toy' of a plugin .*: {error}"):
        tilewright.compile(model("relu"), target="toy", session=own)


@pytest.mark.parametrize("error", [NotImplementedError("no exp"), LookupError("tile")])
def test_an_executor_that_fails_in_a_call(error: Exception, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise error

    artifact = tilewright.compile(model("relu"), target="toy", session=session(tmp_path)).artifact
    broken = tilewright.Model(artifact, executor=lambda a: DrivenCode(a, fail))
    with pytest.raises(tilewright.PluginError, match=f"the executor of a plugin .* kind 'toy' .*: {error}") as raised:
        broken(np.asarray(X))
    assert raised.value.__cause__ is error
