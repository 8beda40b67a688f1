"""A branch that is not taken: what it would report, rely on or take time for is not noticed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper
from onnx import TensorProto as T

import tilewright
from tests.frontends.tflite.models import Graph, Node, Tensor, constant, written
from tests.staging.models import compiled
from tilewright.frontends import control_flow
from tilewright.frontends.onnx.load import load_onnx

THREE, FIVE, SIX = (np.arange(n, dtype=np.float32) for n in (3, 5, 6))


def way(nodes: Sequence[NodeProto], result: str) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "way", [], [helper.make_empty_tensor_value_info(result)])


def guarded(*then: NodeProto) -> NodeProto:
    """z: what the nodes give as t where c holds, else -x."""
    other = way([helper.make_node("Neg", ["x"], ["e"])], "e")
    return helper.make_node("If", ["c"], ["z"], then_branch=way(then, "t"), else_branch=other)


def node(op: str, *inputs: str, **attributes: object) -> NodeProto:
    return helper.make_node(op, list(inputs), ["t"], **attributes)


def then_flat(then: NodeProto) -> list[NodeProto]:
    """The node, and its result as a vector."""
    then.output[0] = "r"
    return [then, helper.make_node("Reshape", ["r", "all"], ["t"])]


CONSTANTS = {
    "five": np.array(5), "line": np.array([5]), "zero": np.array([0]), "all": np.array([-1]), "y": FIVE,
    "two_rows": np.array([2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("size", [3, "n"])
@pytest.mark.parametrize(
    ("then", "good"),
    [
        ([node("GatherElements", "x", "line")], SIX),
        ([node("Expand", "x", "line")], FIVE),
        ([node("Add", "x", "y")], FIVE),
        (then_flat(node("Gather", "x", "five")), SIX),
        (then_flat(node("Reshape", "x", "two_rows")), SIX),
        (then_flat(node("Squeeze", "x", "zero")), SIX[:1]),
    ],
)
def test_what_fails_only_where_it_is_taken(then: list[NodeProto], good: np.ndarray, size: int | str) -> None:
    model = compiled([guarded(*then)], [("x", T.FLOAT, [size]), ("c", T.BOOL, [])], ["z"], CONSTANTS)
    np.testing.assert_array_equal(model(THREE, np.array(False))[0], -THREE)
    with pytest.raises(tilewright.TilewrightError):
        model(THREE, np.array(True))
    if size == "n":
        assert model(good, np.array(True))[0].size in (1, 5, 6)


@pytest.mark.parametrize("op", ["Div", "Mod"])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_a_division_behind_its_guard(op: str, dtype: type) -> None:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    ways = {"then_branch": way([node("Identity", "x")], "t"), "else_branch": way([node(op, "x", "d")], "t")}
    nodes = [helper.make_node("Equal", ["d", "zero"], ["c"]), helper.make_node("If", ["c"], ["z"], **ways)]
    model = compiled(nodes, [("x", kind, [4]), ("d", kind, [])], ["z"], {"zero": np.array(0, dtype)})
    x = np.array([7, 0, 3, 9], dtype)
    np.testing.assert_array_equal(model(x, np.array(0, dtype))[0], x)
    np.testing.assert_array_equal(model(x, np.array(3, dtype))[0], x // 3 if op == "Div" else x % 3)


def test_in_a_loop() -> None:
    """The sum of all x[k] whose k is a position of x."""
    read = way([helper.make_node("Gather", ["x", "trip"], ["t"])], "t")
    none = way([helper.make_node("Identity", ["nothing"], ["e"])], "e")
    nodes = [
        helper.make_node("Less", ["trip", "size"], ["c"]),
        helper.make_node("If", ["c"], ["v"], then_branch=read, else_branch=none),
        helper.make_node("Add", ["sum", "v"], ["more"]),
        helper.make_node("Identity", ["going"], ["goes_on"]),
    ]
    given = [("trip", T.INT64), ("going", T.BOOL), ("sum", T.FLOAT)]
    ends = [helper.make_empty_tensor_value_info(name) for name in ("goes_on", "more")]
    body = helper.make_graph(nodes, "body", [helper.make_tensor_value_info(n, t, []) for n, t in given], ends)
    outer = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Loop", ["trips", "", "nothing"], ["y"], body=body),
    ]
    for trips in (np.array(4), None):
        constants = {"nothing": np.float32(0)} | ({} if trips is None else {"trips": trips})
        inputs: list = [("x", T.FLOAT, ["n"])] + ([("trips", T.INT64, [])] if trips is None else [])
        model = compiled(outer, inputs, ["y"], constants)
        for n in (0, 1, 3, 7):
            x = np.arange(n, dtype=np.float32) + 1
            (found,) = model(x, *([np.array(4)] if trips is None else []))
            assert found == x[:4].sum()


def ops_of(nodes: Sequence[NodeProto], shape: list[int | str]) -> list[str]:
    infos = [helper.make_tensor_value_info("x", T.FLOAT, shape), helper.make_tensor_value_info("c", T.BOOL, [])]
    graph = helper.make_graph(list(nodes), "g", infos, [helper.make_empty_tensor_value_info("z")])
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 0]), "known"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return [op.name for op in load_onnx(model).main.body.ops]


def test_a_choice_costs_less_than_a_branch() -> None:
    """What takes little time and cannot fail: both are computed. Sizes that only a call tells may be large."""
    few = control_flow.LITTLE_WORK // 100
    assert "select" in ops_of([guarded(node("Exp", "x"))], [few])
    assert "branch" in ops_of([guarded(node("Exp", "x"))], [100 * few])
    assert "branch" in ops_of([guarded(node("Exp", "x"))], ["n"])
    assert "branch" in ops_of([guarded(node("Softmax", "x"))], [10 * few])


def test_an_index_that_is_known_cannot_fail() -> None:
    def swapped(source: str) -> NodeProto:
        picked = way([helper.make_node("Gather", ["x", source], ["t"])], "t")
        other = way([helper.make_node("Gather", ["x", "known"], ["e"])], "e")
        return helper.make_node("If", ["c"], ["z"], then_branch=picked, else_branch=other)

    assert "select" in ops_of([swapped("known")], [3])
    with_data = [helper.make_node("Cast", ["x"], ["i"], to=T.INT64), helper.make_node("Gather", ["i", "known"], ["j"])]
    assert "branch" in ops_of([*with_data, swapped("j")], [3])


def test_inputs_are_handed_on() -> None:
    ways = {f"{name}_branch": way([node("Identity", v)], "t") for name, v in (("then", "x"), ("else", "y"))}
    inputs = [("c", T.BOOL, []), ("x", T.FLOAT, ["n"]), ("y", T.FLOAT, ["m"])]
    model = compiled([helper.make_node("If", ["c"], ["z"], **ways)], inputs, ["z"])
    for x in (THREE, THREE[:0]):
        np.testing.assert_array_equal(model(np.array(True), x, FIVE)[0], x)
        np.testing.assert_array_equal(model(np.array(False), x, FIVE)[0], FIVE)


def test_a_branch_that_never_fits_is_an_error_of_calls_that_take_it() -> None:
    inputs = [("x", T.FLOAT, [3]), ("c", T.BOOL, [])]
    model = compiled([guarded(node("Reshape", "x", "six"))], inputs, ["z"], {"six": np.array([6])})
    np.testing.assert_array_equal(model(THREE, np.array(False))[0], -THREE)
    with pytest.raises(tilewright.InputError, match="3 elements cannot take a shape of 6"):
        model(THREE, np.array(True))


def test_two_branches_that_never_fit_are_an_error_of_the_model() -> None:
    ways = {f"{name}_branch": way([node("Reshape", "x", "six")], "t") for name in ("then", "else")}
    inputs = [("x", T.FLOAT, [3]), ("c", T.BOOL, [])]
    with pytest.raises(tilewright.TilewrightError, match="3 elements cannot take a shape of 6"):
        compiled([helper.make_node("If", ["c"], ["z"], **ways)], inputs, ["z"], {"six": np.array([6])})


def test_branches_of_tensorflow_lite() -> None:
    x, d, y = Tensor("x", (3,), np.int32), Tensor("d", (1,), np.int32), Tensor("y", (3,), np.int32)
    options = {"then_subgraph_index": 1, "else_subgraph_index": 2}
    inputs = ["c", "x", "d"]
    main = Graph([Tensor("c", (), np.bool_), x, d, y], [Node("IF", inputs, ["y"], options)], inputs, ["y"])
    one = constant("one", np.array([1], np.int32))
    ways = [Graph([x, d, y, one], [Node("DIV", ["x", by], ["y"])], ["x", "d"], ["y"]) for by in ("d", "one")]
    model = tilewright.compile(written(main, *ways), cache=False, threads=1)
    numbers = np.array([4, 5, 6], np.int32)
    np.testing.assert_array_equal(model(np.array(False), numbers, np.array([0], np.int32))[0], numbers)
    np.testing.assert_array_equal(model(np.array(True), numbers, np.array([2], np.int32))[0], [2, 2, 3])


def test_branches_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Guarded(torch.nn.Module):
        def forward(self, x, d):  # type: ignore[no-untyped-def]
            return torch.cond(d[0] == 0, lambda a, b: a.clone(), lambda a, b: a // b, (x, d))

    x, zero = torch.tensor([4, 5, 6]), torch.tensor([0])
    model = tilewright.compile(Guarded().eval(), (x, zero), cache=False, threads=1)
    np.testing.assert_array_equal(model(x.numpy(), zero.numpy())[0], x.numpy())
    np.testing.assert_array_equal(model(x.numpy(), np.array([2]))[0], [2, 2, 3])
