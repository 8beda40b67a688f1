"""Activations whose arguments differ from ours."""

from __future__ import annotations

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten, binds
from tilewright.frontends.translation import type_of
from tilewright.ir.core import Value
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops.view import reshape, shape_of, split

binds(
    {
        "gelu": act.gelu, "silu": act.silu, "mish": act.mish, "hardswish": act.hard_swish, "selu": act.selu,
        "softsign": act.softsign, "hardsigmoid": lambda x: act.hard_sigmoid(x, alpha=1 / 6, beta=0.5),
    }
)  # fmt: skip


@aten("hardtanh")
def hardtanh(node: AtenNode, self: Value, min_val: Number = -1, max_val: Number = 1) -> Value:
    return act.clip(self, node.value(min_val, node.dtype), node.value(max_val, node.dtype))


@aten("relu6")
def relu6(node: AtenNode, self: Value) -> Value:
    return hardtanh(node, self, 0, 6)


@aten("elu")
def elu(node: AtenNode, self: Value, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Value:
    zero = node.value(0, node.dtype)
    scaled = self if input_scale == 1 else ew.mul(self, node.value(input_scale, node.dtype))
    below = ew.mul(ew.expm1(ew.min_(scaled, zero)), node.value(alpha, node.dtype))
    found = ew.select(ew.gt(self, zero), self, below)
    return found if scale == 1 else ew.mul(found, node.value(scale, node.dtype))


@aten("celu")
def celu(node: AtenNode, self: Value, alpha: Number = 1.0) -> Value:
    return act.celu(self, alpha=float(alpha))


@aten("prelu", "_prelu_kernel")
def prelu(node: AtenNode, self: Value, weight: Value) -> Value:
    shape, rank = shape_of(weight), len(shape_of(self))
    if len(shape) == 1 and rank > 1:
        weight = reshape(weight, shape=(shape[0], *[1] * (rank - 2)))
    elif rank == 0 or (len(shape) == 1 and rank == 1):
        weight = reshape(weight, shape=shape_of(self) if shape and shape[0] != 1 else ())
    return act.prelu(self, weight)


@aten("softplus")
def softplus(node: AtenNode, self: Value, beta: Number = 1, threshold: Number = 20) -> Value:
    factor = node.value(beta, node.dtype)
    scaled = self if beta == 1 else ew.mul(self, factor)
    soft = act.softplus(scaled)
    soft = soft if beta == 1 else ew.div(soft, factor)
    return ew.select(ew.gt(scaled, node.value(threshold, node.dtype)), self, soft)


@aten("hardshrink")
def hardshrink(node: AtenNode, self: Value, lambd: Number = 0.5) -> Value:
    kept = ew.le(ew.abs_(self), node.value(lambd, node.dtype))
    return ew.select(kept, node.value(0, node.dtype), self)


@aten("softshrink")
def softshrink(node: AtenNode, self: Value, lambd: Number = 0.5) -> Value:
    by, zero = node.value(lambd, node.dtype), node.value(0, node.dtype)
    low = ew.select(ew.lt(self, ew.neg(by)), ew.add(self, by), ew.mul(self, zero))
    return ew.select(ew.gt(self, by), ew.sub(self, by), low)


@aten("threshold")
def threshold(node: AtenNode, self: Value, threshold: Number, value: Number) -> Value:
    return ew.select(ew.le(self, node.value(threshold, node.dtype)), node.value(value, node.dtype), self)


@aten("glu")
def glu(node: AtenNode, self: Value, dim: int = -1) -> Value:
    rank = len(shape_of(self))
    axis = node.axis(dim, rank)
    half = shape_of(self)[axis] // 2
    a, b = split(self, sizes=(half, half), axis=axis)
    return ew.mul(a, ew.sigmoid(b))


@aten("log_sigmoid", "log_sigmoid_forward")
def log_sigmoid(node: AtenNode, self: Value) -> Value | tuple[Value, None]:
    zero = node.value(0, type_of(self).dtype)
    found = ew.sub(ew.min_(self, zero), ew.log1p(ew.exp(ew.neg(ew.abs_(self)))))
    return (found, None) if "forward" in node.op else found
