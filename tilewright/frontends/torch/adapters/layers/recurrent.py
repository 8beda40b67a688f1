"""LSTM, GRU and RNN layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.frontends.torch.node import AtenNode
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.unroll import element, stacked
from tilewright.ir.core import Value
from tilewright.ir.sym import sym
from tilewright.ops.composites.recurrent import GATES, Direction, layer
from tilewright.ops.contract import matmul
from tilewright.ops.view import concat, shape_of, slice_, transpose

_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where PyTorch (i f g o, r z n) has our gates (i o f c, z r h)."""


@aten("lstm.input")
def lstm(node: AtenNode, input: Value, hx: Sequence[Value], **how: Any) -> tuple[Value, ...]:
    return _layers(node, "LSTM", input, hx, (), **how)


@aten("gru.input")
def gru(node: AtenNode, input: Value, hx: Value, **how: Any) -> tuple[Value, ...]:
    return _layers(node, "GRU", input, (hx,), (), **how)


@aten("rnn_tanh.input", "rnn_relu.input")
def rnn(node: AtenNode, input: Value, hx: Value, **how: Any) -> tuple[Value, ...]:
    return _layers(node, "RNN", input, (hx,), ("relu",) if "relu" in node.op else ("tanh",), **how)


def _layers(
    node: AtenNode, kind: str, input: Value, states: Sequence[Value], activations: Sequence[str], *,
    params: Sequence[Value], has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, ...]:  # fmt: skip
    """Layers one after the other: [steps, batch, width] -> [steps, batch, directions * hidden] and the last states."""
    if train and dropout:
        raise node.refuse("dropout between layers in training mode", "call .eval() on the module first")
    x = transpose(input, perm=(1, 0, 2)) if batch_first else input
    directions = 2 if bidirectional else 1
    given = _parameters(node, params, 4 if has_biases else 2, num_layers * directions)
    finals: list[list[Value]] = [[] for _ in states]
    for k in range(num_layers):
        rows = []
        for d in range(directions):
            place = k * directions + d
            own = [element(s, 0, place) for s in states]
            found = layer(x, _direction(node, kind, next(given), own, activations, bool(d)))
            rows.append(found[0])
            for final, state in zip(finals, found[1:], strict=True):
                final.append(state)
        x = concat(*rows, axis=2) if directions > 1 else rows[0]
    over_time = transpose(x, perm=(1, 0, 2)) if batch_first else x
    return (over_time, *[stacked(final, 0) for final in finals])


def _parameters(
    node: AtenNode, params: Sequence[Value], each: int, count: int
) -> Iterator[Sequence[Value]]:
    if len(params) != each * count:
        raise node.refuse(
            f"projections of states ({len(params)} parameters in place of {each * count})",
            "make the LSTM without proj_size, or use torch.compile(backend='tilewright'), which leaves it to PyTorch",
        )
    return (params[k * each : (k + 1) * each] for k in range(count))


def _direction(
    node: AtenNode,
    kind: str,
    params: Sequence[Value],
    states: Sequence[Value],
    activations: Sequence[str],
    reverse: bool,
) -> Direction:
    hidden = shape_of(params[1])[1]
    if not hidden.is_const or shape_of(states[0])[-1] != hidden:
        raise node.refuse(f"states of {shape_of(states[0])[-1]} numbers where weights take {hidden}")
    ours = [_reordered(p, kind, hidden.value) for p in params]
    w, r, *biases = ours
    return Direction(
        kind,
        hidden.value,
        lambda x: matmul(x, w, transpose_b=True),
        r,
        biases[0] if biases else None,
        biases[1] if biases else None,
        states[0],
        states[1] if kind == "LSTM" else None,
        activations=activations,
        reverse=reverse,
        linear_before_reset=True,
    )


def _reordered(parameter: Value, kind: str, hidden: int) -> Value:
    """The rows of the gates in our order."""
    if GATES[kind] == 1:
        return parameter
    shape = shape_of(parameter)
    others = shape[1:]
    zeros = (sym(0),) * len(others)
    steps = (1,) * len(shape)
    rows = [
        slice_(parameter, starts=(sym(k * hidden), *zeros), sizes=(sym(hidden), *others), steps=steps)
        for k in _ORDER[kind]
    ]
    return concat(*rows, axis=0)
