"""Hints that name arguments: a caller who follows them to the letter gets on."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright
from tests.frontends.helpers import info, model_of
from tests.frontends.test_control import graph
from tests.frontends.test_sizes import Graph, f32, session
from tilewright import frontends
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.core import Module
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.types import HostType
from tilewright.runtime.errors import InputError

_ARGUMENTS = re.compile(r"(constants|shapes)=({.*?})(?= with|,| when|;| \(|\n|$)")
_PLACEHOLDER = re.compile(r"<([^<>]*)>|\[\.\.\.\]")


def arguments(text: str, answers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What a hint says to pass, its placeholders filled in: `<n>` and `[...]` with the answers that they ask for."""
    found: dict[str, dict[str, Any]] = {}
    for name, spelled in _ARGUMENTS.findall(text):
        filled = _PLACEHOLDER.sub(lambda m: repr(answers[m[1] or m[0]]), spelled)
        found.setdefault(name, {}).update(eval(filled, {"__builtins__": {}}))
    return found


def followed(model: onnx.ModelProto, answers: dict[str, Any], rounds: int) -> Module:
    """The model, loaded with what `rounds` errors one after the other say to pass."""
    given: dict[str, dict[str, Any]] = {}
    for _ in range(rounds):
        with pytest.raises(UnsupportedError) as caught:
            load_onnx(model, **given)
        for name, passed in arguments(str(caught.value), answers).items():
            given[name] = given.get(name, {}) | passed
    return load_onnx(model, **given)


class Case(NamedTuple):
    name: str
    model: onnx.ModelProto
    answers: dict[str, Any]
    rounds: int = 1


def of(build: Callable[[Graph], str], inputs: dict[str, Any], opset: int = 18) -> onnx.ModelProto:
    """A model whose inputs are given by shapes, or by (shape, element type)."""
    g = Graph()
    result = build(g)
    infos = [info(n, *(s if isinstance(s, tuple) else (s,))) for n, s in inputs.items()]
    return model_of(g.nodes, infos, [result], g.constants, opset=opset)


def float_size(g: Graph) -> str:
    return g.whole(g("Sqrt", g.dim("x", 1)))


def branches() -> dict[str, onnx.GraphProto]:
    inner = {
        "then_branch": graph([helper.make_node("Squeeze", ["x", "zero"], ["p"])], [], ["p"]),
        "else_branch": graph([helper.make_node("Identity", ["x"], ["q"])], [], ["q"]),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["s"], end=1),
        helper.make_node("Squeeze", ["s"], ["d"]),
        helper.make_node("Equal", ["d", "one"], ["is_one"]),
        helper.make_node("If", ["is_one"], ["a"], **inner),
    ]
    return {
        "then_branch": graph(nodes, [], ["a"]),
        "else_branch": graph([helper.make_node("Neg", ["x"], ["b"])], [], ["b"]),
    }


def nested_if(condition: str) -> onnx.ModelProto:
    """A branch whose rank follows from a dim, in one that is taken by an input."""
    nodes = [
        helper.make_node("Equal", [condition, "wanted"], ["is"]),
        helper.make_node("If", ["is"], ["y"], **branches()),
    ]
    constants = {"zero": np.array([0]), "one": np.array(1), "wanted": np.array(16000)}
    return model_of(nodes, [info("x", ["n", 3]), info("sr", [], TensorProto.INT64)], ["y"], constants)


def loop(trips: str, end: str) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [end], ["more"]), helper.make_node("Add", ["v", "v"], ["next"])]
    body = graph(
        nodes,
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("v", [3])],
        ["more", "next"],
    )
    inputs = [info("x", [3]), info("c", [], TensorProto.BOOL), info("f", ["n"])]
    before = [helper.make_node("Size", ["f"], ["size"])]
    looped = helper.make_node("Loop", [trips, "c", "x"], ["y"], body=body)
    return model_of([*before, looped], inputs, ["y"], {"three": np.array(3)})


def scan() -> onnx.ModelProto:
    nodes = [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["u"])]
    body = graph(nodes, [info("s", [2]), info("e", [2])], ["t", "u"])
    node = helper.make_node("Scan", ["x0", "x"], ["y", "z"], body=body, num_scan_inputs=1)
    return model_of([node], [info("x0", [2]), info("x", ["steps", 2])], ["y", "z"])


I64, BOOL = TensorProto.INT64, TensorProto.BOOL
CASES = (
    Case("no rank", of(lambda g: g("Relu", "x"), {"x": (None, TensorProto.FLOAT)}), {"[...]": [2, "n"]}),
)


COMPUTED = (
    Case("axes", of(lambda g: g("ReduceSum", "x", "axes"), {"x": [2, 3], "axes": ([1], I64)}), {"i64[1]": [1]}),
    Case(
        "computed axes",
        of(lambda g: g("ReduceSum", "x", g("Neg", "axes")), {"x": [2, "n"], "axes": ([1], I64)}),
        {"i64[1]": [1]},
    ),
    Case(
        "a shape from floats",
        of(lambda g: g("Reshape", "x", g.whole("to")), {"x": [2, 3], "to": [2]}),
        {"f32[2]": [3.0, 2.0]},
    ),
    Case("the step of Range", of(lambda g: g("Range", np.array(0), np.array(9), "k"), {"k": ([], I64)}), {"i64[]": 2}),
    Case("a limit of Range", of(lambda g: g("Range", np.float32(0), "k", np.float32(1)), {"k": []}), {"f32[]": 2.0}),
    Case(
        "what pads",
        of(lambda g: g("Pad", "x", np.array([1, 1]), "v"), {"x": ["n"], "v": []}),
        {"f32[]": 0.5},
    ),
    Case("NonZero", of(lambda g: g("NonZero", "x"), {"x": ([3], I64)}), {"i64[3]": [1, 0, 2]}),
    Case(
        "NonZero of dims",
        of(lambda g: g("NonZero", g("Range", np.array(0), g("Size", "x"), np.array(1))), {"x": ["b", 3]}),
        {"b": 2},
    ),
    Case(
        "NonZero of dims and an input",
        of(
            lambda g: g("NonZero", g("Greater", g("Range", np.array(0), g("Size", "x"), np.array(1)), "k")),
            {"x": ["b", 3], "k": ([], I64)},
        ),
        {"b": 2, "i64[]": 4},
    ),
    Case("a size by a root", of(lambda g: g("ConstantOfShape", float_size(g)), {"x": [1, "n"]}), {"n": 50}),
    Case(
        "a size by a root of a dim of two inputs",
        of(lambda g: g("Expand", g("Add", "x", "y"), float_size(g)), {"x": [1, "n"], "y": [1, "n"]}),
        {"n": 1},
    ),
    Case(
        "a range by a root",
        of(lambda g: g("Range", np.float32(0), g("Squeeze", g("Sqrt", g.dim("x", 1))), np.float32(1)), {"x": [1, "n"]}),
        {"n": 50},
    ),
    Case(
        "a scale by a root",
        of(
            lambda g: g("Resize", "x", g.constant(f32()), g("Concat", f32(1), g("Sqrt", g.dim("x", 1)), axis=0)),
            {"x": [1, "n"]},
        ),
        {"n": 9},
    ),
    Case(
        "cubic",
        of(lambda g: g("Resize", "x", g.constant(f32()), f32(1, 2), mode="cubic"), {"x": [1, "n"]}),
        {"n": 9},
    ),
    Case(
        "sizes by an input",
        of(
            lambda g: g("Resize", "x", g.constant(f32()), g.constant(f32()), "to", mode="cubic"),
            {"x": [1, 9], "to": ([2], I64)},
        ),
        {"i64[2]": [1, 12]},
    ),
    Case(
        "the aspect ratio",
        of(
            lambda g: g(
                "Resize", "x", g.constant(f32()), g.constant(f32()), np.array([4, 4]),
                keep_aspect_ratio_policy="not_larger",
            ),
            {"x": ["n", "m"]},
        ),
        {"n": 9, "m": 8},
    ),
    Case("a condition", nested_if("sr"), {"i64[]": 16000}),
    Case("the end of a loop", loop("three", "c"), {"bool[]": True}),
    Case("trips by a dim", loop("size", "go"), {"n": 3, "bool[]": True}),
    Case("steps of Scan", scan(), {"steps": 4}),
)  # fmt: skip
"""Models that need values which only a call knows: lengths of dims by their names, values of inputs by their types."""


@pytest.mark.sweep(8)
@pytest.mark.parametrize("case", COMPUTED, ids=[c.name for c in COMPUTED])
def test_values_may_be_known_to_calls_only(case: Case) -> None:
    """The same as ONNX Runtime gives, of a model that is compiled once."""
    rng = np.random.default_rng(0)
    feed = {}
    for i in case.model.graph.input:
        type = i.type.tensor_type
        shape = [d.dim_value or case.answers.get(d.dim_param, 3) for d in type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(type.elem_type)
        name = {"int64": "i64", "float32": "f32"}.get(dtype.name, dtype.name)
        value = case.answers.get(f"{name}{shape}")
        feed[i.name] = rng.random(shape).astype(dtype) if value is None else np.array(value, dtype).reshape(shape)
    found = tilewright.compile(case.model, cache=False, verify=True).run(None, feed)
    for ours, theirs in zip(found, session(case.model).run(None, feed), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=[c.name for c in CASES])
def test_who_follows_a_hint_gets_on(case: Case) -> None:
    assert followed(case.model, case.answers, case.rounds).main.returns


def test_dims_in_a_branch_that_may_not_be_taken_need_the_condition_only() -> None:
    """With the dim fixed both branches are compiled, of which the host takes one; with the condition fixed one is."""
    fixed = {"x": [1, 3]}
    assert isinstance(load_onnx(nested_if("sr"), shapes=fixed).main.returns[0].type, HostType)
    assert load_onnx(nested_if("sr"), shapes=fixed, constants={"sr": 16000}).main.returns[0].type.rank == 1
    assert load_onnx(nested_if("sr"), shapes=fixed, constants={"sr": 8000}).main.returns[0].type.rank == 2


def test_what_a_call_says_to_fix_can_be_fixed() -> None:
    model = of(lambda g: g("ConstantOfShape", g.whole(g("Mul", g.dim("x", 0), f32(0.3)))), {"x": ["n"]})
    long = np.zeros((1 << 24) + 5, np.float32)
    with pytest.raises(InputError) as caught:
        tilewright.compile(model, cache=False)(long)
    given = arguments(str(caught.value), {"n": len(long)})
    (found,) = tilewright.compile(model, cache=False, **given)(long)
    assert found.shape == (int(np.float32(len(long)) * np.float32(0.3)),)


def test_misfits_that_the_caller_may_have_made() -> None:
    model = of(lambda g: g("MatMul", "x", np.ones((4, 2), np.float32)), {"x": ["n", "k"]})
    with pytest.raises(
        tilewright.TilewrightError, match=r"do shapes= and constants= fit the model\? given are: x"
    ):
        load_onnx(model, shapes={"x": [3, 5]})
    broken = of(lambda g: g("MatMul", "x", np.ones((4, 2), np.float32)), {"x": [3, 5]})
    with pytest.raises(tilewright.TilewrightError) as caught:
        load_onnx(broken)
    assert "shapes=" not in str(caught.value)


@pytest.mark.parametrize(
    ("elem_type", "value", "kind"),
    [
        (TensorProto.INT32, 5, np.int32),
        (TensorProto.INT8, [1, 2], np.int8),
        (TensorProto.FLOAT, 0.1, np.float32),
        (TensorProto.FLOAT16, 0.5, np.float16),
    ],
)
def test_numbers_of_python_become_constants(elem_type: int, value: Any, kind: type) -> None:
    model = of(lambda g: g("Identity", "k"), {"k": (list(np.shape(value)), elem_type)})
    (array,) = load_onnx(model, constants={"k": value}).constants.values()
    assert array.dtype == kind and np.array_equal(array, np.array(value, kind))


def test_numbers_that_do_not_fit_are_refused() -> None:
    model = of(lambda g: g("Identity", "k"), {"k": ([], TensorProto.INT8)})
    with pytest.raises(ModelError, match=r"int64\[\] for an input of type i8\[\]"):
        load_onnx(model, constants={"k": 300})


def test_elements_of_inputs_are_called_by_their_names() -> None:
    model = of(
        lambda g: g("ConstantOfShape", g.whole(g("Mul", g("Cast", "k", to=1), f32(0.5)))), {"k": ([1], I64)}
    )
    messages = [message for _, message, *_ in load_onnx(model).main.attrs["assumed"]]
    assert all("k[0]" in m and "val_" not in m and "constants={'k': <i64[1]>}" in m for m in messages)


def test_shapes_of_another_kind_are_shown_as_they_should_be() -> None:
    model = of(lambda g: g("Relu", "x"), {"x": ["n", 3, "h", "w"]})
    with pytest.raises(tilewright.TilewrightError) as caught:
        tilewright.compile(model, cache=False, shapes=[1, 3, 4, 4])  # type: ignore[arg-type]
    compiled = tilewright.compile(model, cache=False, **arguments(str(caught.value), {}))
    assert compiled(np.ones((1, 3, 2, 5), np.float32))[0].shape == (1, 3, 2, 5)


def test_hints_that_name_arguments_are_made_in_one_place() -> None:
    """So that each kind of them is among the cases above."""
    folder = Path(frontends.__file__).parent
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                text = ast.unparse(node.value)
                if "shapes=" in text or "constants=" in text:
                    found.add(path.name)
    assert found == {"inputs.py"}  # the rank of an input; all others are in hints.py
