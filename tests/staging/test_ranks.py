"""Branches whose results differ in rank, by data: what comes after them is compiled for each."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright
from tests.frontends.helpers import info, model_of
from tilewright.frontends.onnx.importer import MAX_SPLITS
from tilewright.ir.diag import UnsupportedError

X = np.array([[1.0], [-2.0], [3.0]], np.float32)
UNTYPED = onnx.TypeProto()


def graph(nodes: Sequence[NodeProto], output: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "branch", [], [helper.make_value_info(output, UNTYPED)])


def flat_or_not(condition: str, source: str, result: str) -> NodeProto:
    """All elements as a vector, or the double of what there was."""
    then = graph([helper.make_node("Reshape", [source, "line"], [f"{result}_a"])], f"{result}_a")
    other = graph([helper.make_node("Add", [source, source], [f"{result}_b"])], f"{result}_b")
    return helper.make_node("If", [condition], [result], then_branch=then, else_branch=other)


def model(nodes: Sequence[NodeProto], *conditions: str) -> onnx.ModelProto:
    inputs = [info("x", ["n", 1]), *[info(c, [], TensorProto.BOOL) for c in conditions]]
    return model_of(nodes, inputs, [helper.make_value_info("y", UNTYPED)], {"line": np.array([-1])}, opset=17)


def agrees(made: onnx.ModelProto, count: int) -> None:
    run = tilewright.compile(made.SerializeToString(), cache=False, threads=1)
    for code in range(2**count):
        given = [np.array(bool(code >> k & 1)) for k in range(count)]
        names = [i.name for i in made.graph.input]
        (wanted,) = ReferenceEvaluator(made).run(None, dict(zip(names, [X, *given], strict=True)))
        (found,) = run(X, *given)
        assert found.shape == np.shape(wanted)
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_a_result_of_either_rank_is_an_output() -> None:
    agrees(model([flat_or_not("c", "x", "y")], "c"), 1)


def test_what_comes_after_is_compiled_for_both() -> None:
    agrees(model([flat_or_not("c", "x", "z"), helper.make_node("Exp", ["z"], ["y"])], "c"), 1)
    agrees(model([flat_or_not("c", "x", "z"), helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0)], "c"), 1)


def test_one_after_the_other() -> None:
    nodes = [flat_or_not("c", "x", "z"), helper.make_node("Neg", ["z"], ["n"]), flat_or_not("d", "n", "y")]
    agrees(model(nodes, "c", "d"), 2)


def test_one_in_a_branch_of_the_other() -> None:
    inner = graph([flat_or_not("d", "x", "i"), helper.make_node("Exp", ["i"], ["e"])], "e")
    outer = graph([helper.make_node("Abs", ["x"], ["a"])], "a")
    node = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=outer)
    agrees(model([node, helper.make_node("Neg", ["z"], ["y"])], "c", "d"), 2)


def test_in_the_body_of_a_loop() -> None:
    """Inside, where the end of the body joins the ways again."""
    names = [("i", TensorProto.INT64), ("go", TensorProto.BOOL), ("s", TensorProto.FLOAT)]
    body = helper.make_graph(
        [
            flat_or_not("c", "x", "z"), helper.make_node("ReduceSum", ["z"], ["r"], keepdims=0),
            helper.make_node("Add", ["s", "r"], ["t"]), helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body", [info(n, [], t) for n, t in names], [helper.make_value_info(n, UNTYPED) for n in ("on", "t")],
    )  # fmt: skip
    zero = helper.make_node("Constant", [], ["zero"], value_float=0.0)
    trips = helper.make_node("Constant", [], ["trips"], value_int=500)
    loop = helper.make_node("Loop", ["trips", "start", "zero"], ["y"], body=body)
    start = helper.make_node("Greater", ["trips", "trips"], ["off"]), helper.make_node("Not", ["off"], ["start"])
    agrees(model([zero, trips, *start, loop], "c"), 1)


def test_many_one_after_the_other_are_refused() -> None:
    names = ["x", *[f"z{k}" for k in range(MAX_SPLITS)], "y"]
    nodes = [flat_or_not(f"c{k}", a, b) for k, (a, b) in enumerate(pairwise(names))]
    made = model(nodes, *[f"c{k}" for k in range(len(nodes))])
    with pytest.raises(UnsupportedError, match="the rank would depend on data"):
        tilewright.compile(made.SerializeToString(), cache=False)


def test_a_way_that_cannot_be_translated_is_a_reason() -> None:
    nodes = [flat_or_not("c", "x", "z"), helper.make_node("Frobnicate", ["z"], ["y"])]
    with pytest.raises(UnsupportedError, match="the rank would depend on data"):
        tilewright.compile(model(nodes, "c").SerializeToString(), cache=False)
