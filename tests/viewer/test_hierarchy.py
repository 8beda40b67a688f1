"""Nodes in modules: by names, by blocks that repeat, and in pieces."""

from __future__ import annotations

import onnx
import pytest
from onnx import TensorProto, helper

from tilewright.frontends.onnx.load import load_onnx
from tilewright.ir.diag import Loc
from tilewright.viewer.hierarchy import (
    DEEPEST,
    MOST_CHILDREN,
    Placed,
    group_of_kernel,
    hierarchy,
    path_of,
)
from tilewright.viewer.nodes import SourceNodes
from tilewright.viewer.records import GroupView


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/encoder/layer.1/attention/Add", ("encoder", "layer.1", "attention")),
        ("encoder.layer.10.dense/linear_3", ("encoder", "layer.10", "dense")),
        ("model/conv/BiasAdd;model/conv/Conv2D", ("model", "conv")),
        ("Conv_0", ()),
        ("/Add", ()),
        ("", ()),
        ("a.b.c", ()),
    ],
)
def test_paths_of_names(name: str, path: tuple[str, ...]) -> None:
    assert path_of(name) == path


def chain(paths: list[tuple[str, ...]], labels: list[str]) -> list[Placed]:
    return [
        Placed(p, label, (k - 1,) if k else ()) for k, (p, label) in enumerate(zip(paths, labels, strict=True))
    ]


def named(groups: tuple[GroupView, ...], number: int) -> str:
    return "" if number < 0 else f"{named(groups, groups[number].parent)}/{groups[number].name}"


def test_equal_modules_that_follow_each_other_are_put_together() -> None:
    layers = [("net", f"layer.{k}") for k in range(4)]
    paths = [("net",), *(layer for layer in layers for _ in range(2)), ("net",)]
    labels = ["begin", *["conv", "relu"] * 3, "conv", "sigmoid", "end"]
    groups, placed = hierarchy(chain(paths, labels))
    assert named(groups, placed[1]) == "/net/layer.0 to layer.2/layer.0"
    assert [g.count for g in groups if g.kind == "repeat"] == [3]
    assert named(groups, placed[7]) == "/net/layer.3"  # it has another operator
    assert named(groups, placed[0]) == "/net"


def test_sizes_that_the_first_layer_computes_for_all_do_not_tell_it_from_others() -> None:
    """As exporters of PyTorch write them: a layer has nodes for the sizes that those before it have not asked for."""
    vi, make = helper.make_tensor_value_info, helper.make_node
    nodes = [make("Shape", ["x"], ["size"], "/net/layer.0/Shape")]
    for k, given in enumerate(("x", "y0", "y1")):
        if k == 2:
            nodes += [make("Shape", [given], ["own"], f"/net/layer.{k}/Shape")]
        nodes += [
            make("Relu", [given], [f"r{k}"], f"/net/layer.{k}/act/Relu"),
            make("Reshape", [f"r{k}", "own" if k == 2 else "size"], [f"y{k}"], f"/net/layer.{k}/Reshape"),
        ]
    nodes.append(make("Tanh", ["y2"], ["y"], "/net/end/Tanh"))
    ends = [[vi(name, TensorProto.FLOAT, ["n", 4])] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *ends)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    source = SourceNodes(load_onnx(model.SerializeToString()))
    groups, _ = hierarchy(source.placed())
    assert [(g.name, g.count) for g in groups if g.kind == "repeat"] == [("layer.0 to layer.2", 3)]


def test_many_inputs_are_a_group_and_what_has_no_operator_of_its_own_is_named_by_what_it_computes() -> None:
    """As front ends of decoders have them: two states for each layer, and nodes for what lies between weights."""
    vi = helper.make_tensor_value_info
    names = [f"x{k}" for k in range(13)]
    nodes = [helper.make_node("Sum", names, ["s"], "sum"), helper.make_node("Flatten", ["s"], ["f"], "flat"),
             helper.make_node("Exp", ["f"], ["y"], "exp")]  # fmt: skip
    ends = [[vi(n, TensorProto.FLOAT, [2, 3, 4]) for n in names], [vi("y", TensorProto.FLOAT, [2, 12])]]
    graph = helper.make_graph(nodes, "g", *ends)
    module = load_onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString())
    for op in module.main.body.ops:
        if op.loc.node in ("flat", "exp"):
            op.loc = Loc(node="between", op="Layer")
    source = SourceNodes(module)
    groups, placed = hierarchy(source.placed())
    views = source.views(placed, {}, {})
    assert [named(groups, v.group) for v in views] == ["/inputs"] * 13 + [""] * 3
    assert [v.operator for v in views[13:]] == ["Sum", "exp", "output"]


def test_many_short_repetitions_are_no_blocks() -> None:
    labels = [f"{k}{at}" for k in range(500) for at in "abcabcabcabc"]
    groups, _ = hierarchy(chain([()] * len(labels), labels))
    assert {group.kind for group in groups} == {"piece"}


def test_groups_in_one_have_names_of_their_own() -> None:
    """A page opens groups by their paths."""
    labels = ["begin", *["a", "b", "c", "d"] * 30, "x", *["e", "f", "g", "h"] * 30, "end"]
    groups, _ = hierarchy(chain([()] * len(labels), labels))
    assert [g.count for g in groups if g.kind == "repeat"] == [30, 30]
    assert len({named(groups, number) for number in range(len(groups))}) == len(groups)


def test_names_of_thousands_of_modules() -> None:
    groups, placed = hierarchy([Placed(path_of("a/" * 5000 + name), name, ()) for name in "xy"])
    assert len(groups) == 1 and placed == [0, 0] and groups[0].name == "/".join("a" * DEEPEST)


def test_many_nodes_without_names_are_cut_into_blocks_and_pieces() -> None:
    labels = ["begin", *(["a", "b", "c", "d"] * 100), *(f"single {k}" for k in range(700))]
    groups, placed = hierarchy(chain([()] * len(labels), labels))
    (repeat,) = [number for number, group in enumerate(groups) if group.kind == "repeat"]
    assert groups[repeat].count == 100
    pieces = [number for number, group in enumerate(groups) if group.kind == "piece"]
    sizes = [placed.count(number) for number in pieces]
    assert sum(sizes) == 700 and max(sizes) <= MOST_CHILDREN
    assert [number for number, group in enumerate(placed) if group < 0] == [0]


def test_a_kernel_stands_where_most_of_its_nodes_are() -> None:
    groups = (GroupView("a", -1), GroupView("b", 0), GroupView("c", 0))
    assert group_of_kernel([0, 1], [1, 1, 2], groups) == 1
    assert group_of_kernel([0, 2], [1, 1, 2], groups) == 0
    assert group_of_kernel([], [], groups) == -1


def test_nothing_has_no_groups() -> None:
    assert hierarchy([]) == ((), [])


def branches(size: int | str) -> onnx.ModelProto:
    """A choice between two chains, and a loop, in modules; what is in them has no names of modules."""
    vi = helper.make_tensor_value_info

    def chain(*operators: str) -> onnx.GraphProto:
        names = ["x", *(f"{operators[0]}_{k}" for k in range(len(operators)))]
        nodes = [
            helper.make_node(operator, [names[k]], [names[k + 1]], f"inner_{operator}")
            for k, operator in enumerate(operators)
        ]
        return helper.make_graph(nodes, "part", [], [vi(names[-1], TensorProto.FLOAT, [size])])

    step = [helper.make_node("Add", ["s", "x"], ["t"], "net/loop/deep/add"), helper.make_node("Identity", ["c"], ["d"])]
    ends = [vi("d", TensorProto.BOOL, []), vi("t", TensorProto.FLOAT, [size])]
    given = [vi("i", TensorProto.INT64, []), vi("c", TensorProto.BOOL, []), vi("s", TensorProto.FLOAT, [size])]
    body = helper.make_graph(step, "b", given, ends)
    one, two = chain("Relu", "Exp"), chain("Tanh", "Abs")
    nodes = [
        helper.make_node("If", ["flag"], ["a"], "net/choice", then_branch=one, else_branch=two),
        helper.make_node("Loop", ["n", "", "a"], ["y"], "net/loop", body=body),
    ]
    inputs = [vi("x", TensorProto.FLOAT, [size]), vi("flag", TensorProto.BOOL, [1]), vi("n", TensorProto.INT64, [])]
    graph = helper.make_graph(nodes, "g", inputs, [vi("y", TensorProto.FLOAT, [size])])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("size", [4, "n"])
def test_nodes_in_branches_and_loops_stand_where_these_do(size: int | str) -> None:
    """Small branches are both computed: they have no block of their own then."""
    nodes = SourceNodes(load_onnx(branches(size).SerializeToString()))
    groups, placed = hierarchy(nodes.placed())
    views = {view.name: view for view in nodes.views(placed, {}, {})}
    order = [*views]
    choice = ("/net",) * 3 if size == 4 else ("/net/choice/then", "/net/choice/else", "/net/choice")
    assert {name: named(groups, view.group) for name, view in views.items() if view.group >= 0} == {
        "inner_Relu": choice[0], "inner_Exp": choice[0], "inner_Tanh": choice[1], "inner_Abs": choice[1],
        "net/choice": choice[2], "net/loop/deep/add": "/net/loop", "net/loop": "/net/loop",
    }  # fmt: skip
    reads = {name: [order[r] for r in view.reads] for name, view in views.items()}
    assert reads["net/loop/deep/add"] == ["net/choice", "x"] and "net/loop/deep/add" in reads["net/loop"]
    assert "max(x" in views["inner_Relu"].text and "add(" not in views["net/loop"].text
    if size != 4:
        assert reads["net/choice"] == ["flag", "inner_Exp", "inner_Abs"]  # though the condition is reshaped for it
        assert views["net/choice"].text.startswith("a = branch(") and "max(" not in views["net/choice"].text
        assert all(read < k for k, view in enumerate(views.values()) for read in view.reads)
