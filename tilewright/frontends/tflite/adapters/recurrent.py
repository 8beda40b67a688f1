"""Recurrent layers. States are zeros when a call begins, unless the model keeps them from one call to the next."""

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
from tilewright.ops.reduce import dtype_of, reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, section, shape_of, transpose

_NAMES: Mapping[str, str] = MappingProxyType({"TANH": "tanh", "RELU": "relu"})

_INPUT, _RECURRENT, _PEEPHOLES, _BIASES = 1, 5, 9, 12
"""Where operands of each kind begin; their gates are in the order i f c o, those of the second i f o."""
_PROJECTION, _STATE, _CELL, _NORMS = 16, 18, 19, 20
_RNN_STATE = _SVDF_STATE = 4

_ORDER = (0, 3, 1, 2)
"""Our order of gates, i o f c, in TFLite's."""


@tflite("UNIDIRECTIONAL_SEQUENCE_LSTM")
def unidirectional_sequence_lstm(node: OperatorNode) -> Value:
    """x [batch, time, width], or time first; the states h of all steps."""
    node.require_rank(0, 3)
    if node.flag("diagonal_recurrent_tensors"):
        raise node.refuse("diagonal weights")
    return _over_time(node, _lstm(node), _STATE, _CELL)


@tflite("LSTM")
def lstm(node: OperatorNode) -> Value | tuple[Value, ...]:
    """One step: x [batch, width]."""
    if node.integer("kernel_type") != 0:
        raise node.refuse("states as results (a basic cell)")
    node.require_rank(0, 2)
    return _one_step(node, _lstm(node), _STATE, _CELL)


def _lstm(node: OperatorNode) -> Direction:
    for is_there, what in (
        (node.has(_PROJECTION), "a projection"),
        (node.has(_NORMS + 1), "layer normalisation"),
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
    return Direction(
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
    return _over_time(node, _plain(node), _RNN_STATE)


@tflite("RNN")
def rnn(node: OperatorNode) -> Value:
    """One step: x [batch, width]."""
    node.require_rank(0, 2)
    x = node.input(0)
    from_x = matmul(x, node.input(1), transpose_b=True)
    total = from_x if not node.has(3) else ew.add(from_x, node.input(3))
    if node.has(_RNN_STATE):
        total = ew.add(total, matmul(node.input(_RNN_STATE), node.input(2), transpose_b=True))
    state = node.activated(total)
    node.keep(_RNN_STATE, state)
    return state


@tflite("SVDF")
def svdf(node: OperatorNode) -> Value:
    """One step of filters of a `rank` over features [filters, width] and then over time [filters, memory]: x [batch,
    width], a bias [units], and the features of the last steps [batch, filters * memory]."""
    node.require_rank(0, 2)
    rank = node.integer("rank", 1)
    filters, memory = node.known_dim(1, 0), node.known_dim(2, 1)
    if filters % rank:
        raise ModelError(f"SVDF has {filters} filters, which are no multiple of its rank {rank}")
    x, over_time = node.input(0), node.input(2)
    batch = shape_of(x)[0]
    newest = reshape(matmul(x, node.input(1), transpose_b=True), shape=(batch, filters, 1))
    if node.has(_SVDF_STATE):
        state = reshape(node.input(_SVDF_STATE), shape=(batch, filters, memory))
    else:
        state = full(value=0.0, dtype=dtype_of(x), shape=(batch, filters, memory))
    features = concat(section(state, 2, 1, memory - 1), newest, axis=2) if memory > 1 else newest
    node.keep(_SVDF_STATE, reshape(features, shape=(batch, filters * memory)))
    products = reduce_sum(ew.mul(features, over_time), axes=(2,), keepdims=False)
    total = reduce_sum(reshape(products, shape=(batch, filters // rank, rank)), axes=(2,), keepdims=False)
    return node.activated(ew.add(total, node.input(3)) if node.has(3) else total)


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
        node.optional(_RNN_STATE),
        activations=(_NAMES[activation],),
    )


def _over_time(node: OperatorNode, direction: Direction, *states: int) -> Value:
    """The results of all steps; what operands `states` become is kept."""
    x, swap = node.input(0), (1, 0, 2)
    time_major = node.flag("time_major")
    results, *last = layer(x if time_major else transpose(x, perm=swap), direction)
    for k, value in zip(states, last, strict=True):
        node.keep(k, value)
    return results if time_major else transpose(results, perm=swap)


def _one_step(node: OperatorNode, direction: Direction, *states: int) -> Value:
    x = node.input(0)
    _, *last = layer(reshape(x, shape=(1, *shape_of(x))), direction)
    for k, value in zip(states, last, strict=True):
        node.keep(k, value)
    return last[0]
