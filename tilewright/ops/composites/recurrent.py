"""RNN, GRU and LSTM layers: from the matrices and vectors that formats have to our recurrent operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import recurrent
from tilewright.ops.define import constant
from tilewright.ops.reduce import dtype_of, reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import reshape, shape_of, slice_

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ACTIVATIONS = {"RNN": ("tanh",), "GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh")}
"""Activations of a layer that names none."""


@dataclass(frozen=True)
class Direction:
    """One direction of a layer of `kind` with `hidden` units; the gates are in the order i o f c (LSTM) or z r h (GRU).

    input_product multiplies x [rows, width] with the input weights to [rows, gates * hidden]; weights [gates * hidden,
    hidden] (of LSTM, integers where a `scale` [gates * hidden] is given: states are quantised then), biases [gates *
    hidden] each or None, state and cell [batch, hidden] or None for zeros, lengths [batch] of i64 where entries end
    early, peepholes [3 * hidden] or None. `activations` are in lower case; cells of LSTM are limited to -clip..clip
    where `clip` is not 0, and what activations are applied to by `limit`.
    """

    kind: str
    hidden: int
    input_product: Callable[[Value], Value]
    weights: Value
    input_bias: Value | None = None
    bias: Value | None = None
    state: Value | None = None
    cell: Value | None = None
    peepholes: Value | None = None
    lengths: Value | None = None
    activations: Sequence[str] = ()
    reverse: bool = False
    linear_before_reset: bool = False
    couple: bool = False
    clip: float = 0.0
    limit: float = 0.0
    scale: Value | None = None


def layer(x: Value, d: Direction) -> tuple[Value, ...]:
    """The results of a direction for x [steps, batch, width]: states over time, the last state, of LSTM also the last
    cell."""
    for name in d.activations:
        if name not in recurrent.ACTIVATIONS:
            raise UnsupportedError(f"{d.kind} with activation '{name}' is not supported")
    count, hidden, dtype = GATES[d.kind], d.hidden, dtype_of(x)
    steps, batch, width = shape_of(x)
    product = d.input_product(reshape(x, shape=(steps * batch, width)))
    gates = reshape(product, shape=(steps, batch, count * hidden))
    bias = full(value=0.0, dtype=dtype, shape=(count * hidden,))
    if d.input_bias is not None and d.bias is not None:
        bias = d.bias
        gates = ew.add(gates, _shared_bias(d.kind, d.input_bias, bias, hidden, dtype))
    r = reshape(d.weights, shape=(count, hidden, hidden))
    h, *cells = (
        full(value=0.0, dtype=dtype, shape=(batch, hidden)) if given is None else given
        for given in ((d.state, d.cell) if d.kind == "LSTM" else (d.state,))
    )
    lengths = () if d.lengths is None else (d.lengths,)
    attrs = {"activations": tuple(d.activations or ACTIVATIONS[d.kind]), "reverse": d.reverse, "limit": d.limit}
    if d.kind == "RNN":
        return recurrent.rnn(gates, r, h, *lengths, **attrs)
    if d.kind == "GRU":
        last = slice_(bias, starts=(sym(2 * hidden),), sizes=(sym(hidden),), steps=(1,))
        return recurrent.gru(gates, r, last, h, *lengths, linear_before_reset=d.linear_before_reset, **attrs)
    peepholes = full(value=0.0, dtype=dtype, shape=(3 * hidden,)) if d.peepholes is None else d.peepholes
    if d.scale is None:
        return recurrent.lstm(gates, r, peepholes, h, *cells, *lengths, couple=d.couple, clip=d.clip, **attrs)
    totals = reduce_sum(ew.cast(d.weights, dtype=dt.i32), axes=(1,), keepdims=False)
    others = (d.scale, totals, peepholes, h, *cells, *lengths)
    return recurrent.lstm_quantized(gates, r, *others, couple=d.couple, clip=d.clip, **attrs)


def _shared_bias(kind: str, input_bias: Value, bias: Value, hidden: int, dtype: DType) -> Value:
    """What is added to the gates once for all steps; the recurrent bias of GRU's h stays behind its reset."""
    if kind != "GRU":
        return ew.add(input_bias, bias)
    mask = constant(np.repeat(np.array([1, 1, 0], dtype.storage), hidden), "mask")
    return ew.add(input_bias, ew.mul(bias, mask))
