"""Elementwise operators whose ONNX form differs from ours."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, binds
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.text import as_numbers, as_text
from tilewright.ops.quant import cast_to_power, saturated

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


@adapter("Cast", "CastLike", since=6, takes="all")
def cast(node: Node) -> Value:
    return converted(node, node.dtype_attr("to") if node.op == "Cast" else node.dtype(1))


def converted(node: Node, dtype: DType) -> Value:
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


binds({"BitCast": ew.bitcast}, dtype="to")
binds({"Reciprocal": lambda x: ew.div(1.0, x)})
