"""If, Loop and Scan."""

from __future__ import annotations

from tilewright.frontends import control_flow
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops.view import pad, shape_of, slice_


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


@adapter("Scan", until=8)
def scan_of_batch(node: Node) -> tuple[Value, ...]:
    """Axis 0 is that of the batch, axis 1 is scanned; each sequence may have a length of its own, and what is behind
    its end is 0."""
    body, count, lengths = node.attr("body"), node.attr("num_scan_inputs"), node.optional(0)
    operands = [node.input(k) for k in range(1, len(node.inputs))]
    states = len(operands) - count
    outputs = len(body.output) - states
    if states < 0 or count < 1 or len(body.input) != len(operands) or outputs < 0:
        raise ModelError(f"the body of Scan does not fit {states} states and {count} scanned inputs")
    backward = tuple(map(bool, node.attr("directions", (0,) * count)))
    if len(backward) != count or any(len(shape_of(x)) < 2 for x in operands[states:]):
        raise ModelError(f"Scan with {len(backward)} directions of {count} inputs, which need two axes at least")
    steps, inner = shape_of(operands[states])[1], node.body("body")

    def one(*given: Value) -> tuple[Value, ...]:
        """The scan of one entry of the batch."""
        sequences = given[states : states + count]
        if lengths is None:
            scanned = [(x, 0, back) for x, back in zip(sequences, backward, strict=True)]
            return control_flow.scan(node.translation, given[:states], scanned, inner, [(0, False)] * outputs)
        length = _length(node, given[-1], steps)
        ranks = [len(shape_of(x)) for x in sequences]
        parts = [
            slice_(x, starts=(0,) * rank, sizes=(length, *shape_of(x)[1:]), steps=(1,) * rank)
            for x, rank in zip(sequences, ranks, strict=True)
        ]
        scanned = [(x, 0, back) for x, back in zip(parts, backward, strict=True)]
        found = control_flow.scan(node.translation, given[:states], scanned, inner, [(0, False)] * outputs)
        return (*found[:states], *[_padded(x, steps) for x in found[states:]])

    each = [*operands, *([] if lengths is None else [lengths])]
    return control_flow.scan(node.translation, (), [(x, 0, False) for x in each], one, [(0, False)] * len(body.output))


def _length(node: Node, given: Value, steps: Sym) -> Sym:
    """How many of so many steps a sequence has."""
    found = node.translation.measure(given)
    assert found is not None
    return s.minimum(s.maximum(found.reshape(-1)[0], 0), steps)


def _padded(rows: Value, steps: Sym) -> Value:
    """Rows, with zeros behind them up to so many steps."""
    shape = shape_of(rows)
    none = (sym(0),) * (len(shape) - 1)
    return pad(rows, before=(sym(0), *none), after=(steps - shape[0], *none), value=0)


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
