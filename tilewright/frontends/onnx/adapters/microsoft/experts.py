"""Mixtures of experts: each token goes through the few networks that a router chooses for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.adapters.microsoft.activation import swiglu
from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, require_ranks
from tilewright.frontends.onnx.adapters.microsoft.weights import unpacked
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops.composites.experts import mixed_experts
from tilewright.ops.contract import matmul
from tilewright.ops.index import gather, gather_elements
from tilewright.ops.norm import softmax
from tilewright.ops.quant import spread
from tilewright.ops.reduce import as_dtype, reduce_sum, widened
from tilewright.ops.shape import UndecidedDimsError
from tilewright.ops.sort import topk
from tilewright.ops.source import full
from tilewright.ops.view import reshape, shape_of, split

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": act.relu, "gelu": lambda x: act.gelu(x, approximate="tanh"), "silu": act.silu, "identity": lambda x: x,
}  # fmt: skip


@microsoft("MoE")
def mixture_of_experts(node: Node) -> Value:
    """Experts f2(activation(f1 x) [* f3 x]), weighted by the `k` greatest probabilities of the router; others are not
    read. Gelu is what ONNX Runtime computes, with tanh."""
    require_ranks(node, input1=2, input2=3, input3=2, input4=3, input5=2, input6=3, input7=2)
    if node.flag("use_sparse_mixer", 0):
        raise UnsupportedError("MoE with use_sparse_mixer is not supported")
    first, second, third = (
        None if node.optional(k) is None else _Layer(widened(node.input(k)), node.optional(k + 1)) for k in (2, 4, 6)
    )
    assert first is not None and second is not None
    return _mixed(node, first, second, third)


@microsoft("QMoE")
def quantized_mixture_of_experts(node: Node) -> Value:
    """The same with weights of few bits, that have a scale for each column, or for each block of it. The chosen experts
    are weighted by the softmax of their scores alone, or by what operand 14 has for them."""
    require_ranks(node, input1=2, input2=3, input4=2, input5=3, input7=2, input8=3, input10=2, input14=2)
    if node.flag("use_sparse_mixer", 0) or node.attr("weights_prepacked", -1) == 1:
        raise UnsupportedError("QMoE with use_sparse_mixer or weights in the order of a device is not supported")
    if (kind := node.attr("quant_type", "int")) != "int":
        raise UnsupportedError(f"QMoE with weights of the type '{kind}' is not supported")
    first, second, third = (
        None if node.optional(k) is None else _Layer(_dequantized(node, k, 11 + n), node.optional(k + 2))
        for n, k in enumerate((2, 5, 8))
    )
    assert first is not None and second is not None
    return _mixed(node, first, second, third)


@dataclass(frozen=True)
class _Layer:
    """The transposed weights [experts, out, in] of a layer of each expert, and its bias [experts, out]."""

    weights: Value
    bias: Value | None


def _dequantized(node: Node, k: int, zeros: int) -> Value:
    """Operand `k`, whose scales follow it, in f32; the zero points are operand `zeros`."""
    bits, block = node.attr("expert_weight_bits", 4), node.attr("block_size", 0)
    if bits not in (2, 4, 8):
        raise UnsupportedError(f"QMoE with weights of {bits} bits is not supported")
    experts, columns, packed = (node.known_dim(k, axis) for axis in range(3))
    size = packed * (8 // bits)
    blocks = -(-size // block) if block > 0 else 1
    q, scale, zero = unpacked(node, node.input(k), bits), widened(node.input(k + 1)), node.optional(zeros)
    fits = s.eq(node.type(k + 1).size, experts * columns * blocks)
    require(node.translation, fits, f"QMoE: scales {node.type(k + 1)} for weights {node.type(k)} in {blocks} blocks")
    if zero is None:
        zero = full(value=1 << (bits - 1), dtype=dt.u8, shape=())
    else:
        zero = unpacked(node, zero, bits, blocks if node.rank(zeros) == 3 else columns)
    of_blocks = (experts, columns, blocks)
    scale, zero = (
        x if not shape_of(x) else spread(reshape(x, shape=of_blocks), 2, block if block > 0 else size, sym(size))
        for x in (scale, zero)
    )
    return quant.dequantize_linear(q, scale, zero, dtype=dt.f32)


def _mixed(node: Node, first: _Layer, second: _Layer, third: _Layer | None) -> Value:
    """The sum of what the experts that a token takes give for it, times their shares."""
    shape, experts = node.shape(0), node.known_dim(1, 1)
    chosen, shares = _routes(node, experts)

    def layers(rows: Value, at: Value) -> Value:
        gate = None if third is None else _applied(third, rows, at)
        return _applied(second, _activated(node, _applied(first, rows, at), gate), at)

    x = reshape(widened(node.input(0)), shape=(product(shape[:-1]), shape[-1]))
    return as_dtype(reshape(mixed_experts(x, chosen, shares, experts, layers), shape=shape), node.dtype(0))


def _applied(layer: _Layer, rows: Value, at: Value) -> Value:
    """Rows [tiles, height, in] times the weights of the expert of their tile, plus its bias: [tiles, height, out]."""
    result, bias = matmul(rows, _picked(layer.weights, at), transpose_b=True), layer.bias
    if bias is None:
        return result
    tiles, _, size = shape_of(result)
    return ew.add(result, reshape(_picked(widened(bias), at), shape=(tiles, 1, size)))


def _picked(stack: Value, at: Value) -> Value:
    return gather(stack, at, axis=0, in_range=True)


def _activated(node: Node, x: Value, gate: Value | None) -> Value:
    name = node.one_of("activation_type", *_ACTIVATIONS, "swiglu", default="relu")
    fusion = node.attr("swiglu_fusion", 0)
    alpha, beta = node.attr("activation_alpha", 1.0), node.attr("activation_beta", 0.0)
    limit = node.attr("swiglu_limit", math.inf)
    if node.attr("swiglu_limit_after_activation", 0):
        raise UnsupportedError(f"{node.op} with swiglu_limit_after_activation is not supported")
    if name in _ACTIVATIONS:
        result = _ACTIVATIONS[name](x)
        return result if gate is None else ew.mul(result, gate)
    if fusion == 0 and gate is not None:
        return swiglu(x, gate, alpha, beta, limit)
    experts, tokens, size = shape_of(x)
    if not size.is_const:
        raise UndecidedDimsError(f"{size} elements can only be halved where their number is known", (size,))
    if gate is not None or fusion not in (1, 2) or size.value % 2:
        raise ModelError(f"{node.op}: swiglu_fusion {fusion} of {size} elements")
    half = size.value // 2
    apart = (experts, tokens, half, 2) if fusion == 1 else (experts, tokens, 2, half)
    left, right = split(reshape(x, shape=apart), sizes=(1, 1), axis=3 if fusion == 1 else 2)
    one, other = (reshape(v, shape=(experts, tokens, half)) for v in (left, right))
    return swiglu(one, other, alpha, beta, limit)


def _routes(node: Node, experts: int) -> tuple[Value, Value]:
    """The experts that each token takes, and their weights: i64 and f32 [tokens, k]."""
    count, is_quantised = node.attr("k", 1), node.op == "QMoE"
    if not 1 <= count <= experts:
        raise ModelError(f"{node.op}: {count} of {experts} experts")
    values, places = topk(softmax(widened(node.input(1)), axis=1), k=count, axis=1)
    given = node.optional(14) if is_quantised else None
    if given is not None:
        values = gather_elements(widened(given), places, axis=1)
    if node.flag("normalize_routing_weights", 0) or (is_quantised and given is None):
        values = ew.div(values, reduce_sum(values, axes=(1,), keepdims=True))
    return places, values
