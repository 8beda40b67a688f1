"""If, Loop and Scan."""

from __future__ import annotations

from tilewright.frontends import control_flow
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError


@adapter("If")
def if_(node: Node) -> tuple[Value, ...]:
    ways = [node.body(name, forks=True) for name in ("then_branch", "else_branch")]
    return control_flow.branch(node.translation, node.input(0), *ways, forks=True)


@adapter("Loop", takes="all")
def loop(node: Node) -> tuple[Value, ...]:
    body, state = node.attr("body"), [node.input(k) for k in range(2, len(node.inputs))]
    rows = len(body.output) - len(state) - 1
    if len(body.input) != len(state) + 2 or rows < 0:
        raise ModelError(f"the body of Loop has {len(body.input)} inputs for {len(state)} carried values")
    return control_flow.loop(node.translation, node.optional(0), node.optional(1), state, node.body("body"), rows)


@adapter("Scan", since=9, takes="all")
def scan(node: Node) -> tuple[Value, ...]:
    body, count, operands = node.attr("body"), node.attr("num_scan_inputs"), node.operands
    states = len(operands) - count
    outputs = len(body.output) - states
    if states < 0 or count < 1 or len(body.input) != len(operands) or outputs < 0:
        raise ModelError(f"the body of Scan does not fit {states} states and {count} scanned inputs")
    axes = [
        node.axis(axis, node.rank(states + k))
        for k, axis in enumerate(_per(node, "scan_input_axes", count))
    ]
    scanned = zip(operands[states:], axes, map(bool, _per(node, "scan_input_directions", count)), strict=True)
    made = zip(
        _per(node, "scan_output_axes", outputs),
        map(bool, _per(node, "scan_output_directions", outputs)),
        strict=True,
    )
    return control_flow.scan(node.translation, operands[:states], list(scanned), node.body("body"), list(made))


def _per(node: Node, name: str, count: int) -> tuple[int, ...]:
    values: tuple[int, ...] = node.attr(name, (0,) * count)
    if len(values) != count:
        raise ModelError(f"Scan: {name} has {len(values)} entries for {count}")
    return values
