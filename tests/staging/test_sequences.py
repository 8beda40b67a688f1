"""Sequences and optionals: known ones are resolved when compiling, others are lists that the host has."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import checked, compiled, loaded, model_of
from tilewright.runtime.staged import functions

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def sequence_info(name: str, shape: list | None, dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_value_info(name, h.make_sequence_type_proto(h.make_tensor_type_proto(dtype, shape)))


def optional_info(name: str, shape: list | None) -> onnx.ValueInfoProto:
    return h.make_value_info(name, h.make_optional_type_proto(h.make_tensor_type_proto(T.FLOAT, shape)))


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert isinstance(found, list) and len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(found, wanted)


def run(nodes: list, inputs: list, outputs: list[str], *given: Any, constants: dict | None = None) -> list[Any]:
    model = checked(model_of(nodes, inputs, outputs, constants or {}))
    found, again = model(*given), loaded(model)(*given)
    for a, b in zip(found, again, strict=True):
        same(a, b)
    return list(found)


def test_a_known_sequence_is_resolved_when_compiling() -> None:
    nodes = [
        h.make_node("SequenceConstruct", ["x", "y"], ["s"]),
        h.make_node("SequenceInsert", ["s", "x", "first"], ["s3"]),
        h.make_node("SequenceErase", ["s3", "first"], ["s2"]),
        h.make_node("SequenceAt", ["s2", "last"], ["one"]),
        h.make_node("ConcatFromSequence", ["s3"], ["all"], axis=0),
        h.make_node("ConcatFromSequence", ["s3"], ["new"], axis=-1, new_axis=1),
        h.make_node("SequenceLength", ["s3"], ["n"]),
        h.make_node("Exp", ["one"], ["e"]),
    ]
    constants = {"first": np.array(0), "last": np.array(-1)}
    inputs = [("x", T.FLOAT, ["n", 3]), ("y", T.FLOAT, ["n", 3])]
    model = checked(model_of(nodes, inputs, ["e", "all", "new", "n"], constants))
    assert model.artifact.program is None
    e, everything, new, n = model(X, -X)
    np.testing.assert_allclose(e, np.exp(-X), rtol=1e-6)
    same([everything, new, n], [np.concatenate([X, X, -X]), np.stack([X, X, -X], -1), np.array(3)])


def test_positions_that_are_computed_are_looked_up_by_the_host() -> None:
    nodes = [
        h.make_node("SequenceConstruct", ["x", "y"], ["s"]),
        h.make_node("SequenceInsert", ["s", "x", "k"], ["more"]),
        h.make_node("SequenceErase", ["more", "k"], ["less"]),
        h.make_node("SequenceAt", ["more", "k"], ["one"]),
        h.make_node("Exp", ["one"], ["e"]),
        h.make_node("SequenceLength", ["less"], ["n"]),
    ]
    inputs = [("x", T.FLOAT, ["n", 3]), ("y", T.FLOAT, ["m", 3]), ("k", T.INT64, [])]
    more, e, n = run(nodes, inputs, ["more", "e", "n"], X, -X[:1], np.array(1))
    same([more, n], [[X, X, -X[:1]], np.array(2)])
    np.testing.assert_allclose(e, np.exp(X), rtol=1e-6)
    model = checked(model_of(nodes, inputs, ["e"], {}))
    with pytest.raises(tilewright.InputError, match="position 3 of a sequence of 2 elements"):
        model(X, X, np.array(3))


def test_sequences_go_in_and_come_out() -> None:
    inputs = [sequence_info("s", [None, 3])]
    nodes = [h.make_node("ConcatFromSequence", ["s"], ["all"], axis=0), h.make_node("Exp", ["all"], ["e"])]
    for given in ([X, X[:1]], [X], (X, X, X)):
        (e,) = run(nodes, inputs, ["e"], given)
        np.testing.assert_allclose(e, np.exp(np.concatenate(given)), rtol=1e-6)
    (found,) = run([h.make_node("Identity", ["s"], ["t"])], inputs, ["t"], [X])
    same(found, [X])
    assert found[0] is not X


@pytest.mark.parametrize("sizes", [None, np.array(2), np.array([1, 0, 4])], ids=["ones", "twos", "given"])
@pytest.mark.parametrize("known", [True, False])
def test_splitting(sizes: np.ndarray | None, known: bool) -> None:
    x = np.arange(10, dtype=np.int64).reshape(2, 5)
    nodes = [h.make_node("SplitToSequence", ["x", *(["sizes"] if sizes is not None else [])], ["s"], axis=-1)]
    inputs: list = [("x", T.INT64, [2, 5 if known else "n"])]
    constants = {"sizes": sizes} if sizes is not None else {}
    if sizes is not None and not known:
        inputs, constants = [*inputs, ("sizes", T.INT64, list(sizes.shape))], {}
    given = [x] if sizes is None or known else [x, sizes]
    ends = range(1, 5) if sizes is None else [2, 4] if sizes.ndim == 0 else np.cumsum(sizes)[:-1]
    (found,) = run(nodes, inputs, ["s"], *given, constants=constants)
    same(found, np.split(x, ends, axis=-1))


def test_splitting_without_the_axis() -> None:
    for dim in (3, "n"):
        nodes = [h.make_node("SplitToSequence", ["x"], ["s"], axis=1, keepdims=0)]
        (found,) = run(nodes, [("x", T.FLOAT, [2, dim])], ["s"], X)
        same(found, [X[:, 0], X[:, 1], X[:, 2]])


def test_strings_in_sequences() -> None:
    words = np.array(["a", "b", "c"], object)
    nodes = [
        h.make_node("SplitToSequence", ["x"], ["s"], axis=0),
        h.make_node("SequenceInsert", ["s", "x"], ["t"]),
        h.make_node("ConcatFromSequence", ["t"], ["y"], axis=0),
    ]
    for dim in (3, "n"):
        (found,) = run(nodes, [("x", T.STRING, [dim])], ["y"], words)
        assert found.tolist() == ["a", "b", "c", "a", "b", "c"]


def test_elements_of_different_ranks_have_no_operators() -> None:
    nodes = [h.make_node("SequenceAt", ["s", "k"], ["one"]), h.make_node("Exp", ["one"], ["y"])]
    inputs = [sequence_info("s", None), ("k", T.INT64, [])]
    (one,) = run(nodes[:1], inputs, ["one"], [X, X[0]], np.array(1))
    same(one, X[0])
    with pytest.raises(tilewright.UnsupportedError, match="the rank of 'one' is not known"):
        checked(model_of(nodes, inputs, ["y"], {}))


@pytest.mark.parametrize("given", [X, None])
def test_optionals(given: np.ndarray | None) -> None:
    nodes = [h.make_node("OptionalHasElement", ["x"], ["has"]), h.make_node("Identity", ["x"], ["y"])]
    has, y = run(nodes, [optional_info("x", [2, 3])], ["has", "y"], given)
    assert has == (given is not None) and (y is None if given is None else np.array_equal(y, given))


@pytest.mark.parametrize(
    "name, given, parameters",
    [
        ("sequence", [X], {}),
        ("sequence_length", [[X]], {}),
        ("sequence_at", [[X], np.array(0)], {}),
        ("sequence_insert", [[], X], {}),
        ("sequence_erase", [[X, X]], {}),
        ("concatenate_sequence", [[X]], {"axis": 0, "new_axis": False}),
        ("split_to_sequence", [X], {"axis": 0, "keeps_axis": True}),
        ("optional", [X], {}),
        ("optional_has_element", [X], {}),
        ("optional_get_element", [X], {}),
        ("copied", [X], {}),
        ("copied", [[X]], {}),
        ("unique", [X], {"axis": None, "in_order": False}),
    ],
)
def test_functions_say_whether_they_hand_on_what_they_are_given(name: str, given: Any, parameters: Any) -> None:
    results = functions.bound(name, parameters)(*given)
    elements = [e for result in results for e in (result if isinstance(result, list) else [result])]
    assert any(np.shares_memory(e, X) for e in elements) == (name in functions.HANDS_ON)


def test_the_element_of_an_optional() -> None:
    nodes = [h.make_node("OptionalGetElement", ["x"], ["e"]), h.make_node("Exp", ["e"], ["y"])]
    model = checked(model_of(nodes, [optional_info("x", ["n", 3])], ["y"], {}))
    np.testing.assert_allclose(model(X)[0], np.exp(X), rtol=1e-6)
    with pytest.raises(tilewright.InputError, match="the optional has no value"):
        model(None)


def test_an_optional_that_is_known() -> None:
    nodes = [
        h.make_node("Optional", ["x"], ["o"]),
        h.make_node("OptionalGetElement", ["o"], ["y"]),
        h.make_node("OptionalHasElement", ["o"], ["has"]),
        h.make_node("OptionalHasElement", [""], ["not"]),
    ]
    model = checked(model_of(nodes, [("x", T.FLOAT, [2, 3])], ["y", "has", "not"], {}))
    assert model.artifact.program is None
    y, has, has_not = model(X)
    assert np.array_equal(y, X) and has and not has_not


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (X, "must be a list, not ndarray"),
        ([X, X[0]], r"input 's\[1\]' must have 2 dims"),
        ([X, X[:, :2]], r"input 's\[1\]': dim 1 must be 3"),
        ([X.astype(np.float64)], r"input 's\[0\]' must be float32"),
        (None, "must be a list"),
    ],
)
def test_what_is_no_such_sequence_is_refused(given: Any, words: str) -> None:
    model = checked(model_of([h.make_node("Identity", ["s"], ["t"])], [sequence_info("s", [None, 3])], ["t"], {}))
    with pytest.raises(tilewright.InputError, match=words):
        model(given)
    with pytest.raises(tilewright.InputError, match="out= takes arrays"):
        model([X], out=[X])


def test_how_they_are_described() -> None:
    nodes = [h.make_node("Identity", ["s"], ["t"]), h.make_node("Identity", ["o"], ["p"])]
    model = checked(model_of(nodes, [sequence_info("s", [None, 3]), optional_info("o", None)], ["t", "p"], {}))
    assert list(map(str, model.inputs)) == ["s: sequence(float32[?, 3])", "o: optional(float32[...])"]
    assert [a.type for a in model.get_outputs()] == ["seq(tensor(float))", "optional(tensor(float))"]
    assert loaded(model).inputs == model.inputs


def test_wrong_positions_of_known_sequences_are_errors_of_the_model() -> None:
    nodes = [h.make_node("SequenceConstruct", ["x"], ["s"]), h.make_node("SequenceAt", ["s", "k"], ["y"])]
    with pytest.raises(tilewright.TilewrightError, match="position 1 of a sequence of 1 elements"):
        checked(model_of(nodes, [("x", T.FLOAT, [2, 3])], ["y"], {"k": np.array(1)}))


def test_a_loop_collects_what_differs_in_size() -> None:
    """As exporters of detectors write it: an empty sequence grows, and is concatenated after the loop."""
    rows = h.make_graph(
        [
            h.make_node("Identity", ["going"], ["still"]),
            h.make_node("Add", ["trip", "one"], ["count"]),
            h.make_node("Unsqueeze", ["count", "zero"], ["end"]),
            h.make_node("Slice", ["x", "zero", "end"], ["part"]),
            h.make_node("SequenceInsert", ["before", "part"], ["after"]),
        ],
        "body",
        [
            h.make_tensor_value_info("trip", T.INT64, []),
            h.make_tensor_value_info("going", T.BOOL, []),
            sequence_info("before", None),
        ],
        [h.make_tensor_value_info("still", T.BOOL, []), sequence_info("after", None)],
    )
    nodes = [
        h.make_node("SequenceEmpty", [], ["empty"]),
        h.make_node("Loop", ["n", "", "empty"], ["s"], body=rows),
        h.make_node("ConcatFromSequence", ["s"], ["all"], axis=0),
        h.make_node("Mul", ["all", "two"], ["y"]),
    ]
    constants = {"one": np.array(1), "zero": np.array([0]), "two": np.array(2, np.float32)}
    inputs = [("n", T.INT64, []), ("x", T.FLOAT, ["m", 3])]
    model = checked(model_of(nodes, inputs, ["y"], constants))
    for n in (1, 2, 3):
        wanted = np.concatenate([X[: k + 1] for k in range(n)])
        np.testing.assert_array_equal(model(np.array(n), X)[0], 2 * wanted)
    with pytest.raises(tilewright.InputError, match="an empty sequence is concatenated"):
        model(np.array(0), X)


def test_a_choice_between_sequences_of_different_ranks() -> None:
    then = h.make_graph([h.make_node("SequenceConstruct", ["x"], ["a"])], "t", [], [sequence_info("a", None)])
    other = h.make_graph(
        [h.make_node("Flatten", ["x"], ["f"], axis=0), h.make_node("SequenceConstruct", ["f", "x"], ["b"])],
        "e", [], [sequence_info("b", None)],
    )  # fmt: skip
    nodes = [h.make_node("If", ["c"], ["s"], then_branch=then, else_branch=other)]
    inputs = [("c", T.BOOL, []), ("x", T.FLOAT, [2, 3])]
    model = checked(model_of(nodes, inputs, ["s"], {}))
    same(model(np.array(True), X)[0], [X])
    same(model(np.array(False), X)[0], [X.reshape(1, -1), X])


def test_a_map_over_a_sequence() -> None:
    body = h.make_graph(
        [h.make_node("Add", ["a", "b"], ["sum"]), h.make_node("Shape", ["a"], ["size"])],
        "body",
        [h.make_tensor_value_info(name, T.FLOAT, None) for name in "ab"],
        [h.make_tensor_value_info("sum", T.FLOAT, None), h.make_tensor_value_info("size", T.INT64, None)],
    )
    nodes = [h.make_node("SequenceMap", ["s", "b"], ["sums", "sizes"], body=body)]
    inputs = [sequence_info("s", ["k"]), ("b", T.FLOAT, [1])]
    given, b = [X[0], X[0, :1]], np.ones(1, np.float32)
    sums, sizes = run(nodes, inputs, ["sums", "sizes"], given, b)
    same(sums, [x + b for x in given])
    same(sizes, [np.array(x.shape) for x in given])


@pytest.mark.parametrize("trips", [2, None])
def test_a_loop_collects_no_sequences(trips: int | None) -> None:
    """The specification has tensors alone as rows."""
    body = h.make_graph(
        [h.make_node("Identity", ["go"], ["on"]), h.make_node("SequenceConstruct", ["x"], ["row"])], "body",
        [h.make_tensor_value_info("i", T.INT64, []), h.make_tensor_value_info("go", T.BOOL, [])],
        [h.make_tensor_value_info("on", T.BOOL, []), h.make_tensor_sequence_value_info("row", T.FLOAT, [2])],
    )  # fmt: skip
    constants = {} if trips is None else {"n": np.array(trips)}
    inputs = [("x", T.FLOAT, [2]), *([("n", T.INT64, [])] if trips is None else [])]
    with pytest.raises(tilewright.TilewrightError, match="Loop collects values of type sequence"):
        compiled([h.make_node("Loop", ["n", ""], ["y"], body=body)], inputs, ["y"], constants)
