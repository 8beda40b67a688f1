"""Tensors of strings, which the host has: what goes in and comes out, and operators on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.reference
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import checked, loaded, model_of


def text(*values: Any) -> np.ndarray:
    return np.array(values, object)


def run(nodes: list, inputs: dict[str, list], *given: Any, constants: dict | None = None) -> list[np.ndarray]:
    """The results of nodes whose inputs are strings; they are those of a loaded model, too."""
    declared = [(name, T.STRING, shape) for name, shape in inputs.items()]
    outputs = [o for o in nodes[-1].output if o]
    model = checked(model_of(nodes, declared, outputs, constants or {}))
    found = list(model(*given))
    for mine, other in zip(found, loaded(model)(*given), strict=True):
        np.testing.assert_array_equal(mine, other)
    return found


def test_strings_go_in_and_come_out() -> None:
    given = text("a", "äöü", "")
    (found,) = run([h.make_node("Identity", ["x"], ["y"])], {"x": ["n"]}, given)
    assert found.dtype == object and found.tolist() == ["a", "äöü", ""] and found is not given


def test_equality_and_concatenation_broadcast() -> None:
    nodes = [h.make_node("StringConcat", ["x", "y"], ["z"])]
    (found,) = run(nodes, {"x": ["n", 1], "y": [2]}, text(["a"], ["b"]), text("c", ""))
    assert found.tolist() == [["ac", "a"], ["bc", "b"]]
    nodes = [h.make_node("Equal", ["x", "y"], ["z"])]
    (found,) = run(nodes, {"x": ["n", 1], "y": [2]}, text(["a"], ["b"]), text("a", "c"))
    assert found.dtype == bool and found.tolist() == [[True, False], [False, False]]


def test_operators_that_move_elements_move_strings() -> None:
    """Two of them after each other take the strings once."""
    nodes = [
        h.make_node("Reshape", ["x", "shape"], ["r"]),
        h.make_node("Transpose", ["r"], ["t"]),
        h.make_node("Concat", ["t", "more"], ["y"], axis=0),
    ]
    constants = {"shape": np.array([2, -1]), "more": text(["p", "q"])}
    given = text(*"abcdef")
    (found,) = run(nodes, {"x": ["n"]}, given, constants=constants)
    assert found.tolist() == [["a", "d"], ["b", "e"], ["c", "f"], ["p", "q"]]
    nodes = [h.make_node("Gather", ["x", "at"], ["y"])]
    (found,) = run(nodes, {"x": ["n"]}, given, constants={"at": np.array([-1, 0])})
    assert found.tolist() == ["f", "a"]


def test_a_choice_between_strings() -> None:
    nodes = [h.make_node("Equal", ["x", "y"], ["same"]), h.make_node("Where", ["same", "x", "no"], ["z"])]
    (found,) = run(nodes, {"x": [2], "y": [2]}, text("a", "b"), text("a", "c"), constants={"no": text("-")})
    assert found.tolist() == ["a", "-"]


@pytest.fixture(scope="module")
def identity() -> tilewright.Model:
    return checked(model_of([h.make_node("Identity", ["x"], ["y"])], [("x", T.STRING, ["n"])], ["y"], {}))


@pytest.mark.parametrize("given", [["a", "b"], ("a", "b"), np.array(["a", "b"]), text("a", "b")], ids=type)
def test_strings_are_lists_and_arrays_of_both_kinds(identity: tilewright.Model, given: Any) -> None:
    assert identity(given)[0].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([b"a"], "must hold strings, not bytes"),
        (np.array([1.0, 2.0]), "must hold strings, not float"),
        (["a", None], "must hold strings, not NoneType"),
        ([["a", "b"]], "must have 1 dims"),
        (["a", ["b"]], "must hold strings, not list"),
    ],
)
def test_what_is_no_string_is_refused(identity: tilewright.Model, given: Any, words: str) -> None:
    with pytest.raises(tilewright.InputError, match=words):
        identity(given)


def test_how_strings_are_described(identity: tilewright.Model) -> None:
    assert str(identity.inputs[0]) == "x: string[n]"
    assert [(a.type, a.shape) for a in identity.get_inputs()] == [("tensor(string)", ["n"])]


def test_an_operator_that_has_no_strings_says_so() -> None:
    model = model_of([h.make_node("Unique", ["x"], ["y"])], [("x", T.STRING, [2])], ["y"], {})
    with pytest.raises(tilewright.UnsupportedError, match=r"Unique\(string\[2\]\) is not supported"):
        checked(model)


def test_a_function_that_the_runtime_does_not_have_is_refused(identity: tilewright.Model) -> None:
    model = checked(model_of([h.make_node("StringConcat", ["x", "x"], ["y"])], [("x", T.STRING, [2])], ["y"], {}))
    data = model.artifact.to_bytes()
    assert data.count(b"concatenate_text") == 1
    steps = model.artifact.program.steps  # type: ignore[union-attr]
    object.__setattr__(steps[0], "function", "unheard_of")
    with pytest.raises(tilewright.ArtifactError, match="calls the function 'unheard_of', which does not exist"):
        tilewright.load(model.artifact.to_bytes())


def test_strings_against_the_reference() -> None:
    """Constants of all three kinds."""
    nodes = [
        h.make_node("Constant", [], ["a"], value_string="x"),
        h.make_node("Constant", [], ["b"], value_strings=["p", "q"]),
        h.make_node("StringConcat", ["a", "b"], ["ab"]),
        h.make_node("StringConcat", ["ab", "x"], ["y"]),
    ]
    model = model_of(nodes, [("x", T.STRING, [2])], ["y"], {})
    reference = onnx.reference.ReferenceEvaluator(model).run(None, {"x": text("1", "2")})
    assert checked(model)(text("1", "2"))[0].tolist() == reference[0].tolist() == ["xp1", "xq2"]
