"""Mixtures of experts: each token goes through the few networks that a router chooses for it."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.frontends.onnx.adapters.microsoft.activation import swiglu
from tilewright.frontends.onnx.adapters.microsoft.domain import known_dim, microsoft, require_ranks
from tilewright.frontends.onnx.node import Node
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.types import product
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops.contract import matmul
from tilewright.ops.index import scatter_elements
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import as_dtype, reduce_sum, widened
from tilewright.ops.sort import topk
from tilewright.ops.source import full
from tilewright.ops.view import reshape, shape_of, split, transpose

_ACTIVATIONS: dict[str, Callable[[Value], Value]] = {
    "relu": act.relu, "gelu": lambda x: act.gelu(x, approximate="tanh"), "silu": act.silu, "identity": lambda x: x,
}  # fmt: skip


@microsoft("MoE")
def mixture_of_experts(node: Node) -> Value:
    """Experts f2(activation(f1 x) [* f3 x]), weighted by the `k` greatest probabilities of the router.

    All experts are computed for all tokens: right for any choice, and as fast as a network of all experts. Gelu is what
    ONNX Runtime computes, with tanh.
    """
    require_ranks(node, input1=2, input2=3, input3=2, input4=3, input5=2, input6=3, input7=2)
    if node.flag("use_sparse_mixer", 0):
        raise UnsupportedError("MoE with use_sparse_mixer is not supported")
    shape, experts = node.shape(0), known_dim(node, 1, 1)
    tokens = product(shape[:-1])
    x = reshape(widened(node.input(0)), shape=(1, tokens, shape[-1]))
    inner = _layer(node, x, 2)
    hidden = _activated(node, inner, _layer(node, x, 6) if node.optional(6) is not None else None)
    found = _layer(node, hidden, 4)
    shares = transpose(_shares(node, experts), perm=(1, 0))
    total = reduce_sum(ew.mul(found, reshape(shares, shape=(experts, tokens, 1))), axes=(0,), keepdims=False)
    return as_dtype(reshape(total, shape=shape), node.dtype(0))


def _layer(node: Node, x: Value, k: int) -> Value:
    """x times the transposed weights of operand `k` of each expert, plus the bias behind it: [experts, tokens, out]."""
    result, bias = matmul(x, widened(node.input(k)), transpose_b=True), node.optional(k + 1)
    if bias is None:
        return result
    experts, size = shape_of(bias)
    return ew.add(result, reshape(widened(bias), shape=(experts, 1, size)))


def _activated(node: Node, x: Value, gate: Value | None) -> Value:
    name = node.one_of("activation_type", *_ACTIVATIONS, "swiglu", default="relu")
    fusion = node.attr("swiglu_fusion", 0)
    alpha, beta = node.attr("activation_alpha", 1.0), node.attr("activation_beta", 0.0)
    limit = node.attr("swiglu_limit", math.inf)
    if node.attr("swiglu_limit_after_activation", 0):
        raise UnsupportedError("MoE with swiglu_limit_after_activation is not supported")
    if name in _ACTIVATIONS:
        result = _ACTIVATIONS[name](x)
        return result if gate is None else ew.mul(result, gate)
    if fusion == 0 and gate is not None:
        return swiglu(x, gate, alpha, beta, limit)
    experts, tokens, size = shape_of(x)
    if gate is not None or fusion not in (1, 2) or not size.is_const or size.value % 2:
        raise ModelError(f"MoE: swiglu_fusion {fusion} of {size} elements")
    half = size.value // 2
    apart = (experts, tokens, half, 2) if fusion == 1 else (experts, tokens, 2, half)
    left, right = split(reshape(x, shape=apart), sizes=(1, 1), axis=3 if fusion == 1 else 2)
    one, other = (reshape(v, shape=(experts, tokens, half)) for v in (left, right))
    return swiglu(one, other, alpha, beta, limit)


def _shares(node: Node, experts: int) -> Value:
    """The weight of each expert for each token, [tokens, experts]; 0 for those that are not chosen."""
    count = node.attr("k", 1)
    if not 1 <= count <= experts:
        raise ModelError(f"MoE: {count} of {experts} experts")
    values, places = topk(softmax(widened(node.input(1)), axis=1), k=count, axis=1)
    if node.flag("normalize_routing_weights", 0):
        values = ew.div(values, reduce_sum(values, axes=(1,), keepdims=True))
    zeros = full(value=0.0, dtype=values.type.dtype, shape=node.shape(1))
    return scatter_elements(zeros, places, values, axis=1)
