"""Blocks that a model repeats are found by structure, whatever names say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import tilewright
from tilewright.accounts.anatomy import RepeatedBlock, repeated_blocks, title_of
from tilewright.accounts.repeats import Repeat, repeats
from tilewright.frontends.onnx.load import load_onnx

WIDTH = 16


class Net:
    """A network that is written node by node. With names nodes are in modules."""

    def __init__(self, named: bool = False) -> None:
        self.nodes: list[object] = []
        self.weights: dict[str, tuple[int, ...]] = {}
        self.named = named

    def add(self, operator: str, *inputs: str, module: str = "", **attributes: object) -> str:
        result = f"v{len(self.nodes)}"
        name = f"/{module}/{operator}" if self.named else ""
        self.nodes.append(helper.make_node(operator, [*inputs], [result], name, **attributes))
        return result

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = shape
        return name

    def layer(self, x: str, mask: str, width: int = WIDTH, module: str = "", project: int = 0) -> str:
        """Two products with a shortcut, which is projected where sizes change, and a mask that all layers read."""
        a = self.add("MatMul", x, self.weight(project or width, width), module=module)
        a = self.add("Relu", a, module=module)
        a = self.add("MatMul", a, self.weight(width, width), module=module)
        shortcut = self.add("MatMul", x, self.weight(project, width), module=module) if project else x
        a = self.add("Add", a, shortcut, module=module)
        return self.add("Tanh", self.add("Mul", a, mask, module=module), module=module)

    def model(self, result: str) -> ModelProto:
        rng = np.random.default_rng(0)
        weights = [numpy_helper.from_array(rng.standard_normal(s, np.float32) / 9, n) for n, s in self.weights.items()]
        x, mask = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, d]) for n, d in (("x", WIDTH), ("mask", 1)))
        y = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "g", [x, mask], [y], weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_repetitions_are_found_by_kind_and_distance() -> None:
    kinds = ["begin", *(["a", "b", "c", "d"] * 5), "x", *(["e", "f", "g"] * 4), "end"]
    chain = [(k - 1,) for k in range(len(kinds))]
    assert repeats(kinds, chain) == [Repeat(1, 4, 5), Repeat(22, 3, 4)]
    assert repeats(kinds, chain, least=13) == [Repeat(1, 4, 5)]
    chain[10] = (8,)
    assert Repeat(1, 4, 5) not in repeats(kinds, chain)
    assert repeats([], []) == []


def blocks_of(net: Net, result: str) -> list[RepeatedBlock]:
    return repeated_blocks(load_onnx(net.model(result).SerializeToString()).main.body)


def stages(net: Net) -> str:
    """Three layers, two wider ones behind a projection, and a head."""
    mask = net.add("Sigmoid", "mask", module="mask")
    x = net.add("Sin", "x", module="stem")
    for k in range(3):
        x = net.layer(x, mask, module=f"first/layer.{k}")
    for k in range(3):
        x = net.layer(x, mask, 32, f"second/layer.{k}", project=0 if k else WIDTH)
    return net.add("Softmax", x, module="head")


@pytest.mark.parametrize("named", [True, False])
def test_layers_are_found_with_and_without_names(named: bool) -> None:
    net = Net(named)
    first, second = blocks_of(net, stages(net))
    assert [len(block.copies) for block in (first, second)] == [3, 3]
    assert [block.variants for block in (first, second)] == [0, 1]
    assert [len(copy) for copy in second.copies] == [len(second.copies[1]) + 1, *[len(second.copies[1])] * 2]
    names = ["matmul", "max", "matmul", "add", "mul", "tanh"]
    assert [[op.name for op in copy] for copy in first.copies] == [names] * 3
    assert [title_of(b) for b in (first, second)] == (
        ["first/layer.*", "second/layer.*"] if named else ["matmul, max, matmul, add, ..."] * 2
    )


def test_what_repeats_in_itself_only_is_no_block() -> None:
    chain, single, short = Net(), Net(), Net()
    x = "x"
    for _ in range(20):
        x = chain.add("Tanh", x)
    assert blocks_of(chain, x) == []
    assert blocks_of(single, single.layer("x", "mask")) == []
    assert blocks_of(short, short.add("Tanh", "x")) == []


def test_the_first_layers_are_as_near_to_a_mask_as_others_are_to_each_other() -> None:
    net = Net()
    mask, x = net.add("Sigmoid", "mask"), "x"
    for _ in range(5):
        x = net.add("Cos", net.layer(x, mask))
    (block,) = blocks_of(net, x)
    assert (len(block.copies), block.variants) == (5, 0)


def test_layers_that_compute_something_else_are_none() -> None:
    net = Net()
    x = net.layer("x", "mask")
    x = net.add("Cos", x)
    x = net.layer(x, "mask")
    assert blocks_of(net, x) == []


def test_reports_checks_and_kernels_name_the_blocks(tmp_path: Path) -> None:
    net = Net(named=True)
    model = net.model(stages(net)).SerializeToString()
    report = tilewright.compile(model, threads=1, cache=False).report()
    assert [(b.block, b.copies) for b in report.blocks] == [("first/layer.*", 3), ("second/layer.*", 3)]
    for block in report.blocks:
        for k, copy in enumerate(block.kernels):
            nodes = {report.calls[n].node for n in copy}
            assert nodes and all(node.startswith(f"/{block.block[:-1]}{k}/") for node in nodes)
    first, second = tilewright.check(model).costs.blocks  # type: ignore[union-attr]
    each = 2 * 4 * WIDTH * WIDTH * 2 + 4 * WIDTH * 4
    assert first.flops.value == 3 * each and first.cycles
    assert (second.copies, second.variants) == (3, 1) and second.flops.value > first.flops.value
