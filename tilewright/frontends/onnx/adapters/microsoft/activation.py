"""Activations with a bias before them, and activations that other operators end with."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, microsoft_binds
from tilewright.frontends.onnx.node import Node
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import as_dtype, dtype_of, widened
from tilewright.ops.view import flatten, reshape, shape_of, split

_LEADING: dict[str, tuple[Callable[..., Value], int]] = {
    "Relu": (act.relu, 0), "Sigmoid": (ew.sigmoid, 0), "Tanh": (ew.tanh, 0), "Softplus": (act.softplus, 0),
    "Softsign": (act.softsign, 0), "HardSwish": (act.hard_swish, 0), "Identity": (lambda x: x, 0),
    "LeakyRelu": (lambda x, alpha: act.leaky_relu(x, alpha=alpha), 1),
    "Elu": (lambda x, alpha: act.elu(x, alpha=alpha), 1),
    "ThresholdedRelu": (lambda x, alpha: act.thresholded_relu(x, alpha=alpha), 1),
    "HardSigmoid": (lambda x, alpha, beta: act.hard_sigmoid(x, alpha=alpha, beta=beta), 2),
    "Clip": (lambda x, low, high: act.clip(x, low, high), 2),
}  # fmt: skip
"""Activations by name, and how many numbers each takes."""


def activated(node: Node, x: Value, parameters: Callable[[int], Sequence[float]]) -> Value:
    """x through the attribute `activation`, where it is given; `parameters` gives so many numbers of it."""
    name = node.attr("activation", "")
    if not name:
        return x
    if name not in _LEADING:
        raise UnsupportedError(f"{node.op} with activation '{name}' is not supported")
    function, count = _LEADING[name]
    given = parameters(count)
    if count and len(given) != count:
        raise ModelError(f"{node.op}: the activation {name} takes {count} numbers, not {len(given)}")
    return function(x, *given[:count])


@microsoft("FastGelu")
def fast_gelu(node: Node) -> Value:
    return act.gelu(_biased(node), approximate="tanh")


@microsoft("BiasGelu")
def bias_gelu(node: Node) -> Value:
    return act.gelu(_biased(node))


def _biased(node: Node) -> Value:
    if (bias := node.optional(1)) is None:
        return node.input(0)
    node.require_to_fit(1, node.shape(0), f"{node.op} cannot add {node.type(1)} to {node.type(0)}")
    return ew.add(node.input(0), bias)


microsoft_binds({"QuickGelu": lambda x, *, alpha=1.702: act.swish(x, alpha=alpha)})


@microsoft("ScaledSiLU")
def scaled_silu(node: Node) -> Value:
    scale = node.optional(1)
    factor: Value | float = node.attr("alpha", 1.0) if scale is None else reshape(widened(scale), shape=())
    return act.silu(as_dtype(ew.mul(widened(node.input(0)), factor), node.dtype(0)))


@microsoft("SwiGLU")
def gated_swish(node: Node) -> Value:
    """G sigmoid(alpha G) (L + beta), of which G is at most `limit` and |L|, too; both may be halves of one operand."""
    gate, up = widened(node.input(0)), node.optional(1)
    if up is None:
        half, odd = divmod(node.known_dim(0, -1), 2)
        if odd:
            raise ModelError(f"SwiGLU of {node.type(0)}: the last axis cannot be halved")
        gate, up = split(gate, sizes=(half, half), axis=node.rank(0) - 1)
    alpha, beta, limit = node.attr("activation_alpha", 1.0), node.attr("activation_beta", 0.0), node.attr("limit", 0.0)
    result = swiglu(gate, widened(up), alpha, beta, limit if limit > 0 else math.inf)
    node.attr("round_activation", 0)
    return as_dtype(result, node.dtype(0))


def swiglu(gate: Value, up: Value, alpha: float, beta: float, limit: float) -> Value:
    """The same of operands of f32."""
    if math.isfinite(limit):
        gate, up = ew.min_(gate, limit), act.clip(up, -limit, limit)
    return ew.mul(act.swish(gate, alpha=alpha), ew.add(up, beta) if beta else up)


@microsoft("BiasDropout", "BitmaskBiasDropout")
def bias_dropout(node: Node) -> tuple[Value | None, ...]:
    """dropout(data + bias) + residual; a mask of bits is not made."""
    total, residual = ew.add(node.input(0), node.input(1)), node.optional(2)
    result, mask = _dropped(node, total, 3)
    return (result if residual is None else ew.add(result, residual), mask)


@microsoft("BitmaskDropout")
def bitmask_dropout(node: Node) -> tuple[Value | None, ...]:
    return _dropped(node, node.input(0), 1)[:1]


def _dropped(node: Node, x: Value, k: int) -> tuple[Value, Value | None]:
    """Dropout with the ratio of operand `k` and what is behind it."""
    seed = {"seed": node.attr("seed")} if node.has("seed") else {}
    result, mask = node.standard("Dropout", x, node.optional(k), node.optional(k + 1), outputs=2, **seed)
    assert result is not None
    return result, None if node.op.startswith("Bitmask") else mask


@microsoft("BiasAdd")
def bias_add(node: Node) -> Value:
    x, bias, skip = node.operands
    for k in (1, 2):
        node.require_to_fit(k, node.shape(0), f"{node.op} cannot add {node.type(k)} to {node.type(0)}")
    return ew.add(ew.add(x, bias), skip)


@microsoft("BiasSplitGelu")
def bias_split_gelu(node: Node) -> Value:
    """The first half of the channels times the Gelu of the second."""
    half, odd = divmod(node.known_dim(0, -1), 2)
    if odd:
        raise ModelError(f"BiasSplitGelu of {node.type(0)}: the channels cannot be halved")
    x = ew.add(widened(node.input(0)), widened(node.input(1)))
    left, right = split(x, sizes=(half, half), axis=node.rank(0) - 1)
    return as_dtype(ew.mul(left, act.gelu(right)), dtype_of(node.input(0)))


@microsoft("BiasSoftmax")
def bias_softmax(node: Node) -> Value:
    """softmax(data + bias) over all axes from `axis` on; which axes the bias lacks is seen from its shape."""
    node.attr("is_inner_broadcast", 0)
    axis = node.axis(node.attr("axis", 1))
    data, bias = node.operands
    if node.rank(1) not in (0, node.rank(0)):
        raise UnsupportedError("BiasSoftmax with a bias of other axes than the data is not supported")
    scores = ew.add(data, bias)
    if axis == node.rank(0) - 1:
        return softmax(scores, axis=axis)
    return reshape(softmax(flatten(scores, axis=axis), axis=1), shape=shape_of(data))
