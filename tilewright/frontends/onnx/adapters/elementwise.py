"""Elementwise operators whose ONNX form differs from ours."""

from __future__ import annotations

import math
from collections.abc import Callable

from onnx import TensorProto

from tilewright.frontends.errors import shown
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, find_adapter
from tilewright.frontends.onnx.tensors import dtype_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.text import as_numbers, as_text
from tilewright.ops.quant import cast_to_power, saturated
from tilewright.ops.view import reshape, shape_of

_FOLDED: dict[str, Callable[[Value, Value], Value]] = {
    "Sum": ew.add, "Mean": ew.add, "Max": ew.max_, "Min": ew.min_,
}  # fmt: skip


@adapter(*_FOLDED)
def folded(node: Node) -> Value:
    """An operator over all operands, as a balanced tree: a chain of thousands would nest too deeply."""
    values = node.operands
    while len(values) > 1:
        pairs = [_FOLDED[node.op](a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(values) & ~1 :]
    return ew.mul(values[0], 1.0 / len(node.inputs)) if node.op == "Mean" else values[0]


@adapter("Mod")
def mod(node: Node) -> Value:
    return (ew.rem if node.flag("fmod") else ew.mod)(*node.operands)


@adapter("Pow", since=7)
def pow_(node: Node) -> Value:
    base, exponent = node.operands
    if node.dtype(0).is_int and node.dtype(1).is_float:
        raised = ew.pow_(ew.cast(base, dtype=dt.f64), ew.cast(exponent, dtype=dt.f64))
        return ew.cast(raised, dtype=node.dtype(0))
    return ew.pow_(base, exponent)


@adapter("BitShift")
def bit_shift(node: Node) -> Value:
    return (ew.shl if node.one_of("direction", "LEFT", "RIGHT") == "LEFT" else ew.shr)(*node.operands)


@adapter("Cast", until=5)
def cast_to_named(node: Node) -> Value:
    """The element type was given by its name."""
    name = node.attr("to")
    if name not in (types := dict(TensorProto.DataType.items())):
        raise ModelError(f"Cast to '{shown(name)}', which is no element type")
    return _converted(node, dtype_of(types[name], "attribute 'to' of Cast"))


@adapter("Cast", "CastLike", since=6, takes="all")
def cast(node: Node) -> Value:
    return _converted(node, node.dtype_attr("to") if node.op == "Cast" else node.dtype(1))


def _converted(node: Node, dtype: DType) -> Value:
    """Operand 0 as `dtype`; to integers of few bits floats go through i32, so that they wrap as integers do."""
    x, own = node.input(0), node.dtype(0)
    if dtype is dt.string:
        return as_text(x)
    if own is dt.string:
        return as_numbers(x, dtype)
    if dtype is dt.f8e8m0 and own is not dtype:
        mode = node.one_of("round_mode", "up", "down", "nearest", default="up")
        return cast_to_power(x, mode=mode, saturate=node.flag("saturate", 1))
    if dtype.is_float and dtype.bits == 8 and own != dtype:
        wide = x if own == dt.f64 else ew.cast(x, dtype=dt.f32)
        return ew.cast(saturated(wide, dtype) if node.attr("saturate", 1) else wide, dtype=dtype)
    wraps = dtype.is_int and dtype.bits < 8 and own.is_float
    return ew.cast(ew.cast(x, dtype=dt.i32) if wraps else x, dtype=dtype)


@adapter("BitCast")
def bit_cast(node: Node) -> Value:
    return ew.bitcast(node.input(0), dtype=node.dtype_attr("to"))


@adapter("Clip")
def clip(node: Node) -> Value:
    x = node.input(0)
    for k, name, operator in ((1, "min", ew.max_), (2, "max", ew.min_)):
        limit = _limit(node, k, name)
        x = x if limit is None else operator(x, limit)
    return x


def _limit(node: Node, k: int, name: str) -> Value | int | float | None:
    """A limit of Clip: as a number when it is known, so that later stages see it."""
    if node.version < 11:
        number: float = node.attr(name, math.inf)
        return number if abs(number) < 3.4e38 else None
    if node.optional(k) is None:
        return None
    if node.rank(k) > 1:
        raise ModelError(f"input {k} of {node.op} must be a scalar, it is {node.type(k)}")
    value, known = node.scalar(k), node.constant_or_none(k)
    return value if known is None else known.item()


@adapter("IsInf")
def is_inf(node: Node) -> Value:
    x = node.input(0)
    positive, negative = node.flag("detect_positive"), node.flag("detect_negative")
    infinite = ew.is_inf(x)
    if positive and negative:
        return infinite
    if not positive and not negative:
        return ew.and_(infinite, ew.not_(infinite))
    return ew.and_(infinite, ew.gt(x, 0) if positive else ew.lt(x, 0))


@adapter("Reciprocal")
def reciprocal(node: Node) -> Value:
    return ew.div(1.0, node.input(0))


# Before opset 7, broadcasting was asked for by attributes, and aligned at an axis

_BINARY = ("Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater", "Pow")


@adapter(*_BINARY, until=6)
def aligned(node: Node) -> Value:
    """The axes of the second operand are laid under those of the first from attribute `axis` on."""
    own, whole = node.shape(1), node.shape(0)
    if not node.flag("broadcast"):
        if len(own) != len(whole):
            raise ModelError(f"{node.op} of {node.type(0)} and {node.type(1)} without broadcast=1")
    else:
        axis = node.attr("axis", len(whole) - len(own))
        behind = len(whole) - axis - len(own)
        if behind < 0 or axis < 0:
            raise ModelError(f"{node.op}: {node.type(1)} does not fit {node.type(0)} from axis {axis} on")
        node.inputs = (node.input(0), _extended(node.input(1), behind))
    later = find_adapter("", node.op, 7)
    assert later is not None
    return later(node)


@adapter("PRelu", until=6)
def prelu(node: Node) -> Value:
    """A vector of slopes goes along the channels."""
    if node.rank(1) == 1 and node.shape(1)[0] != 1 and node.rank(0) >= 3:
        node.inputs = (node.input(0), _extended(node.input(1), node.rank(0) - 2))
    later = find_adapter("", "PRelu", 7)
    assert later is not None
    return later(node)


def _extended(x: Value, ones: int) -> Value:
    """x with so many axes of one element at its end."""
    return reshape(x, shape=(*shape_of(x), *[sym(1)] * ones)) if ones else x
