"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Sequence

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
from tilewright.ops.reduce import reduce_l1, reduce_l2, reduce_mean
from tilewright.ops.source import full
from tilewright.ops.view import pad, reshape, shape_of, slice_

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


def _per_channel(node: Node, k: int) -> Value:
    """A vector over channels (axis 1) laid out to broadcast against operand 0."""
    channels = node.shape(0)[1] if node.rank(0) > 1 else sym(1)
    own = node.shape(k)
    if len(own) != 1 or (own[0].is_const and channels.is_const and own[0] != channels):
        raise ModelError(f"{node.op}: input {k} is {node.type(k)} for {channels} channels")
    return reshape(node.input(k), shape=(own[0], *[sym(1)] * (node.rank(0) - 2)))


@adapter("BatchNormalization", since=7)
def batch_normalization(node: Node) -> tuple[Value, ...]:
    """(x - mean) / sqrt(var + epsilon) * scale + bias, as one factor and one term for each channel."""
    if node.rank(0) < 2:
        raise ModelError(f"BatchNormalization takes a tensor of two or more axes, not {node.type(0)}")
    epsilon, dtype = node.attr("epsilon", 1e-5), node.dtype(0)
    scale, bias, mean, variance = (_per_channel(node, k) for k in range(1, 5))
    running: tuple[Value, ...] = ()
    if node.attr("training_mode", 0):
        mean, variance, running = _batch_statistics(node, mean, variance)
    wide = mean.type.dtype  # type: ignore[attr-defined]
    factor = ew.div(_as(scale, wide), ew.sqrt(ew.add(variance, epsilon)))
    term = ew.sub(_as(bias, wide), ew.mul(mean, factor))
    result = ew.add(ew.mul(_as(node.input(0), wide), factor), term)
    return (_as(result, dtype), *running)


def _batch_statistics(node: Node, mean: Value, variance: Value) -> tuple[Value, Value, tuple[Value, ...]]:
    """Mean and variance of this batch, and the running ones that they change."""
    axes = (0, *range(2, node.rank(0)))
    momentum, channels = node.attr("momentum", 0.9), node.shape(0)[1]
    x = node.input(0)
    now = reduce_mean(x, axes=axes, keepdims=True)
    centred = ew.sub(x, now)
    spread = reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=True)
    per_channel = shape_of(mean)
    now, spread = reshape(now, shape=per_channel), reshape(spread, shape=per_channel)
    running = []
    for old, new in ((mean, now), (variance, spread)):
        mixed = ew.add(ew.mul(old, momentum), ew.mul(new, 1.0 - momentum))
        running.append(reshape(mixed, shape=(channels,)))
    return now, spread, tuple(running)


def _as(x: Value, dtype: dt.DType) -> Value:
    return x if x.type.dtype == dtype else ew.cast(x, dtype=dtype)  # type: ignore[attr-defined]


@adapter("InstanceNormalization", since=6)
def instance_normalization(node: Node) -> Value:
    x, shape = node.input(0), node.shape(0)
    axes = tuple(range(2, len(shape)))
    if not axes:
        raise ModelError(f"InstanceNormalization takes a tensor of three or more axes, not {node.type(0)}")
    normal = _standardised(x, axes, node.attr("epsilon", 1e-5))
    return ew.add(ew.mul(normal, _per_channel(node, 1)), _per_channel(node, 2))


def _standardised(x: Value, axes: Sequence[int], epsilon: float) -> Value:
    centred = ew.sub(x, reduce_mean(x, axes=axes, keepdims=True))
    variance = reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=True)
    return ew.div(centred, ew.sqrt(ew.add(variance, epsilon)))


@adapter("GroupNormalization", since=18)
def group_normalization_18(node: Node) -> Value:
    """Opset 18: scale and bias have one entry for each group."""
    groups, shape = _groups(node), node.shape(0)
    normal = _group_standardised(node, groups)
    apart = (shape[0], sym(groups), s.floordiv(shape[1], groups), *shape[2:])
    wide = reshape(normal, shape=apart)
    scale, bias = (reshape(node.input(k), shape=(sym(groups), *[sym(1)] * (len(shape) - 1))) for k in (1, 2))
    return reshape(ew.add(ew.mul(wide, scale), bias), shape=shape)


@adapter("GroupNormalization", since=21)
def group_normalization(node: Node) -> Value:
    normal = _group_standardised(node, _groups(node))
    return ew.add(ew.mul(normal, _per_channel(node, 1)), _per_channel(node, 2))


def _groups(node: Node) -> int:
    groups: int = node.attr("num_groups")
    channels = node.shape(0)[1] if node.rank(0) > 2 else sym(-1)
    if groups < 1 or (channels.is_const and channels.value % groups) or channels == -1:
        raise ModelError(f"GroupNormalization of {node.type(0)} with {groups} groups")
    return groups


def _group_standardised(node: Node, groups: int) -> Value:
    shape, dtype = node.shape(0), node.dtype(0)
    apart = reshape(node.input(0), shape=(shape[0], sym(groups), s.floordiv(shape[1], groups), *shape[2:]))
    wide = _as(apart, dtype.accumulator)
    normal = _standardised(wide, tuple(range(2, len(shape) + 1)), node.attr("epsilon", 1e-5))
    return reshape(_as(normal, dtype), shape=shape)


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


@adapter("LpNormalization")
def lp_normalization(node: Node) -> Value:
    axis, p = node.axis(default=-1), node.attr("p", 2)
    if p not in (1, 2):
        raise ModelError(f"LpNormalization has p = 1 or 2, not {p}")
    length = (reduce_l1 if p == 1 else reduce_l2)(node.input(0), axes=(axis,), keepdims=True)
    is_zero = ew.eq(length, 0.0)
    return ew.select(is_zero, ew.mul(node.input(0), 0.0), ew.div(node.input(0), ew.select(is_zero, 1.0, length)))


@adapter("LRN")
def local_response_normalization(node: Node) -> Value:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta."""
    size = node.attr("size")
    if size < 1 or size > 2**16 or node.rank(0) < 3:
        raise ModelError(f"LRN of {node.type(0)} over {size} channels")
    x, shape = node.input(0), node.shape(0)
    before, after = (size - 1) // 2, size // 2
    ends = [sym(0)] * (len(shape) - 2)
    squares = pad(
        ew.mul(x, x), before=(sym(0), sym(before), *ends), after=(sym(0), sym(after), *ends), mode="constant", value=0.0
    )
    total = _neighbours(squares, size, shape)
    scaled = ew.add(ew.mul(total, node.attr("alpha", 1e-4) / size), node.attr("bias", 1.0))
    return ew.div(x, ew.pow_(scaled, node.attr("beta", 0.75)))


def _neighbours(squares: Value, size: int, shape: Sequence[Sym]) -> Value:
    """The sum of `size` shifted copies along axis 1."""
    rank = len(shape)
    total: Value | None = None
    for k in range(size):
        starts = tuple(sym(k) if n == 1 else sym(0) for n in range(rank))
        part = slice_(squares, starts=starts, sizes=tuple(shape), steps=(1,) * rank)
        total = part if total is None else ew.add(total, part)
    assert total is not None
    return total
