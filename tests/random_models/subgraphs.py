"""Steps of random models with graphs inside of nodes: If, Loop and Scan, whose bodies read what is outside of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import GraphProto, NodeProto, helper

from tests.random_models.growth import Grown, Growth, Refused

BODY_OPS = ("Tanh", "Relu", "Neg", "Sigmoid")


def add(g: Growth, node: NodeProto, reads: list[Grown]) -> None:
    """Add a node whose graphs read `reads` besides its operands."""
    if not all(v.exact for v in reads if v.dtype == "bool"):
        raise Refused
    g.values += g.evaluated(node, reads, exact=False)
    g.nodes.append(node)


def graph(name: str, nodes: list[NodeProto], inputs: list[str], outputs: list[str]) -> GraphProto:
    made = helper.make_graph(nodes, name, [], [])
    for part, names in ((made.input, inputs), (made.output, outputs)):
        for n in names:
            part.add().name = n
    return made


def if_(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32")
    condition = g.constant(np.array(g.chance(0.5)))
    if g.chance(0.5):
        (total,) = g.emit("Size", x, exact=True)
        (condition,) = g.emit(
            "Greater", total, np.array(g.random.choice((0, 10, 100)), np.int64), decides=True
        )
    y = g.fresh("t")
    branches = []
    for op in g.random.sample(BODY_OPS, 2):
        inner, result = g.fresh("b"), g.fresh("b")
        nodes = [helper.make_node(op, [x.name], [inner]), helper.make_node("Add", [inner, x.name], [result])]
        branches.append(graph("branch", nodes, [], [result]))
    node = helper.make_node(
        "If", [condition.name], [y], g.fresh("node"), then_branch=branches[0], else_branch=branches[1]
    )
    add(g, node, [condition, x])


def loop(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32")
    trips = g.random.randint(0, 4)
    iterations, go = g.constant(np.array(trips, np.int64)), g.constant(np.array(True))
    i, on, state, new, still, item = (g.fresh("b") for _ in range(6))
    op = g.random.choice(BODY_OPS)
    nodes = [
        helper.make_node(op, [state], [item]),
        helper.make_node("Add", [item, x.name], [new]),
        helper.make_node("Identity", [on], [still]),
    ]
    body = helper.make_graph(nodes, "body", [], [])
    for n, code, shape in ((i, 7, ()), (on, 9, ()), (state, 1, x.shape)):
        body.input.append(helper.make_tensor_value_info(n, code, shape))
    for n, code, shape in ((still, 9, ()), (new, 1, x.shape), (item, 1, x.shape)):
        body.output.append(helper.make_tensor_value_info(n, code, shape))
    names = [g.fresh("t"), g.fresh("t")]
    node = helper.make_node("Loop", [iterations.name, go.name, x.name], names, g.fresh("node"), body=body)
    add(g, node, [iterations, go, x])
    if not trips:
        g.is_continuous = False  # for none ONNX Runtime takes the sizes that the body declares


def scan(g: Growth) -> None:
    x = g.pick(lambda v: v.dtype == "float32" and v.rank >= 2 and 0 not in v.shape)
    start = g.constant(g.elements(x.shape[1:]))
    state, item, new, out = (g.fresh("b") for _ in range(4))
    nodes = [
        helper.make_node(g.random.choice(("Add", "Mul", "Max")), [state, item], [new]),
        helper.make_node(g.random.choice(BODY_OPS), [new], [out]),
    ]
    body = helper.make_graph(nodes, "body", [], [])
    for n in (state, item):
        body.input.append(helper.make_tensor_value_info(n, 1, x.shape[1:]))
    for n in (new, out):
        body.output.append(helper.make_tensor_value_info(n, 1, x.shape[1:]))
    names = [g.fresh("t"), g.fresh("t")]
    attrs = {"scan_input_directions": [1]} if g.chance(0.3) else {}
    node = helper.make_node(
        "Scan", [start.name, x.name], names, g.fresh("node"), body=body, num_scan_inputs=1, **attrs
    )
    add(g, node, [start, x])


SUBGRAPHS: dict[str, tuple[Callable[[Growth], object], float]] = {
    "if": (if_, 0.25), "loop": (loop, 0.25), "scan": (scan, 0.25),
}  # fmt: skip
