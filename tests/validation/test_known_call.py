"""A call that a compiled model keeps: `tilewright verify` needs nothing else to say whether the file is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import tilewright
from tests.models import mlp
from tilewright.cli.commands.verify import command
from tilewright.runtime import Artifact
from tilewright.runtime.errors import ArtifactError
from tilewright.runtime.values.known_call import KNOWN_CALL, KnownCall, KnownResult
from tilewright.target.host import host_target


@pytest.fixture(scope="module")
def artifact() -> Artifact:
    is_known = "avx2" in host_target().features
    options: dict[str, Any] = {"target": "x86-64-v3"} if is_known else {}
    return tilewright.compile(mlp(), threads=1, cache=False, validate=True, **options).artifact


def verified(artifact: Artifact, folder: Path, *more: str) -> tuple[int, str]:
    path = folder / "model.tw"
    artifact.save(path)
    found = CliRunner().invoke(command, [str(path), "--threads", "1", *more])
    return found.exit_code, f"{found.output}{'' if found.exception is None else found.exception}"


def test_models_that_give_strings_are_validated_and_keep_no_call(tmp_path: Path) -> None:
    words = helper.make_node(
        "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=[0, 1], values_strings=["no", "yes"]
    )
    graph = helper.make_graph(
        [words], "words", [helper.make_tensor_value_info("x", TensorProto.INT64, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, [2, 3])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 4)]
    model = tilewright.compile(helper.make_model(graph, opset_imports=opsets), threads=1, cache=False, validate=True)
    assert model(np.array([[0, 1, 1], [1, 0, 0]]))[0].tolist() == [["no", "yes", "yes"], ["yes", "no", "no"]]
    code, said = verified(model.artifact, tmp_path)
    assert code == 1 and "keeps no call" in said


def with_call(artifact: Artifact, record: Mapping[str, Any] | None) -> Artifact:
    return replace(artifact, attached={} if record is None else {KNOWN_CALL: record})


def test_a_call_that_is_kept_is_run_again(artifact: Artifact, tmp_path: Path) -> None:
    known = KnownCall.of(artifact.attached, "the model")
    assert known is not None and list(known.inputs) == [info.name for info in artifact.inputs]
    code, told = verified(artifact, tmp_path)
    assert code == 0 and "as the interpreter has it, up to rounding" in told
    (result,) = known.results
    assert result is not None
    far = replace(result, wanted=result.wanted + np.float32(1))
    code, told = verified(with_call(artifact, replace(known, results=[far]).record()), tmp_path)
    name = artifact.outputs[0].name
    assert code == 1 and f"'{name}' is wrong: " in told and f"of {far.wanted.size} elements differ" in told
    code, told = verified(with_call(artifact, replace(known, results=[far]).record()), tmp_path, "--json")
    assert code == 1 and '"holds": false' in told


def test_what_cannot_be_checked_is_said(artifact: Artifact, tmp_path: Path) -> None:
    record: Any = artifact.attached[KNOWN_CALL]
    result = {**record["results"][0], "wanted": {"dtype": "float32", "shape": [2], "data": "?"}}
    damaged = {**record, "results": [result]}
    name = artifact.inputs[0].name
    short = {**record, "inputs": {name: {**record["inputs"][name], "shape": [1]}}}
    for wrong, said in (
        (None, "keeps no call"), (damaged, "the call that it keeps cannot be read"),
        (short, "the call that it keeps cannot be read"), ([], "the call that it keeps cannot be read"),
    ):  # fmt: skip
        code, told = verified(with_call(artifact, wrong), tmp_path)
        assert code == 1 and said in told
    assert verified(artifact, tmp_path, "--model", "x.onnx")[0] == 2
    path = tmp_path / "model.tw"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArtifactError):
        CliRunner().invoke(command, [str(path)], catch_exceptions=False)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))  # the name alone says that it is a model
    with pytest.raises(ArtifactError, match="not a compiled model"):
        CliRunner().invoke(command, [str(path)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("wanted", "allowed", "flips", "found", "is_right"),
    [
        (np.float32([1, np.inf]), 0.1, 0, np.float32([1.05, 3]), True),
        (np.float32([1, 2]), 0.1, 0, np.float32([1, np.nan]), False),
        (np.int64([2**62, 5]), 0, 0, np.int64([2**62 + 1, 5]), False),
        (np.int8([1, 2, 3, 4]), 0, 0.25, np.int8([1, 2, 3, 5]), True),
        (np.int8([1, 2, 3, 4]), 0, 0.25, np.int8([1, 2, 4, 5]), False),
        (np.float32(3), 0.1, 0, np.float32([3]), False),
        (np.zeros((0, 3), np.float32), 0, 0, np.zeros((0, 3), np.float32), True),
        (np.array([True]), 0, 0, np.array([1.0]), False),
    ],
)
def test_results_are_compared(
    wanted: np.ndarray, allowed: float, flips: float, found: np.ndarray, is_right: bool
) -> None:
    wanted = np.asarray(wanted)
    known = KnownCall({"x": wanted}, [KnownResult(wanted, np.full(wanted.shape, allowed), flips), None])
    again = KnownCall.of({KNOWN_CALL: known.record()}, "the model")
    assert again is not None
    for call in (known, again):
        wrong = call.differences(lambda *_: [np.asarray(found), np.zeros(1)], ["y", "z"])
        assert list(wrong) == ([] if is_right else ["y"])
