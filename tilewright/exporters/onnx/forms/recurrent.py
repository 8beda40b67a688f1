"""Recurrent layers, and running totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.exporters.onnx.forms.registry import NoFormError, form, rewritten
from tilewright.ir import dtype as dt
from tilewright.ir.core import Block, Builder, Module, Op, Value
from tilewright.ir.scalar import identity
from tilewright.ir.types import TensorType
from tilewright.ops import elementwise as ew
from tilewright.ops.define import OPERATORS, constant
from tilewright.ops.scan import LOGADDEXP
from tilewright.ops.scan import running as running_operator
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, shape_of

if TYPE_CHECKING:
    from tilewright.exporters.onnx.writer import OnnxWriter


class _InputProduct(NamedTuple):
    """Gates of all steps as x [steps, batch, width] times weights [gates, width], plus a bias [gates] or None."""

    x: Value
    weights: Value
    bias: Value | None


def _input_product(gates: Value) -> _InputProduct:
    """What gates are computed from; where another operator gives them, they themselves times 1."""
    bias: Value | None = None
    total = gates.op
    if total is not None and total.name == "add" and total.operands[1].tensor.rank == 1:
        gates_before, bias = total.operands
    else:
        gates_before = gates
    product = _before_reshape(gates_before)
    if product is not None and product.op is not None and product.op.name == "matmul":
        rows, weights = product.op.operands
        x = _before_reshape(rows)
        ways = product.op.attrs["transpose_a"], product.op.attrs["transpose_b"]
        is_plain = ways == (False, True) and weights.tensor.rank == 2
        if x is not None and is_plain and shape_of(x)[:2] == shape_of(gates)[:2]:
            return _InputProduct(x, weights, bias)
    count = shape_of(gates)[2]
    if not count.is_const:
        raise NoFormError(f"the number of gates, {count}, is not known")
    return _InputProduct(gates, constant(np.eye(count.value, dtype=gates.tensor.dtype.storage), "one"), None)


def _before_reshape(v: Value) -> Value | None:
    source = v.op.operands[0] if v.op is not None and v.op.name == "reshape" else None
    return source if source is not None and source.tensor.rank in (2, 3) else None


@form("lstm", "gru", "rnn")
def recurrent(w: OnnxWriter, op: Op) -> tuple[str, ...] | None:
    """LSTM, GRU and RNN of one direction; the product with the input weights, which stands before ours, is theirs."""
    if op.attrs.get("clip", 0.0):
        raise NoFormError("ONNX has no recurrent layers of which cells are limited")
    if not w.takes(op.name.upper(), *op.operands[:2]):
        return None
    gates, r, *others = op.operands
    count, hidden = r.tensor.shape[0].value, r.tensor.shape[2]
    if not hidden.is_const:
        raise NoFormError(f"the hidden size, {hidden}, is not known")
    peepholes = others.pop(0) if op.name == "lstm" else None
    last_bias = others.pop(0) if op.name == "gru" else None
    states = [others.pop(0) for _ in range(2 if op.name == "lstm" else 1)]

    def operands() -> Sequence[Value]:
        found = _input_product(gates)
        size = count * hidden.value
        zeros = full(value=0.0, dtype=gates.tensor.dtype, shape=(size,))
        own = zeros if last_bias is None else concat(_zeros(last_bias, count - 1), last_bias, axis=0)
        bias = concat(found.bias if found.bias is not None else zeros, own, axis=0)
        given = [
            found.x, reshape(found.weights, shape=(1, *shape_of(found.weights))),
            reshape(r, shape=(1, size, hidden)), reshape(bias, shape=(1, 2 * size)),
        ]  # fmt: skip
        given += [reshape(state, shape=(1, *shape_of(state))) for state in states]
        given += [] if peepholes is None else [reshape(peepholes, shape=(1, *shape_of(peepholes)))]
        return given + [ew.cast(lengths, dtype=dt.i32) for lengths in others]

    names = list(w.composed(operands))
    x, weights, recurrent_weights, bias = names[:4]
    rest = names[4:]
    lengths = rest.pop() if others else ""
    inputs = [x, weights, recurrent_weights, bias, lengths, *rest]
    y, *finals = w.several(
        op.name.upper(), len(op.results), *inputs, hidden_size=hidden.value,
        direction="reverse" if op.attrs["reverse"] else None,
        activations=[name.capitalize() for name in op.attrs["activations"]], clip=op.attrs["limit"] or None,
        linear_before_reset=1 if op.attrs.get("linear_before_reset") else None,
        input_forget=1 if op.attrs.get("couple") else None,
    )  # fmt: skip
    return (w.node("Squeeze", y, w.ints([1])), *[w.node("Squeeze", state, w.ints([0])) for state in finals])


@rewritten("lstm", "gru", "rnn")
def recurrent_in_wide_numbers(op: Op) -> Sequence[Value] | None:
    """Layers of short floats, of which states are kept in f32."""
    dtype = op.operands[0].tensor.dtype
    if dtype.accumulator == dtype:
        return None
    wide = [ew.cast(v, dtype=dt.f32) if v.tensor.dtype.is_float else v for v in op.operands]
    found = OPERATORS[op.name](*wide, **op.attrs)
    return [ew.cast(v, dtype=result.tensor.dtype) for v, result in zip(found, op.results, strict=True)]


def _zeros(like: Value, times: int) -> Value:
    (size,) = shape_of(like)
    return full(value=0.0, dtype=like.tensor.dtype, shape=(size * times,))


@form("running")
def running(w: OnnxWriter, op: Op) -> str | None:
    """Along the middle one of three axes: CumSum, or Scan for what is no sum."""
    (x,), combine = op.operands, op.attrs["combine"]
    flags = {name: 1 if op.attrs[name] else None for name in ("exclusive", "reverse")}
    if x.tensor.dtype.accumulator != x.tensor.dtype:
        return None
    if combine == "add":
        return w.node("CumSum", w.name(x), w.number(1, dt.i64), **flags) if w.takes("CumSum", x) else None
    before, size, after = x.tensor.shape
    if before == 0 or size == 0 or after == 0:
        return w.name(x)
    state = TensorType(x.tensor.dtype, (before, after))
    block = Block([state, state], ["total", "next"])
    with Builder(block, Module()) as builder:
        total = _combined(combine, *block.args)
        builder.emit("yield", [total, block.args[0] if op.attrs["exclusive"] else total])
    body = w.block(block, f"{w.label}/body")
    for inner in reversed(block.ops):
        inner.drop()
    neutral = -math.inf if combine == LOGADDEXP else identity(combine, x.tensor.dtype)
    start = w.node("Expand", w.number(neutral, x.tensor.dtype), w.dims((before, after)))
    ways = [1] if op.attrs["reverse"] else None
    _, rows = w.several(
        "Scan", 2, start, w.name(x), body=body, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[1],
        scan_input_directions=ways, scan_output_directions=ways,
    )  # fmt: skip
    return rows


def _combined(combine: str, a: Value, b: Value) -> Value:
    if combine != LOGADDEXP:
        found: Value = OPERATORS[combine](a, b)
        return found
    greatest = ew.max_(a, b)
    rest = ew.log1p(ew.exp(ew.neg(ew.abs_(ew.sub(a, b)))))
    return ew.select(ew.eq(a, b), ew.add(a, math.log(2)), ew.add(greatest, rest))


@rewritten("running")
def running_in_wide_numbers(op: Op) -> Value | None:
    (x,) = op.operands
    dtype = x.tensor.dtype
    if dtype.accumulator == dtype:
        return None
    found = running_operator(ew.cast(x, dtype=dtype.accumulator), **op.attrs)
    return ew.cast(found, dtype=dtype)


