"""Artefacts whose checksums are right and whose metadata is not what the compiler writes: an ArtifactError each.

`python -m tests.fuzz reader` finds such files; these are what it found, and what belongs to them.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tests.runtime.native import static_artifact
from tests.staging.models import compiled
from tilewright.program.native import GroupNative
from tilewright.runtime import Artifact, Model
from tilewright.runtime.errors import ArtifactError, ExecutionError
from tilewright.runtime.storage.container import container_bytes, read_container
from tilewright.runtime.storage.records import record
from tilewright.runtime.values.dtypes import numpy_dtype


def changed(artifact: Artifact, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The bytes of an artefact whose metadata was changed, signed as if it were right."""
    metadata, sections, *_ = read_container(artifact.to_bytes())
    change(metadata)
    return container_bytes(metadata, sections)


def nested(depth: int) -> Any:
    found: Any = None
    for _ in range(depth):
        found = {"name": "", "dtype": "", "shape": [], "kind": "optional", "element": found}
    return found


@pytest.fixture(scope="module")
def staged() -> Artifact:
    return staged_model()


def staged_model() -> Artifact:
    """A loop with a computed end around a part, after a function of the host."""
    boolean, i64 = TensorProto.BOOL, TensorProto.INT64
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["v", "v"], ["w"])],
        "body",
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("i", i64, []), ("go", boolean, []), ("v", 1, [2]))],
        [helper.make_tensor_value_info(n, t, s) for n, t, s in (("on", boolean, []), ("w", 1, [2]))],
    )
    nodes = [
        helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body),
        helper.make_node("StringConcat", ["a", "a"], ["b"]),
    ]
    inputs = [("trips", i64, []), ("x", 1, [2]), ("a", TensorProto.STRING, ["n"])]
    return compiled(nodes, inputs, ["y", "b"]).artifact


def entry(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one entry."""

    def change(metadata: Any) -> None:
        for key in path[:-1]:
            metadata = metadata[key]
        metadata[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        entry("inputs", value=[3]),
        entry("inputs", value={"x": 1}),
        entry("inputs", 0, "name", value=3),
        entry("inputs", 0, "shape", value=[2, 3.5]),
        entry("inputs", 0, "shape", value=[2, True]),
        entry("inputs", 0, "kind", value="tensors"),
        entry("inputs", 0, "kind", value="sequence"),
        entry("inputs", 0, "element", value=nested(400)),
        entry("inputs", 0, "more", value=1),
        entry("target", value=None),
        entry("target", "features", value=["avx2", 3]),
        entry("static_plan", value=[1, 2]),
        entry("static_plan", "arena", value="many"),
        entry("static_plan", "most_threads", value=-1),
        entry("variables", value="n"),
        entry("dims_count", value=None),
        entry("run_symbol", value=7),
        entry("report", value=[]),
        entry("report", "text", value=None),
        entry("report", "urgent", value=["text"]),
        entry("report", "urgent", value=[{"stage": "fuse", "subject": "", "message": "", "kind": "new"}]),
        entry("attached", value=[]),
        entry("model", value=None),
        entry("errors", 0, value={"kind": "execution"}),
        entry("parts", value=3),
        entry("parts", value=["part"]),
        lambda metadata: metadata.update(parts=[dict(metadata)]),
        lambda metadata: metadata.pop("outputs"),
    ],
)
def test_metadata_of_other_types(change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ArtifactError, match="the metadata is malformed"):
        Artifact.load(changed(static_artifact(), change))


STEPS = ("program", "steps")


def of_loop(metadata: dict[str, Any]) -> dict[str, Any]:
    return next(s for s in metadata["program"]["steps"] if s["step"] == "RunLoop")


def of_native(metadata: dict[str, Any]) -> dict[str, Any]:
    return next(s for s in metadata["program"]["steps"] if s["step"] == "RunNative")


@pytest.fixture(scope="module")
def by_host() -> Artifact:
    """The same, of which the host runs the loop."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupNative, "run", lambda *_: None)
        return staged_model()


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: of_native(metadata)["inputs"].append(metadata["program"]["inputs"][2]),
        lambda metadata: of_native(metadata).update(inputs=[79, 80]),
        lambda metadata: of_native(metadata)["input_types"].pop(),
        lambda metadata: of_native(metadata)["output_types"].pop(),
        lambda metadata: of_native(metadata).update(function="first"),
        entry("program", "slots", value=[]),
        entry("program", "loops", value=3),
    ],
)
def test_native_code_that_cannot_be_called(staged: Artifact, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ArtifactError, match="the metadata is malformed"):
        Artifact.load(changed(staged, change))


@pytest.mark.parametrize(
    "change",
    [
        entry("program", value=[]),
        entry("program", "values", value=2**40),
        entry("program", "values", value=1),
        entry("program", "inputs", value=[0]),
        entry("program", "inputs", 0, value=-1),
        entry("program", "outputs", 0, value=90),
        entry(*STEPS, value=[]),
        entry(*STEPS, 0, "step", value="RunAway"),
        entry(*STEPS, 0, "step", value={}),
        entry(*STEPS, 0, "frees", value=[1000]),
        lambda metadata: of_loop(metadata)["arguments"].pop(),
        lambda metadata: of_loop(metadata)["results"].pop(),
        lambda metadata: of_loop(metadata)["inputs"].pop(),
        lambda metadata: of_loop(metadata)["body"][0].update(part=7),
        lambda metadata: of_loop(metadata)["body"][0]["inputs"].append(0),
        lambda metadata: of_loop(metadata)["body"][0].update(inputs=[79]),
        lambda metadata: of_loop(metadata)["body"][0].update(frees=metadata["program"]["inputs"]),
        entry("parts", 1, "inputs", value=[]),
    ],
)
def test_programs_that_cannot_be_run(by_host: Artifact, change: Callable[[dict[str, Any]], object]) -> None:
    with pytest.raises(ArtifactError, match="the metadata is malformed"):
        Artifact.load(changed(by_host, change))


def test_a_host_function_with_other_results_than_the_program_takes(by_host: Artifact) -> None:
    def twice(metadata: dict[str, Any]) -> None:
        call = next(s for s in metadata["program"]["steps"] if s["step"] == "CallHost")
        call["outputs"] = call["outputs"] * 2

    model = Model(Artifact.load(changed(by_host, twice)), 1)
    with pytest.raises(ExecutionError, match="a step of the model failed"):
        model(np.array(1), np.ones(2, np.float32), ["a"])


def test_native_steps_of_other_parts(staged: Artifact) -> None:
    """Native steps call parts by their places, for which they were made."""

    def moved(metadata: dict[str, Any]) -> None:
        metadata["parts"].append(metadata["parts"][0])

    with pytest.raises(ArtifactError, match="the artefact's code lacks the function tw_steps_"):
        Model(Artifact.load(changed(staged, moved)), 1)


def test_parameters_of_host_functions_that_lie_deep(staged: Artifact) -> None:
    def deep(metadata: dict[str, Any]) -> None:
        call = next(s for s in metadata["program"]["steps"] if s["step"] == "CallHost")
        call["parameters"] = {"a": json.loads("[" * 200 + "]" * 200)}

    with pytest.raises(ArtifactError, match="more than 32 deep"):
        Artifact.load(changed(staged, deep))


def test_native_steps_of_another_program(staged: Artifact) -> None:
    def another(metadata: dict[str, Any]) -> None:
        metadata["program"]["frame_words"] = 20

    artifact = Artifact.load(changed(staged, another))
    with pytest.raises(ArtifactError, match="the artefact's code lacks the function tw_steps_"):
        Model(artifact, 1)


def test_a_program_as_it_was_written(staged: Artifact) -> None:
    again = Artifact.load(changed(staged, lambda metadata: None))
    assert again == staged
    y, b = Model(again, 1)(np.array(3), np.ones(2, np.float32), ["a"])
    assert (y.tolist(), b.tolist()) == ([8, 8], ["aa"])


@pytest.mark.parametrize("name", ["", "tw_\0run"])
@pytest.mark.parametrize("field", ["run_symbol", "plan_symbol"])
def test_symbols_that_no_code_can_have(field: str, name: str) -> None:
    plan = (lambda metadata: metadata.update(static_plan=None)) if field == "plan_symbol" else lambda metadata: None

    def change(metadata: dict[str, Any]) -> None:
        plan(metadata)
        metadata[field] = name

    artifact = Artifact.load(changed(static_artifact(), change))
    with pytest.raises(ArtifactError, match="lacks the function"):
        Model(artifact, 1)


@pytest.mark.parametrize("name", ["f4,f4", "16*n + 40", "<f4", "float33", "", "__name__", "finfo", "a" * 300])
def test_dtypes_that_numpy_reads_otherwise_or_not(name: str) -> None:
    with pytest.raises(ArtifactError, match="which NumPy does not have"):
        numpy_dtype(name)


def test_json_too_deep_to_be_read() -> None:
    text = b"[" * 5000 + b"]" * 5000
    good = static_artifact().to_bytes()
    head = good[:16] + struct.pack("<QQ", len(text), 64 + len(text))
    data = head + hashlib.blake2b(head + text, digest_size=32).digest() + text
    with pytest.raises(ArtifactError, match="the metadata is malformed"):
        Artifact.load(data)


@pytest.mark.parametrize(
    "change",
    [
        entry("report", "text", value="{"),
        entry("report", "text", value="[" * 5000),
        entry("report", "text", value='{"version": 1, "kernels": "two"}'),
    ],
)
def test_a_report_that_is_none_is_an_error_when_it_is_asked_for(change: Callable[[dict[str, Any]], object]) -> None:
    model = Model(Artifact.load(changed(static_artifact(), change)), 1)
    np.testing.assert_array_equal(model(np.zeros((2, 3), np.float32))[0], np.arange(6).reshape(2, 3))
    with pytest.raises(ArtifactError, match="the report cannot be read"):
        model.report()


@dataclass(frozen=True)
class _Point:
    at: tuple[int, ...]
    name: str | None = None


def test_records() -> None:
    assert record(_Point, {"at": [1, 2]}) == _Point((1, 2))
    assert record(_Point, {"name": "p"}, at=3) == _Point(3, "p")  # type: ignore[arg-type]
    for data in ({}, {"at": 3}, {"at": [1, "2"]}, {"at": [], "name": 3}, {"at": [], "z": 3}, [], None):
        with pytest.raises(ValueError):
            record(_Point, data)
