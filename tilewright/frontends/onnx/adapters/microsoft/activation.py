"""Activations with a bias before them, and activations that other operators end with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.frontends.onnx.adapters.microsoft.domain import known_dim, microsoft
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
    if len(given) != count:
        raise ModelError(f"{node.op}: the activation {name} takes {count} numbers, not {len(given)}")
    return function(x, *given)


@microsoft("FastGelu")
def fast_gelu(node: Node) -> Value:
    return act.gelu(_biased(node), approximate="tanh")


@microsoft("BiasGelu")
def bias_gelu(node: Node) -> Value:
    return act.gelu(_biased(node))


def _biased(node: Node) -> Value:
    bias = node.optional(1)
    return node.input(0) if bias is None else ew.add(node.input(0), bias)


@microsoft("QuickGelu")
def quick_gelu(node: Node) -> Value:
    return act.swish(node.input(0), alpha=node.attr("alpha", 1.702))


@microsoft("BiasAdd")
def bias_add(node: Node) -> Value:
    x, bias, skip = node.operands
    return ew.add(ew.add(x, bias), skip)


@microsoft("BiasSplitGelu")
def bias_split_gelu(node: Node) -> Value:
    """The first half of the channels times the Gelu of the second."""
    half, odd = divmod(known_dim(node, 0, -1), 2)
    if odd:
        raise ModelError(f"BiasSplitGelu of {node.type(0)}: the channels cannot be halved")
    x = ew.add(widened(node.input(0)), widened(node.input(1)))
    left, right = split(x, sizes=(half, half), axis=node.rank(0) - 1)
    return as_dtype(ew.mul(left, act.gelu(right)), dtype_of(node.input(0)))


@microsoft("BiasSoftmax")
def bias_softmax(node: Node) -> Value:
    """softmax(data + bias) over all axes from `axis` on; which axes the bias lacks is seen from its shape."""
    node.attr("is_inner_broadcast", 0)
    axis = node.checked_axis(node.attr("axis", 1))
    data, bias = node.operands
    if node.rank(1) not in (0, node.rank(0)):
        raise UnsupportedError("BiasSoftmax with a bias of other axes than the data is not supported")
    scores = ew.add(data, bias)
    if axis == node.rank(0) - 1:
        return softmax(scores, axis=axis)
    return reshape(softmax(flatten(scores, axis=axis), axis=1), shape=shape_of(data))
