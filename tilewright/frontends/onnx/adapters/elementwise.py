"""Elementwise operators whose ONNX form differs from ours."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ir.types import TensorType
from tilewright.ops import activation
from tilewright.ops import elementwise as ew
from tilewright.ops.view import reshape


def scalar_of(x: Value) -> Value:
    """A one-element tensor as a scalar tensor."""
    assert isinstance(x.type, TensorType)
    return x if x.type.rank == 0 else reshape(x, shape=())


def _fold(operator: Callable[[Value, Value], Value], node: Node) -> Value:
    """The operator over all operands, as a balanced tree: a chain of thousands would nest too deeply."""
    values = [node.input(k) for k in range(len(node.inputs))]
    while len(values) > 1:
        pairs = [operator(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(values) & ~1 :]
    return values[0]


@adapter("Sum", since=6)
def sum_(node: Node) -> Value:
    return _fold(ew.add, node)


@adapter("Max", since=6)
def max_(node: Node) -> Value:
    return _fold(ew.max_, node)


@adapter("Min", since=6)
def min_(node: Node) -> Value:
    return _fold(ew.min_, node)


@adapter("Mean", since=6)
def mean(node: Node) -> Value:
    return ew.mul(_fold(ew.add, node), 1.0 / len(node.inputs))


@adapter("Mod", since=10)
def mod(node: Node) -> Value:
    if node.attr("fmod", 0):
        return ew.rem(node.input(0), node.input(1))
    return ew.mod(node.input(0), node.input(1))


@adapter("Pow", since=7)
def pow_(node: Node) -> Value:
    base, exponent = node.input(0), node.input(1)
    if node.dtype(0).is_int and node.dtype(1).is_float:
        raised = ew.pow_(ew.cast(base, dtype=dt.f64), ew.cast(exponent, dtype=dt.f64))
        return ew.cast(raised, dtype=node.dtype(0))
    return ew.pow_(base, exponent)


@adapter("BitShift", since=11)
def bit_shift(node: Node) -> Value:
    direction = node.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise ModelError(f"BitShift has no direction '{direction}'")
    return (ew.shl if direction == "LEFT" else ew.shr)(node.input(0), node.input(1))


@adapter("Cast", since=6)
def cast(node: Node) -> Value:
    return _converted(node, dtype_of(node.attr("to"), "attribute 'to' of Cast"))


@adapter("CastLike", since=15)
def cast_like(node: Node) -> Value:
    return _converted(node, node.dtype(1))


def _converted(node: Node, dtype: DType) -> Value:
    """Operand 0 as `dtype`; to 4 bits floats go through i32, so that they wrap as integers do."""
    if dtype.kind == "string" or node.dtype(0).kind == "string":
        raise UnsupportedError("strings cannot be converted")
    if dtype.is_float and dtype.bits == 8 and node.dtype(0) != dtype:
        raise UnsupportedError(f"conversion to {dtype} is not supported")
    x = node.input(0)
    wraps = dtype.is_int and dtype.bits == 4 and node.dtype(0).is_float
    return ew.cast(ew.cast(x, dtype=dt.i32) if wraps else x, dtype=dtype)


@adapter("BitCast", since=26)
def bit_cast(node: Node) -> Value:
    to = dtype_of(node.attr("to"), "attribute 'to' of BitCast")
    if to == node.dtype(0):
        return node.input(0)
    raise UnsupportedError("reinterpreting bits is not supported")


@adapter("Clip", since=6)
def clip_attributes(node: Node) -> Value:
    x = node.input(0)
    low, high = node.attr("min", -math.inf), node.attr("max", math.inf)
    if low > -3.4e38:
        x = ew.max_(x, low)
    return ew.min_(x, high) if high < 3.4e38 else x


@adapter("Clip", since=11)
def clip(node: Node) -> Value:
    x, low, high = node.input(0), node.optional(1), node.optional(2)
    if low is not None:
        x = ew.max_(x, _limit(node, 1, low))
    return x if high is None else ew.min_(x, _limit(node, 2, high))


def _limit(node: Node, k: int, value: Value) -> Value | int | float:
    """A limit of Clip: as a number when it is known, so that later stages see it."""
    if node.type(k).rank > 1 or node.type(k).size != 1:
        raise ModelError(f"input {k} of {node.op} must be a scalar, it is {node.type(k)}")
    known = node.constant_or_none(k)
    return scalar_of(value) if known is None else known.reshape(()).item()


@adapter("IsInf", since=10)
def is_inf(node: Node) -> Value:
    x = node.input(0)
    positive, negative = node.attr("detect_positive", 1), node.attr("detect_negative", 1)
    if positive and negative:
        return ew.is_inf(x)
    if not positive and not negative:
        return ew.ne(x, x) if node.dtype(0).is_int else ew.and_(ew.is_inf(x), ew.not_(ew.is_inf(x)))
    return ew.and_(ew.is_inf(x), ew.gt(x, 0) if positive else ew.lt(x, 0))


@adapter("Reciprocal", since=6)
def reciprocal(node: Node) -> Value:
    return ew.div(1.0, node.input(0))


@adapter("PRelu", since=7)
def prelu(node: Node) -> Value:
    return activation.prelu(node.input(0), node.input(1))


@adapter("Dropout", since=7)
def dropout(node: Node) -> tuple[Value, ...]:
    training = np.array(False) if node.optional(2) is None else node.constant(2)
    ratio = node.constant(1) if node.optional(1) is not None and training.any() else np.array(0.0)
    if training.any() and ratio.any():
        raise UnsupportedError("Dropout in training mode is random and not supported")
    x = node.input(0)
    if not node.wants(1):
        return (x,)
    from_opset_12 = node.version >= 10
    mask = ew.eq(x, x) if node.dtype(0).is_int else ew.or_(ew.eq(x, x), ew.is_nan(x))
    return (x, mask if from_opset_12 else ew.cast(mask, dtype=node.dtype(0)))
