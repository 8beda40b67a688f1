"""Recurrent layers with quantised weights."""

from __future__ import annotations

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, require_ranks
from tilewright.frontends.onnx.adapters.recurrent import (
    activations_of,
    directions_of,
    lengths_of,
    limit_of,
    stacked_layers,
)
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.unroll import element
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops.composites.recurrent import Direction
from tilewright.ops.view import expand, slice_, transpose


@microsoft("DynamicQuantizeLSTM")
def dynamic_quantize_lstm(node: Node) -> tuple[Value, ...]:
    """An LSTM whose inputs are quantised when it is called; W and R are integers [directions, width, 4 * hidden].

    So is the state, in every step: each entry of the batch by its own range, so that results depend neither on who else
    is in the batch nor on threads. (ONNX Runtime quantises together the entries that one of its threads takes.)
    """
    require_ranks(node, input0=3, input1=3, input2=3, input3=2, input4=1, input5=3, input6=3, input7=2)
    backward, hidden = directions_of(node), node.known_dim(2, 1)
    for k, rows in ((1, node.shape(0)[2]), (2, sym(hidden))):
        wanted = (sym(len(backward)), rows, sym(4 * hidden))
        node.demand_shape(k, wanted, f"input {k} is {node.type(k)} for a hidden size of {hidden}")
    if node.attr("hidden_size", hidden) != hidden:
        raise ModelError(f"{node.op}: hidden_size {node.attr('hidden_size')} contradicts R, {node.type(2)}")
    return stacked_layers(
        node.input(0), [_direction(node, k, back, hidden) for k, back in enumerate(backward)]
    )


def _direction(node: Node, k: int, reverse: bool, hidden: int) -> Direction:
    def part(operand: int) -> Value | None:
        value = node.optional(operand)
        return None if value is None else element(value, 0, k)

    w, w_scale, w_zero, r, r_scale, r_zero = (element(node.input(n), 0, k) for n in (1, 8, 9, 2, 10, 11))

    def input_product(x: Value) -> Value:
        x, scale, zero = quant.dynamic_quantize_linear(x)
        sums = ew.cast(quant.matmul_integer(x, w, zero, w_zero), dtype=dt.f32)
        return ew.mul(sums, ew.mul(scale, w_scale))

    weights = ew.sub(ew.cast(r, dtype=dt.i16), ew.cast(r_zero, dtype=dt.i16))
    biases = part(3)
    input_bias, bias = (
        None if biases is None else slice_(biases, starts=(n,), sizes=(4 * hidden,), steps=(1,))
        for n in (0, 4 * hidden)
    )
    return Direction(
        "LSTM",
        hidden,
        input_product,
        transpose(weights, perm=(1, 0)),
        input_bias,
        bias,
        state=part(5),
        cell=part(6),
        peepholes=part(7),
        lengths=lengths_of(node),
        activations=activations_of(node, "LSTM", k),
        reverse=reverse,
        couple=node.flag("input_forget", 0),
        limit=limit_of(node),
        scale=expand(r_scale, shape=(sym(4 * hidden),)),
    )
