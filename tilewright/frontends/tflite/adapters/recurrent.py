"""Recurrent layers. States that TFLite keeps from one call to the next are zeros when a call begins."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import tflite
from tilewright.frontends.tflite.schema import ACTIVATIONS
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.recurrent import Direction, layer
from tilewright.ops.contract import matmul
from tilewright.ops.reduce import dtype_of
from tilewright.ops.source import full
from tilewright.ops.view import concat, shape_of, transpose

_NAMES: Mapping[str, str] = MappingProxyType({"TANH": "tanh", "RELU": "relu"})

_INPUT, _RECURRENT, _PEEPHOLES, _BIASES = 1, 5, 9, 12
"""Where operands of each kind begin; their gates are in the order i f c o, those of the second i f o."""
_PROJECTION, _STATE, _CELL, _NORMS = 16, 18, 19, 20

_ORDER = (0, 3, 1, 2)
"""Our order of gates, i o f c, in TFLite's."""


@tflite("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(node: OperatorNode) -> Value:
    """x [batch, time, width], or time first; the states h of all steps."""
    node.require_rank(0, 3)
    for is_there, what in (
        (node.has(_PROJECTION), "a projection"),
        (node.has(_NORMS + 1), "layer normalisation"),
        (node.flag("diagonal_recurrent_tensors"), "diagonal weights"),
        (not node.has(_INPUT), "coupled gates"),
    ):
        if is_there:
            raise node.refuse(what)
    hidden = node.known_dim(_RECURRENT + 1, 1)
    activation = node.named("activation", ACTIVATIONS)
    if activation not in _NAMES:
        raise node.refuse(f"the activation {activation}")
    w, r = (_gates(node, first) for first in (_INPUT, _RECURRENT))
    dtype = dtype_of(w)
    biases = [_or_zeros(node, _BIASES + k, hidden) for k in _ORDER]
    peepholes = None
    if node.has(_PEEPHOLES + 1):
        parts = [_or_zeros(node, _PEEPHOLES + k, hidden) for k in (0, 2, 1)]
        peepholes = concat(*parts, axis=0)
    name = _NAMES[activation]
    direction = Direction(
        "LSTM",
        hidden,
        lambda x: matmul(x, w, transpose_b=True),
        r,
        full(value=0.0, dtype=dtype, shape=(4 * hidden,)),
        concat(*biases, axis=0),
        node.optional(_STATE),
        node.optional(_CELL),
        peepholes,
        activations=("sigmoid", name, name),
        clip=float(node.options["cell_clip"]),
    )
    return _over_time(node, direction)


def _gates(node: OperatorNode, first: int) -> Value:
    """The weights of all gates in our order."""
    found = [node.input(first + k) for k in _ORDER]
    if len({shape_of(v) for v in found}) > 1 or any(len(shape_of(v)) != 2 for v in found):
        raise ModelError(f"{node.op} has weights of different shapes")
    return concat(*found, axis=0)


def _or_zeros(node: OperatorNode, k: int, size: int) -> Value:
    return node.input(k) if node.has(k) else full(value=0.0, dtype=dtype_of(node.input(0)), shape=(size,))


@tflite("UNIDIRECTIONAL_SEQUENCE_RNN")
def unidirectional_sequence_rnn(node: OperatorNode) -> Value:
    """x, weights [hidden, width] and [hidden, hidden], a bias, a state."""
    node.require_rank(0, 3)
    return _over_time(node, _plain(node))


@tflite("RNN")
def rnn(node: OperatorNode) -> Value:
    """One step: x [batch, width]."""
    node.require_rank(0, 2)
    x = node.input(0)
    from_x = matmul(x, node.input(1), transpose_b=True)
    total = from_x if not node.has(3) else ew.add(from_x, node.input(3))
    if node.has(4):
        total = ew.add(total, matmul(node.input(4), node.input(2), transpose_b=True))
    return node.activated(total)


def _plain(node: OperatorNode) -> Direction:
    activation = node.named("activation", ACTIVATIONS)
    if activation not in _NAMES:
        raise node.refuse(f"the activation {activation}")
    w, hidden = node.input(1), node.known_dim(2, 1)
    return Direction(
        "RNN",
        hidden,
        lambda x: matmul(x, w, transpose_b=True),
        node.input(2),
        full(value=0.0, dtype=dtype_of(w), shape=(hidden,)),
        _or_zeros(node, 3, hidden),
        node.optional(4),
        activations=(_NAMES[activation],),
    )


def _over_time(node: OperatorNode, direction: Direction) -> Value:
    x, swap = node.input(0), (1, 0, 2)
    if node.flag("time_major"):
        return layer(x, direction)[0]
    return transpose(layer(transpose(x, perm=swap), direction)[0], perm=swap)
