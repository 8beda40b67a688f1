"""Normalisations and softmax."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import norm
from tilewright.ops.reduce import as_dtype, dtype_of, position_of, reduce_max, reduce_mean, widened
from tilewright.ops.source import full, iota
from tilewright.ops.view import expand, flatten, reshape, shape_of


def _hardmax(x: Value, *, axis: int) -> Value:
    """1 at the first greatest element along the axis, 0 elsewhere."""
    along = tuple(d if k == axis else sym(1) for k, d in enumerate(shape_of(x)))
    found = ew.eq(iota(shape=along, axis=axis), position_of(reduce_max)(x, axis=axis, keepdims=True))
    return ew.cast(found, dtype=x.type.dtype)  # type: ignore[attr-defined]


_ALONG_AXIS: dict[str, Callable[..., Value]] = {
    "Softmax": norm.softmax, "LogSoftmax": norm.log_softmax, "Hardmax": _hardmax,
}  # fmt: skip


@adapter(*_ALONG_AXIS)
def along_axis(node: Node) -> Value:
    """Before opset 13: over all axes from `axis` on."""
    operator, x, axis = _ALONG_AXIS[node.op], node.input(0), node.axis_attr()
    if node.version >= 13 or axis == node.rank(0) - 1:
        return operator(x, axis=axis)
    return reshape(operator(flatten(x, axis=axis), axis=1), shape=node.shape(0))


@adapter("BatchNormalization")
def batch_normalization(node: Node) -> tuple[Value, ...]:
    """Before opset 14 statistics of the batch were asked for otherwise; only inference is translated then."""
    if node.rank(0) < 2:
        raise ModelError(f"BatchNormalization takes a tensor of two or more axes, not {node.type(0)}")
    if not node.attr("spatial", 1):
        return (_normalised_by_element(node),)
    channels = node.shape(0)[1]
    for k in range(1, 5):
        node.demand_shape(k, (channels,), f"input {k} is {node.type(k)} for {channels} channels")
    x, scale, bias, mean, variance = node.operands
    running: list[Value] = []
    if node.attr("training_mode", 0):
        axes, momentum = (0, *range(2, node.rank(0))), node.attr("momentum")
        centred = ew.sub(x, reduce_mean(x, axes=axes, keepdims=True))
        now = reduce_mean(x, axes=axes, keepdims=False)
        spread = reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=False)
        running = [
            ew.add(ew.mul(old, momentum), ew.mul(new, 1.0 - momentum))
            for old, new in ((mean, now), (variance, spread))
        ]
        mean, variance = now, spread
    return (norm.batch_norm(x, scale, bias, mean, variance, epsilon=node.attr("epsilon")), *running)


def _normalised_by_element(node: Node) -> Value:
    """Before opset 9, statistics might be those of each element of an image, of all its channels."""
    x, scale, bias, mean, variance = node.operands
    for k in range(1, 5):
        if len(node.shape(k)) != node.rank(0) - 1:
            raise ModelError(f"BatchNormalization with spatial=0: input {k} is {node.type(k)} for {node.type(0)}")
    deviation = ew.sqrt(ew.add(variance, node.attr("epsilon")))
    return ew.add(ew.mul(ew.div(ew.sub(x, mean), deviation), scale), bias)


@adapter("GroupNormalization")
def group_normalization(node: Node) -> Value:
    x, scale, bias = node.operands
    groups: int = node.attr("num_groups")
    channels = node.known_dim(0, 1) if node.rank(0) > 2 else -1
    if groups < 1 or channels < 0 or channels % groups:
        raise ModelError(f"GroupNormalization of {node.type(0)} with {groups} groups")
    if node.version < 21:  # scale and bias had one entry for each group
        size = channels // groups
        scale, bias = (
            reshape(expand(reshape(v, shape=(groups, 1)), shape=(groups, size)), shape=(channels,))
            for v in (scale, bias)
        )
    return norm.group_norm(x, scale, bias, groups=groups, epsilon=node.attr("epsilon"))


@adapter("LayerNormalization")
def layer_normalization(node: Node) -> tuple[Value, ...]:
    axis, epsilon = node.axis_attr(), node.attr("epsilon")
    bias = node.optional(2)
    bias = full(value=0.0, dtype=node.dtype(1), shape=()) if bias is None else bias
    result = norm.layer_norm(node.input(0), node.input(1), bias, axis=axis, epsilon=epsilon)
    if not (node.wants(1) or node.wants(2)):
        return (result,)
    wide = as_dtype(node.input(0), dt.f32)
    axes = tuple(range(axis, node.rank(0)))
    mean = reduce_mean(wide, axes=axes, keepdims=True)
    centred = ew.sub(wide, mean)
    variance = reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=True)
    return (result, mean, ew.div(1.0, ew.sqrt(ew.add(variance, epsilon))))


@adapter("SimplifiedLayerNormalization")
def simplified_layer_normalization(node: Node) -> tuple[Value | None, ...]:
    """x / sqrt(mean(x^2) + epsilon) * scale; ONNX Runtime writes it into the domain of the standard, too."""
    axis, epsilon = node.axis(node.attr("axis", -1)), node.attr("epsilon", 1e-5)
    node.attr("stash_type", 1)  # sums are of f32 at least in any case
    x, scale = widened(node.input(0)), widened(node.input(1))
    result = as_dtype(norm.rms_norm(x, scale, axis=axis, epsilon=epsilon), dtype_of(node.input(1)))
    if not node.wants(1):
        return (result,)
    power = reduce_mean(ew.mul(x, x), axes=tuple(range(axis, node.rank(0))), keepdims=True)
    return result, ew.rsqrt(ew.add(power, epsilon))


@adapter("RMSNormalization")
def rms_normalization(node: Node) -> Value:
    axis = node.axis_attr()
    return norm.rms_norm(node.input(0), node.input(1), axis=axis, epsilon=node.attr("epsilon"))
