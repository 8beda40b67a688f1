"""Branches, loops and calls of subgraphs."""

from __future__ import annotations

from tilewright.frontends import control_flow
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops.view import reshape


@tflite("IF")
def if_(node: OperatorNode) -> tuple[Value, ...]:
    operands = [node.raw(k) for k in range(1, node.count)]
    ways = [node.body(node.integer(f"{way}_subgraph_index")) for way in ("then", "else")]
    then, other = ways
    return control_flow.branch(
        node.translation, node.raw(0), lambda: then(*operands), lambda: other(*operands)
    )


@tflite("WHILE")
def while_(node: OperatorNode) -> tuple[Value, ...]:
    state = [node.raw(k) for k in range(node.count)]
    goes_on, trip = (node.body(node.integer(f"{part}_subgraph_index")) for part in ("cond", "body"))

    def condition(*values: Value) -> Value:
        found = goes_on(*values)
        if len(found) != 1:
            raise ModelError(f"the condition of WHILE gives {len(found)} results")
        return reshape(found[0], shape=())

    def body(position: Value, held: Value, *values: Value) -> tuple[Value, ...]:
        results = trip(*values)
        return (condition(*results), *results)

    return control_flow.loop(node.translation, None, condition(*state), state, body, 0)


@tflite("CALL", "STABLEHLO_COMPOSITE")
def call(node: OperatorNode) -> tuple[Value, ...]:
    """The subgraph that says what a composite operator means."""
    if "subgraph" not in node.options:
        raise UnsupportedError(f"{node.op} without a subgraph is not supported")
    return node.body(node.integer("subgraph"))(*[node.raw(k) for k in range(node.count)])
