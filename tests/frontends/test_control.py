"""Functions, If, Loop and Scan."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.frontends.helpers import check, imported, info, model_of
from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import ModelError

X = np.array([[-1.0, 2.0, -3.0]], np.float32)


def graph(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]
) -> onnx.GraphProto:
    return helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])


def function(
    name: str, nodes: list[onnx.NodeProto], attributes: list[str] | None = None
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("loc", 1)]
    return helper.make_function("loc", name, ["a"], ["b"], nodes, imports, attributes or [])


def test_local_functions_are_inlined_with_their_attributes() -> None:
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    f = function("F", [leaky], ["slope"])
    call = helper.make_node("F", ["x"], ["y"], domain="loc", slope=0.5)
    model = model_of([call], [info("x", [1, 3])], ["y"], functions=[f], domains=["loc"], opset=17)
    assert np.array_equal(imported(model, X)[0], np.where(X < 0, X / 2, X))


def test_recursive_function() -> None:
    f = function("F", [helper.make_node("F", ["a"], ["b"], domain="loc")])
    call = helper.make_node("F", ["x"], ["y"], domain="loc")
    model = model_of([call], [info("x", [3])], ["y"], functions=[f], domains=["loc"], opset=17)
    with pytest.raises(ModelError, match="'F' calls itself"):
        load_onnx(model)


def test_functions_that_would_unfold_without_end() -> None:
    def doubling(k: int) -> onnx.FunctionProto:
        call = [helper.make_node(f"F{k + 1}", [i], [o], domain="loc") for i, o in (("a", "t"), ("t", "b"))]
        return function(f"F{k}", call if k < 39 else [helper.make_node("Relu", ["a"], ["b"])])

    functions = [doubling(k) for k in range(40)]
    call = helper.make_node("F0", ["x"], ["y"], domain="loc")
    model = model_of([call], [info("x", [3])], ["y"], functions=functions, domains=["loc"], opset=17)
    with pytest.raises(ModelError, match="once its functions are inlined"):
        load_onnx(model)


def branches(then_op: str, else_op: str) -> dict[str, onnx.GraphProto]:
    return {
        "then_branch": graph([helper.make_node(then_op, ["x"], ["a"])], [], ["a"]),
        "else_branch": graph([helper.make_node(else_op, ["x"], ["b"])], [], ["b"]),
    }


def test_if_with_a_known_condition_takes_one_branch() -> None:
    node = helper.make_node("If", ["c"], ["y"], **branches("Neg", "Frobnicate"))
    model = model_of([node], [info("x", [1, 3])], ["y"], {"c": np.array(True)})
    assert np.array_equal(imported(model, X)[0], -X)


@pytest.mark.parametrize("condition", [True, False])
def test_if_with_a_computed_condition(condition: bool) -> None:
    node = helper.make_node("If", ["c"], ["y"], **branches("Neg", "Abs"))
    model = model_of([node], [info("x", [1, 3]), info("c", [], TensorProto.BOOL)], ["y"])
    assert np.array_equal(imported(model, X, np.array(condition))[0], -X if condition else np.abs(X))


def test_if_whose_branches_differ() -> None:
    inputs = [info("x", [1, 3]), info("c", [], TensorProto.BOOL)]
    with pytest.raises(ModelError, match="branches of If give f32"):
        load_onnx(model_of([helper.make_node("If", ["c"], ["y"], **branches("Neg", "IsNaN"))], inputs, ["y"]))


def loop_model(trips: int, end: str = "go") -> onnx.ModelProto:
    body = graph(
        [
            helper.make_node("Identity", [end], ["more"]),
            helper.make_node("Add", ["v", "x"], ["next"]),
            helper.make_node("Mul", ["v", "v"], ["row"]),
        ],
        [info("i", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("v", [1, 3])],
        ["more", "next", "row"],
    )
    node = helper.make_node("Loop", ["trips", "start", "x"], ["last", "rows"], body=body)
    constants = {"trips": np.array(trips), "start": np.array(True)}
    inputs = [info("x", [1, 3]), info("c", [], TensorProto.BOOL)]
    return model_of([node], inputs, ["last", "rows"], constants)


def test_loop_of_known_length() -> None:
    last, rows = imported(loop_model(3), X, np.array(True))
    assert np.array_equal(last, 4 * X)
    assert np.array_equal(rows, np.stack([X**2, 4 * X**2, 9 * X**2]))


def test_declared_types_of_subgraph_outputs() -> None:
    model = loop_model(3)
    model.graph.node[0].attribute[0].g.output[0].CopyFrom(info("more", []))
    with pytest.raises(ModelError, match=r"declared as f32, but the nodes give bool\[\]"):
        load_onnx(model)


def test_loops_that_are_not_unrolled() -> None:
    for model in (loop_model(1000), loop_model(3, end="c")):
        assert [op.name for op in load_onnx(model).main.body.ops if op.blocks] == ["loop"]


def test_scan() -> None:
    body = graph(
        [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["out"])],
        [info("s", [2]), info("e", [2])],
        ["t", "out"],
    )
    node = helper.make_node("Scan", ["s0", "xs"], ["last", "sums"], body=body, num_scan_inputs=1)
    model = model_of([node], [info("s0", [2]), info("xs", [3, 2])], ["last", "sums"])
    check(model, np.zeros(2, np.float32), np.arange(6, dtype=np.float32).reshape(3, 2))
