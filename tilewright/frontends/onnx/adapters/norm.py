"""Normalisations and softmax."""

from __future__ import annotations

from tilewright.frontends.onnx.adapters.sort import flattened
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import elementwise as ew
from tilewright.ops import norm
from tilewright.ops.define import Operator
from tilewright.ops.reduce import reduce_mean
from tilewright.ops.source import full
from tilewright.ops.view import expand, reshape

_SOFTMAX: dict[str, Operator] = {"Softmax": norm.softmax, "LogSoftmax": norm.log_softmax}


@adapter("Softmax", "LogSoftmax")
def softmax_flat(node: Node) -> Value:
    """Before opset 13: over all axes from `axis` on."""
    axis = node.axis(default=1)
    operator = _SOFTMAX[node.op]
    if axis == node.rank(0) - 1:
        return operator(node.input(0), axis=axis)
    return reshape(operator(flattened(node, axis), axis=1), shape=node.shape(0))


@adapter("Softmax", "LogSoftmax", since=13)
def softmax(node: Node) -> Value:
    return _SOFTMAX[node.op](node.input(0), axis=node.axis(default=-1))


@adapter("BatchNormalization", since=7)
def batch_normalization(node: Node) -> tuple[Value, ...]:
    if node.rank(0) < 2:
        raise ModelError(f"BatchNormalization takes a tensor of two or more axes, not {node.type(0)}")
    channels = node.shape(0)[1]
    for k in range(1, 5):
        own = node.shape(k)
        if len(own) != 1 or (own[0].is_const and channels.is_const and own[0] != channels):
            raise ModelError(f"BatchNormalization: input {k} is {node.type(k)} for {channels} channels")
    x, scale, bias, mean, variance = (node.input(k) for k in range(5))
    running: tuple[Value, ...] = ()
    if node.attr("training_mode", 0):
        mean, variance, running = _batch_statistics(node, mean, variance)
    return (norm.batch_norm(x, scale, bias, mean, variance, epsilon=node.attr("epsilon", 1e-5)), *running)


def _batch_statistics(node: Node, mean: Value, variance: Value) -> tuple[Value, Value, tuple[Value, ...]]:
    """Mean and variance of this batch, and the running ones that they change."""
    axes = (0, *range(2, node.rank(0)))
    momentum, x = node.attr("momentum", 0.9), node.input(0)
    centred = ew.sub(x, reduce_mean(x, axes=axes, keepdims=True))
    now = reduce_mean(x, axes=axes, keepdims=False)
    spread = reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=False)
    running = [
        ew.add(ew.mul(old, momentum), ew.mul(new, 1.0 - momentum))
        for old, new in ((mean, now), (variance, spread))
    ]
    return now, spread, tuple(running)


def _as(x: Value, dtype: dt.DType) -> Value:
    return x if x.type.dtype == dtype else ew.cast(x, dtype=dtype)  # type: ignore[attr-defined]


@adapter("GroupNormalization", since=18)
def group_normalization_18(node: Node) -> Value:
    """Opset 18: scale and bias have one entry for each group."""
    groups, channels = _groups(node)
    count = s.floordiv(channels, groups)
    wide = [
        reshape(
            expand(reshape(node.input(k), shape=(sym(groups), sym(1))), shape=(sym(groups), count)),
            shape=(channels,),
        )
        for k in (1, 2)
    ]
    return norm.group_norm(node.input(0), *wide, groups=groups, epsilon=node.attr("epsilon", 1e-5))


@adapter("GroupNormalization", since=21)
def group_normalization(node: Node) -> Value:
    groups, _ = _groups(node)
    epsilon = node.attr("epsilon", 1e-5)
    return norm.group_norm(node.input(0), node.input(1), node.input(2), groups=groups, epsilon=epsilon)


def _groups(node: Node) -> tuple[int, Sym]:
    """The number of groups, and of channels."""
    groups: int = node.attr("num_groups")
    channels = node.shape(0)[1] if node.rank(0) > 2 else sym(-1)
    if groups < 1 or (channels.is_const and channels.value % groups) or channels == -1:
        raise ModelError(f"GroupNormalization of {node.type(0)} with {groups} groups")
    return groups, channels


@adapter("LayerNormalization", since=17)
def layer_normalization(node: Node) -> tuple[Value, ...]:
    axis = node.axis(default=-1)
    epsilon = node.attr("epsilon", 1e-5)
    _check_affine(node, axis)
    none = full(value=0.0, dtype=node.dtype(1), shape=())
    bias = none if node.optional(2) is None else node.input(2)
    result = norm.layer_norm(node.input(0), node.input(1), bias, axis=axis, epsilon=epsilon)
    if not (node.wants(1) or node.wants(2)):
        return (result,)
    wide = _as(node.input(0), dt.f32)
    axes = tuple(range(axis, node.rank(0)))
    mean = reduce_mean(wide, axes=axes, keepdims=True)
    centred = ew.sub(wide, mean)
    variance = reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=True)
    return (result, mean, ew.div(1.0, ew.sqrt(ew.add(variance, epsilon))))


def _check_affine(node: Node, axis: int) -> None:
    """ModelError when scale or bias cannot broadcast to the normalised axes."""
    for k in range(1, len(node.inputs)):
        if node.optional(k) is None:
            continue
        own, whole = node.shape(k), node.shape(0)
        pairs = zip(reversed(own), reversed(whole), strict=False)
        if len(own) > len(whole) or any(a.is_const and b.is_const and a != b and a != 1 for a, b in pairs):
            raise ModelError(f"{node.op}: input {k} is {node.type(k)} for {node.type(0)} from axis {axis} on")


@adapter("RMSNormalization", since=23)
def rms_normalization(node: Node) -> Value:
    axis = node.axis(default=-1)
    _check_affine(node, axis)
    return norm.rms_norm(node.input(0), node.input(1), axis=axis, epsilon=node.attr("epsilon", 1e-5))
