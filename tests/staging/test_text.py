"""Tensors of strings, which the host has: what goes in and comes out, and operators on them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto as T
from onnx import helper as h

import tilewright
from tests.staging.models import checked, loaded, model_of
from tilewright.frontends.onnx.load import load_onnx


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


def test_parameters_that_do_not_fit_are_refused() -> None:
    node = h.make_node("RegexFullMatch", ["x"], ["y"], pattern="a")
    model = checked(model_of([node], [("x", T.STRING, [2])], ["y"], {}))
    (step,) = model.artifact.program.steps  # type: ignore[union-attr]
    for parameters in ({"pattern": "("}, {}):
        object.__setattr__(step, "parameters", parameters)
        with pytest.raises(tilewright.ArtifactError, match="'match_text' does not take its parameters"):
            loaded(model)


def test_strings_as_constants() -> None:
    """Of which the cache of models knows the elements."""
    model = model_of(
        [h.make_node("StringConcat", ["x", "z"], ["y"])], [("x", T.STRING, [2]), ("z", T.STRING, [2])], ["y"], {}
    )
    for words in (["a", "b"], ["c", "d"]):
        run = tilewright.compile(model.SerializeToString(), constants={"z": words}, threads=1)
        assert list(run(text("1", "2"))[0]) == [f"1{words[0]}", f"2{words[1]}"]
    with pytest.raises(tilewright.ModelError, match=r"constants= gives int64\[2\] for an input of type string"):
        load_onnx(model, constants={"z": np.array([1, 2])})


def test_sequences_are_no_constants() -> None:
    sequence = h.make_tensor_sequence_value_info("x", T.FLOAT, [2])
    graph = h.make_graph([h.make_node("Identity", ["x"], ["y"])], "g", [sequence], [sequence_out()])
    with pytest.raises(tilewright.UnsupportedError, match="only tensors may be constants"):
        load_onnx(h.make_model(graph), constants={"x": text("a", "b")})


def sequence_out() -> onnx.ValueInfoProto:
    return h.make_tensor_sequence_value_info("y", T.FLOAT, [2])


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


def one(op: str, *given: np.ndarray, outputs: int = 1, domain: str = "", **attributes: Any) -> list[np.ndarray]:
    """The results of one node for operands of these dtypes, whose dims are not known."""
    names = [f"x{k}" for k in range(len(given))]
    node = h.make_node(op, names, [f"y{k}" for k in range(outputs)], domain=domain, **attributes)
    types = [T.STRING if x.dtype == object else h.np_dtype_to_tensor_dtype(x.dtype) for x in given]
    inputs = [(n, t, [f"{n}_{k}" for k in range(x.ndim)]) for n, t, x in zip(names, types, given, strict=True)]
    model = checked(model_of([node], inputs, list(node.output), {}))
    found = list(model(*given))
    for mine, other in zip(found, loaded(model)(*given), strict=True):
        np.testing.assert_array_equal(mine, other)
    return found


@pytest.mark.parametrize(
    ("action", "sensitive", "wanted"),
    [
        ("LOWER", 1, ["on", "monday", ""]),
        ("UPPER", 0, ["ON", ""]),
        ("NONE", 0, ["on", ""]),
        ("NONE", 1, ["on", "Monday", ""]),
    ],
)
def test_normalizing(action: str, sensitive: int, wanted: list[str]) -> None:
    given = text("on", "Monday", "monday", "")
    attributes = {"case_change_action": action, "is_case_sensitive": sensitive, "stopwords": ["monday"]}
    assert one("StringNormalizer", given, **attributes)[0].tolist() == wanted
    assert one("StringNormalizer", given[None], **attributes)[0].tolist() == [wanted]
    assert one("StringNormalizer", given[2:3], **attributes)[0].tolist() == [""]
    with pytest.raises(tilewright.InputError, match="one row of strings is expected, not 2"):
        one("StringNormalizer", text(["a"], ["b"]), **attributes)


def test_splitting() -> None:
    given = text(["a,b,,c", ""], ["x", "y,z"])
    parts, counts = one("StringSplit", given, outputs=2, delimiter=",", maxsplit=2)
    assert parts.tolist() == [[["a", "b", ",c"], ["", "", ""]], [["x", "", ""], ["y", "z", ""]]]
    assert counts.tolist() == [[3, 1], [1, 2]] and counts.dtype == np.int64
    parts, counts = one("StringSplit", text(" a  b ", ""), outputs=2)
    assert parts.tolist() == [["a", "b"], ["", ""]] and counts.tolist() == [2, 0]
    assert one("StringSplit", text(), outputs=2)[0].shape == (0, 0)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"a|bc*", ["a", "b", "bcc"], ["ab", "", "a\n"]),
        (r"\w+@\d{2,}\.(?:com|org)", ["a_1@22.com"], ["ä@22.com", "a@22xcom", "a@٢٢.com"]),
        (r"[[:alpha:]\d_-]+", ["aZ_9-"], ["a b", "é"]),
        (r"(?i)a(?-i:b$)", ["Ab"], ["abc"]),
        (r"(?i)a|b", ["A", "B"], ["C"]),
        (r"(?P<x>a)(?<y>b)", ["ab"], ["a"]),
        (r"\Qa.b\E\x{e4}\x41\07", ["a.bäA\7"], ["axbäA\7"]),
        (r"[^\W\d]{2}", ["ab"], ["a1", "é_"]),
        (r"[]a^&&[]+", ["]a^&["], ["b"]),
        (r"a{,2}", ["a{,2}"], ["aa"]),
        (r"(?m)^a$\n^b$", ["a\nb"], ["a b"]),
        (r".", ["ä"], ["\n", ""]),
        (r"(?s).\z", ["\n"], ["ab"]),
        (r"\bé\B|a\b", ["a"], ["b"]),
        (r"a+?b??[a-c-]", ["aab", "a-"], ["b"]),
    ],
)
def test_matching(pattern: str, yes: list[str], no: list[str]) -> None:
    found = one("RegexFullMatch", text(*yes, *no), pattern=pattern)[0]
    assert found.tolist() == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(a)\1", "none of RE2's escapes"),
        (r"a(?=b)", "none of RE2's groups"),
        (r"(?>a)", "none of RE2's groups"),
        (r"(?U)a*", "none of RE2's groups, or not followed"),
        (r"\pL", "none of RE2's escapes, or not followed"),
        (r"a++", "repeats a repetition"),
        (r"*a", "nothing to repeat"),
        (r"a(?i)b", "do not stand at the start"),
        (r"[[:^alpha:]]", "none of RE2's classes, or not followed"),
        (r"[a", "a set is not closed"),
        (r"(a", "a group is not closed"),
        (r"a)", "not opened"),
        (r"[b-a]", "bad character range"),
        ("\\", "none of RE2's escapes"),
    ],
)
def test_patterns_that_are_refused(pattern: str, words: str) -> None:
    with pytest.raises(tilewright.UnsupportedError, match=words):
        one("RegexFullMatch", text("a"), pattern=pattern)


def test_numbers_as_text() -> None:
    floats = np.array([1, 0.1, 314.15926, -1e8, 1e-5, np.inf, -np.inf, np.nan, -0.0], np.float32)
    wanted = ["1", "0.1", "314.15927", "-100000000", "0.00001", "INF", "-INF", "NaN", "-0"]
    assert one("Cast", floats, to=T.STRING)[0].tolist() == wanted
    assert one("Cast", np.array([0.1, 1 / 3]), to=T.STRING)[0].tolist() == ["0.1", "0.3333333333333333"]
    assert one("Cast", np.array([[5], [-3]], np.int8), to=T.STRING)[0].tolist() == [["5"], ["-3"]]
    assert one("Cast", np.array([True, False]), to=T.STRING)[0].tolist() == ["1", "0"]
    assert one("CastLike", np.array([7]), text("x"))[0].tolist() == ["7"]
    assert one("Cast", text("a"), to=T.STRING)[0].tolist() == ["a"]


def test_text_as_numbers() -> None:
    given = text("1", "2.5", " -3e2 ", "+INF", "inf", "nAn")
    np.testing.assert_array_equal(
        one("Cast", given, to=T.FLOAT)[0], np.array([1, 2.5, -300, np.inf, np.inf, np.nan], np.float32)
    )
    assert one("Cast", given[:3], to=T.INT64)[0].tolist() == [1, 2, -300]
    assert one("Cast", text(str(2**62 + 1)), to=T.INT64)[0].tolist() == [2**62 + 1]
    assert one("Cast", text("0", "2"), to=T.BOOL)[0].tolist() == [False, True]
    for wrong, to in (("abc", T.FLOAT), ("1_0", T.FLOAT), ("1_0", T.INT32), ("nan", T.INT32), ("300", T.UINT8)):
        with pytest.raises(tilewright.InputError, match=wrong if wrong != "300" else "out of bounds"):
            one("Cast", text(wrong), to=to)


def joining(rows: int | str, **attrs: Any) -> onnx.ModelProto:
    """A Scan over rows of two strings, whose state and output are all of them so far."""
    two = [2]
    nodes = [h.make_node("StringConcat", ["s", "e"], ["joined"]), h.make_node("Identity", ["joined"], ["row"])]
    body = h.make_graph(
        nodes, "body", [h.make_tensor_value_info(n, T.STRING, two) for n in ("s", "e")],
        [h.make_tensor_value_info(n, T.STRING, two) for n in ("joined", "row")],
    )  # fmt: skip
    scan = h.make_node("Scan", ["s0", "x"], ["last", "rows"], body=body, num_scan_inputs=1, **attrs)
    return model_of([scan], [("s0", T.STRING, two), ("x", T.STRING, [rows, 2])], ["last", "rows"], {})


@pytest.mark.parametrize("rows", [3, "n"])
def test_a_scan_over_strings(rows: int | str) -> None:
    given = text("a", "b"), text(["p", "q"], ["r", "s"], ["t", "u"])
    last, found = checked(joining(rows))(*given)
    assert last.tolist() == ["aprt", "bqsu"]
    assert found.tolist() == [["ap", "bq"], ["apr", "bqs"], ["aprt", "bqsu"]]
    (_, found) = checked(joining(rows, scan_input_directions=[1]))(*given)
    assert found.tolist() == [["at", "bu"], ["atr", "bus"], ["atrp", "busq"]]
    (_, found) = checked(joining(rows, scan_output_directions=[1], scan_output_axes=[1]))(*given)
    assert found.tolist() == [["aprt", "apr", "ap"], ["bqsu", "bqs", "bq"]]


def test_a_scan_over_no_strings() -> None:
    last, found = loaded(checked(joining("n")))(text("a", "b"), np.empty((0, 2), object))
    assert last.tolist() == ["a", "b"] and (found.shape, found.dtype) == ((0, 2), object)
