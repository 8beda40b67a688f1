"""Arguments of the wrong kind, given to each public function in each place, are refused by an error of the package."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import tilewright
from tilewright.stages import programs

WRONG: dict[str, Any] = {
    "a number": 3, "a fraction": 2.5, "a name": "nope", "bytes": b"x", "a list": ["nope"], "a dict": {"nope": 1},
    "a dict of nothing": {"x": None}, "a dict by numbers": {3: 4}, "a dict of matrices": {"x": np.zeros((3, 2))},
    "an object": object(), "an array": np.zeros(3), "NaN": float("nan"), "a type": int, "a negative number": -1,
}  # fmt: skip


@pytest.fixture(scope="module")
def model() -> bytes:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [info("x", TensorProto.FLOAT, ["n", 4])], [info("y", TensorProto.FLOAT, ["n", 4])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return made.SerializeToString()


def refused_or_right(call: Callable[[], object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except tilewright.TilewrightError as error:
            assert not isinstance(error, tilewright.InternalError)


def keywords(function: Callable[..., Any], *given: str) -> list[str]:
    every = inspect.signature(function).parameters.values()
    return [p.name for p in every if p.kind is not p.VAR_KEYWORD and p.name not in given]


FUNCTIONS = {
    "compile": (tilewright.compile, {}),
    "check": (tilewright.check, {}),
    "diff": (tilewright.diff, {"a": ..., "b": ..., "random": 1}),
    "programs": (programs, {"model": ..., "level": "loops"}),
    "Session": (tilewright.Session, {}),
    "Options": (tilewright.Options, {}),
}


@pytest.mark.sweep
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, wrong: str, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    function, others = FUNCTIONS[name]
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    given: Mapping[str, Any] = {k: model if v is ... else v for k, v in others.items()}
    if name in ("compile", "check"):
        given = {"model": model}
    for key in keywords(function):
        if name == "compile" and key in ("example_inputs", "dynamic_shapes"):
            continue  # what a front end takes there is its own
        if key == "progress" and callable(WRONG[wrong]):
            continue  # what it raises reaches the caller
        refused_or_right(lambda key=key: function(**{**given, key: WRONG[wrong]}))  # type: ignore[misc]


@pytest.mark.parametrize("wrong", WRONG)
def test_models(wrong: str, model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    value = WRONG[wrong]
    made = tilewright.compile(model, session=tilewright.Session(tmp_path / "cache"), profile=True)
    x = np.zeros((2, 4), np.float32)
    for call in (
        lambda: made(value), lambda: made(nope=value), lambda: made(x, out=value), lambda: made(x, value),
        lambda: made.run(value), lambda: made.run(value, {"x": x}), lambda: made.run(None, value),
        lambda: made.run_dict(value), lambda: made.with_outputs(value), lambda: made.profile(value),
        lambda: made.profile({"x": x}, value), lambda: made.sizes_seen(value), lambda: made.save(value),
        lambda: tilewright.load(value), lambda: tilewright.Model(value),
    ):  # fmt: skip
        refused_or_right(call)


def test_a_session_takes_the_name_of_its_folder(tmp_path: Path) -> None:
    assert tilewright.Session(str(tmp_path)).folder == tmp_path
    assert {f.name for f in dataclasses.fields(tilewright.Session)} == {"folder", "limit", "plugins"}
