"""Normalisations, softmax and norms of vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ir.sym import sym
from tilewright.ir.types import product
from tilewright.ops import elementwise as ew
from tilewright.ops import norm
from tilewright.ops import reduce as rd
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.source import full
from tilewright.ops.view import reshape, shape_of

Trio = tuple[Value, Value | None, Value | None]


def _ones(like: Value, shape: Sequence[Any]) -> Value:
    return full(value=1.0, dtype=type_of(like).dtype, shape=tuple(shape))


@aten("layer_norm", "native_layer_norm")
def layer_norm(
    node: AtenNode, input: Value, normalized_shape: Sequence[Any], weight: Value | None = None,
    bias: Value | None = None, eps: float = 1e-5, cudnn_enable: bool = True,
) -> Value | Trio:  # fmt: skip
    axis = len(shape_of(input)) - len(normalized_shape)
    scale = _ones(input, shape_of(input)[axis:]) if weight is None else weight
    found = norm.layer_norm(input, scale, *([] if bias is None else [bias]), axis=axis, epsilon=float(eps))
    if "native" not in node.op:
        return found
    axes = tuple(range(axis, len(shape_of(input))))
    wide = rd.widened(input)
    mean = rd.reduce_mean(wide, axes=axes)
    centred = ew.sub(wide, mean)
    variance = rd.reduce_mean(ew.mul(centred, centred), axes=axes)
    return found, mean, ew.rsqrt(ew.add(variance, node.value(eps, type_of(variance).dtype)))


@aten("rms_norm", "_fused_rms_norm")
def rms_norm(
    node: AtenNode,
    input: Value,
    normalized_shape: Sequence[Any],
    weight: Value | None = None,
    eps: float | None = None,
) -> Value | tuple[Value, Value]:
    axis = len(shape_of(input)) - len(normalized_shape)
    epsilon = float(eps) if eps is not None else _epsilon(type_of(input).dtype)
    scale = _ones(input, shape_of(input)[axis:]) if weight is None else weight
    found = norm.rms_norm(input, scale, axis=axis, epsilon=epsilon)
    if "fused" not in node.op:
        return found
    wide = rd.widened(input)
    squares = rd.reduce_mean(ew.mul(wide, wide), axes=tuple(range(axis, len(shape_of(input)))))
    return found, ew.rsqrt(ew.add(squares, node.value(epsilon, type_of(wide).dtype)))


def _epsilon(dtype: DType) -> float:
    """The distance from 1 to the next number, of the type that is computed in."""
    return 2.0**-52 if dtype is dt.f64 else 2.0**-23


@aten("group_norm", "native_group_norm")
def group_norm(
    node: AtenNode, input: Value, num_groups: int | None = None, weight: Value | None = None, bias: Value | None = None,
    eps: float = 1e-5, cudnn_enabled: bool = True, N: Any = None, C: Any = None, HxW: Any = None,
    group: int | None = None,
) -> Value | Trio:  # fmt: skip
    groups = num_groups if num_groups is not None else group
    assert groups is not None
    channels = (shape_of(input)[1],)
    scale = _ones(input, channels) if weight is None else weight
    shift = ew.sub(scale, scale) if bias is None else bias
    x = input if len(shape_of(input)) > 2 else reshape(input, shape=(*shape_of(input), 1))
    found = reshape(
        norm.group_norm(x, scale, shift, groups=int(groups), epsilon=float(eps)), shape=shape_of(input)
    )
    if "native" not in node.op:
        return found
    wide = rd.widened(input)
    rows = reshape(wide, shape=(shape_of(input)[0], groups, product(shape_of(input)[1:]) // sym(groups)))
    mean = rd.reduce_mean(rows, axes=(2,), keepdims=True)
    centred = ew.sub(rows, mean)
    variance = rd.reduce_mean(ew.mul(centred, centred), axes=(2,), keepdims=False)
    deviation = ew.rsqrt(ew.add(variance, node.value(eps, type_of(wide).dtype)))
    mean = reshape(mean, shape=shape_of(variance))
    return found, *(node.value(v, type_of(input).dtype) for v in (mean, deviation))


@aten(
    "batch_norm",
    "_native_batch_norm_legit_no_training",
    "native_batch_norm",
    "_batch_norm_no_update",
    "cudnn_batch_norm",
    "_batch_norm_impl_index",
    "_native_batch_norm_legit",
)
def batch_norm(
    node: AtenNode, input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None = None,
    running_var: Value | None = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, **how: Any,
) -> Any:  # fmt: skip
    eps = how.get("epsilon", eps)
    rank, channels = len(shape_of(input)), (shape_of(input)[1],)
    one = _ones(input if weight is None else weight, channels)
    scale = one if weight is None else weight
    shift = ew.sub(one, one) if bias is None else bias
    if training or running_mean is None or running_var is None:
        axes = tuple(k for k in range(rank) if k != 1)
        wide = rd.widened(input)
        running_mean = rd.reduce_mean(wide, axes=axes, keepdims=False)
        centred = ew.sub(wide, reshape(running_mean, shape=(*channels, *[1] * (rank - 2))))
        running_var = rd.reduce_mean(ew.mul(centred, centred), axes=axes, keepdims=False)
    parameters = [
        node.value(v, type_of(running_mean).dtype) for v in (scale, shift, running_mean, running_var)
    ]
    found = norm.batch_norm(input, *parameters, epsilon=float(eps))
    count = len(node.result) if isinstance(node.result, tuple | list) else 0
    if not count:
        return found
    if node.result[1].numel() == 0:
        nothing = full(value=0.0, dtype=node.dtype_named(node.result[1].dtype), shape=(0,))
        return (found, nothing, nothing, *[None] * (count - 3))
    deviation = ew.rsqrt(ew.add(running_var, node.value(eps, type_of(running_var).dtype)))
    return (found, running_mean, deviation, *[None] * (count - 3))


@aten("instance_norm")
def instance_norm(
    node: AtenNode, input: Value, weight: Value | None, bias: Value | None, running_mean: Value | None,
    running_var: Value | None, use_input_stats: bool, momentum: float, eps: float, cudnn_enabled: bool,
) -> Value:  # fmt: skip
    if not use_input_stats:
        return batch_norm(node, input, weight, bias, running_mean, running_var, False, momentum, eps)
    one = _ones(input, (shape_of(input)[1],))
    scale = one if weight is None else weight
    return norm.instance_norm(input, scale, ew.sub(one, one) if bias is None else bias, epsilon=float(eps))


@aten(
    "softmax",
    "_softmax",
    "log_softmax",
    "_log_softmax",
    "special_softmax",
    "special_log_softmax",
    "_safe_softmax",
)
def softmax(
    node: AtenNode, self: Value, dim: int, dtype: DType | None = None, half_to_float: bool = False
) -> Value:
    rank, x = len(shape_of(self)), node.value(self, node.dtype)
    operator = norm.log_softmax if "log_softmax" in node.op else norm.softmax
    if not rank:
        return reshape(operator(reshape(x, shape=(1,)), axis=0), shape=())
    axis = node.axis(dim, rank)
    found = operator(x, axis=axis)
    if "_safe_softmax" not in node.op:
        return found
    none = ew.eq(rd.reduce_max(x, axes=(axis,)), node.value(-math.inf, node.dtype))
    return ew.select(none, node.value(0, node.dtype), found)


@aten("linalg_vector_norm", "norm")
def vector_norm(
    node: AtenNode, self: Value, ord: Number = 2, dim: Sequence[int] | None = None, keepdim: bool = False,
    dtype: DType | None = None, p: Number | None = None,
) -> Value:  # fmt: skip
    order = ord if p is None and "vector_norm" in node.op else (2 if p is None else p)
    x = rd.widened(node.value(self, node.dtype))
    axes = node.axes(dim, len(shape_of(x)))
    size = ew.abs_(x)
    if not axes:
        found = ew.cast(ew.ne(x, ew.sub(x, x)), dtype=type_of(x).dtype) if order == 0 else size
        return rd.as_dtype(found, node.dtype)
    how = {"axes": axes, "keepdims": keepdim}
    if order == 2:
        found = rd.reduce_l2(x, **how)
    elif order == 1:
        found = rd.reduce_l1(x, **how)
    elif order == math.inf:
        found = rd.reduce_max(size, **how)
    elif order == -math.inf:
        found = rd.reduce_min(size, **how)
    elif order == 0:
        found = rd.reduce_sum(ew.cast(ew.ne(x, 0), dtype=type_of(x).dtype), **how)
    else:
        powers = rd.reduce_sum(ew.pow_(size, node.value(order, type_of(x).dtype)), **how)
        found = ew.pow_(powers, node.value(1 / float(order), type_of(x).dtype))
    return rd.as_dtype(found, node.dtype)


@aten("_weight_norm")
def weight_norm(node: AtenNode, v: Value, g: Value, dim: int = 0) -> Value:
    """v with the norms g, each over all axes but `dim`, or over all of them where that is -1."""
    wide = rd.widened(v)
    axes = tuple(a for a in range(len(shape_of(v))) if dim == -1 or a != dim)
    scale = ew.div(rd.widened(g), rd.reduce_l2(wide, axes=axes, keepdims=True))
    return rd.as_dtype(ew.mul(wide, scale), node.dtype)


# Distances


@aten("_cdist_forward")
def cdist(node: AtenNode, x1: Value, x2: Value, p: float, compute_mode: int | None = None) -> Value:
    """Distances of all rows of one operand from all of the other."""
    *_, rows, width = shape_of(x1)
    other = shape_of(x2)[-2]
    a = reshape(x1, shape=(*shape_of(x1)[:-2], rows, 1, width))
    b = reshape(x2, shape=(*shape_of(x2)[:-2], 1, other, width))
    return _length(node, ew.sub(a, b), p)


@aten("_pdist_forward")
def pdist(node: AtenNode, self: Value, p: float = 2.0) -> Value:
    """Distances of each row from those after it."""
    count = shape_of(self)[0]
    if not count.is_const:
        raise node.refuse("distances of a number of rows that is not known", node.translation.fixing(count))
    first, second = (constant(k.astype(np.int64), "rows") for k in np.triu_indices(count.value, 1))
    return _length(node, ew.sub(gather(self, first, axis=0), gather(self, second, axis=0)), p)


def _length(node: AtenNode, x: Value, p: float) -> Value:
    """The p-norm along the last axis."""
    how = {"axes": (len(shape_of(x)) - 1,), "keepdims": False}
    if p == 2:
        return rd.reduce_l2(x, **how)
    size = ew.abs_(x)
    if p == math.inf:
        return rd.reduce_max(size, **how) if shape_of(x)[-1] != 0 else rd.reduce_sum(size, **how)
    if p == 0:
        return rd.reduce_sum(ew.cast(ew.ne(x, ew.sub(x, x)), dtype=node.dtype), **how)
    if p == 1:
        return rd.reduce_sum(size, **how)
    total = rd.reduce_sum(ew.pow_(size, node.value(p, node.dtype)), **how)
    return ew.pow_(total, node.value(1 / p, node.dtype))
