"""Operators that JAX writes out in others, where kernels of their own are better: softmax."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.translation import Translation, type_of
from tilewright.ir.core import Op, Value
from tilewright.ir.sym import Sym, sym
from tilewright.ops.norm import softmax


def softmax_of(translation: Translation, a: Value, b: Value) -> Value | None:
    """a / b, where that is exp(x - max(x)) over the sum of it along one axis."""
    power = _op(a, "exp")
    shape = type_of(a).shape
    if power is None or type_of(b).shape != shape:
        return None
    total = _spread(b, shape)
    if total is None or total[0].op is None or total[0].op.name != "reduce_sum":
        return None
    reduction, axis = total[0].op, total[1]
    if reduction.operands[0] is not a or reduction.attrs["axes"] != (axis,):
        return None
    difference = _op(power.operands[0], "sub")
    if difference is None:
        return None
    x, greatest = difference.operands
    found = _spread(greatest, shape)
    if found is None or found[1] != axis:
        return None
    maximum = _op(_without_least(translation, found[0]), "reduce_max")
    if maximum is None or maximum.operands[0] is not x or maximum.attrs["axes"] != (axis,):
        return None
    return softmax(x, axis=axis)


def _op(value: Value, name: str) -> Op | None:
    return value.op if value.op is not None and value.op.name == name else None


def _spread(value: Value, shape: tuple[Sym, ...]) -> tuple[Value, int] | None:
    """What is the same along one axis of a tensor of `shape`, and that axis, where it was reduced."""
    if (expanded := _op(value, "expand")) is not None:
        (value,) = expanded.operands
    reshaped = _op(value, "reshape")
    if reshaped is None:
        return None
    wide, (narrow,) = type_of(value).shape, reshaped.operands
    own = type_of(narrow).shape
    if len(wide) != len(shape) or len(own) != len(shape) - 1:
        return None
    for axis in range(len(shape)):
        if own == (*shape[:axis], *shape[axis + 1 :]) and wide == (*shape[:axis], sym(1), *shape[axis + 1 :]):
            return narrow, axis
    return None


def _without_least(translation: Translation, value: Value) -> Value:
    """The greatest of a tensor and of minus infinity is the tensor."""
    maximum = _op(value, "max")
    if maximum is None:
        return value
    for least, other in (maximum.operands, maximum.operands[::-1]):
        known = _number(translation, least)
        if known is not None and np.isneginf(known) and type_of(other).shape == type_of(value).shape:
            return other
    return value


def _number(translation: Translation, value: Value) -> float | None:
    while (expanded := _op(value, "expand")) is not None:
        (value,) = expanded.operands
    if (filled := _op(value, "full")) is not None:
        return float(filled.attrs["value"])
    known = translation.constant_of(value)
    return None if known is None or known.size != 1 else float(known.reshape(()))
