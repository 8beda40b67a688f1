"""Quantisation as PyTorch's PT2E flow writes it: conversions to integers and back around operators on floats."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops import reduce as rd
from tilewright.ops.define import constant
from tilewright.ops.view import reshape, shape_of

DECOMPOSED = "quantized_decomposed"


def _parameter(node: AtenNode, x: Value | Number, dtype: DType, axis: int | None, rank: int) -> Value:
    """A scale or zero point, laid out so that it broadcasts: one number, or one for each element of an axis."""
    value = node.value(x, dtype)
    if axis is not None:
        return quant.along_axis(value, node.axis(axis, rank), rank)
    return reshape(value, shape=()) if shape_of(value) else value


@aten("quantize_per_tensor", "quantize_per_channel", namespace=DECOMPOSED)
def quantize(
    node: AtenNode, input: Value, quant_min: Any, quant_max: Any, scale: Any = None, zero_point: Any = None,
    scales: Any = None, zero_points: Any = None, axis: int | None = None, dtype: Any = None,
) -> Value:  # fmt: skip
    """round(input / scale) + zero_point between limits, which may be closer than those of the dtype."""
    found, rank = node.dtype, len(shape_of(input))
    if scales is not None:
        scale, zero_point = scales, zero_points
    one = _parameter(node, scale, dt.f32, axis, rank)
    zero = _parameter(node, zero_point, found, axis, rank)
    result = quant.quantize_linear(node.value(input, dt.f32), one, zero, dtype=found)
    least, most = (np.iinfo(found.storage).min, np.iinfo(found.storage).max) if found.is_int else (None, None)
    if found.is_int and quant_min != least:
        result = ew.max_(result, node.value(_limit(node, quant_min), found))
    if found.is_int and quant_max != most:
        result = ew.min_(result, node.value(_limit(node, quant_max), found))
    return result


def _limit(node: AtenNode, limit: Any) -> Any:
    return reshape(limit, shape=()) if isinstance(limit, Value) and shape_of(limit) else limit


@aten("dequantize_per_tensor", "dequantize_per_channel", namespace=DECOMPOSED)
def dequantize(
    node: AtenNode, input: Value, scale: Any = None, zero_point: Any = None, scales: Any = None,
    zero_points: Any = None, axis: int | None = None, **limits: Any,
) -> Value:  # fmt: skip
    """(input - zero_point) * scale."""
    rank, own = len(shape_of(input)), type_of(input).dtype
    if scales is not None:
        scale, zero_point = scales, zero_points
    one = _parameter(node, scale, dt.f32, axis, rank)
    zero = _parameter(node, 0 if zero_point is None else zero_point, own, None if zero_point is None else axis, rank)
    wide = quant.dequantize_linear(input, one, zero, dtype=dt.f32)
    return node.value(wide, node.dtype)


@aten("choose_qparams", "choose_qparams_symmetric", namespace=DECOMPOSED)
def choose_parameters(
    node: AtenNode, input: Value, quant_min: int, quant_max: int, eps: float, dtype: Any
) -> tuple[Value, Value]:
    """The scale and the zero point that the range of the input and zero asks for."""
    axes = tuple(range(len(shape_of(input))))
    wide = node.value(input, dt.f32)
    zero = constant(np.array(0, np.float32), "")
    low = ew.min_(rd.reduce_min(wide, axes=axes, keepdims=False) if axes else wide, zero)
    high = ew.max_(rd.reduce_max(wide, axes=axes, keepdims=False) if axes else wide, zero)
    symmetric = "symmetric" in node.op
    if symmetric:
        size = ew.max_(ew.neg(low), high)
        scale = ew.div(size, node.value((quant_max - quant_min) / 2, dt.f32))
    else:
        scale = ew.div(ew.sub(high, low), node.value(quant_max - quant_min, dt.f32))
    scale = ew.max_(scale, node.value(eps, dt.f32))
    if symmetric:
        middle = (quant_min + quant_max + 1) // 2
        place = node.value(middle, dt.i64)
    else:
        start = ew.sub(node.value(quant_min, dt.f32), ew.round_(ew.div(low, scale)))
        bounds = node.value(quant_min, dt.f32), node.value(quant_max, dt.f32)
        place = node.value(ew.min_(ew.max_(start, bounds[0]), bounds[1]), dt.i64)
    results = []
    for found, told in zip((scale, place), node.result, strict=True):
        typed = node.value(found, node.dtype_named(told.dtype))
        results.append(reshape(typed, shape=tuple(map(node.size, told.shape))))
    return results[0], results[1]
