"""Constants of a file as arrays, and quantised tensors as the floats that they stand for."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.frontends.problems import shown
from tilewright.frontends.tflite.model import QuantizedAs, TfliteTensor
from tilewright.frontends.tflite.schema import element_type
from tilewright.frontends.tflite.sparse import dense
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType
from tilewright.ops import quant
from tilewright.ops.composites.shapes import MAX_ELEMENTS
from tilewright.ops.define import constant
from tilewright.ops.reduce import dtype_of
from tilewright.ops.view import shape_of

WIDEST = 16
"""Bits of the integers that activations and weights are quantised to; those of more bits are biases."""


def dtype_of_tensor(tensor: TfliteTensor) -> DType:
    return element_type(tensor.type, f"the tensor '{shown(tensor.name)}'")


def array_of(tensor: TfliteTensor) -> np.ndarray:
    """The elements of a constant."""
    assert tensor.data is not None
    dtype, what = dtype_of_tensor(tensor), f"the tensor '{shown(tensor.name)}'"
    shape = tensor.shape or ()
    if any(d < 0 for d in shape):
        raise ModelError(f"{what} is a constant of the shape {list(shape)}")
    count = prod(shape)
    if count > MAX_ELEMENTS:
        raise ModelError(f"{what} has {count} elements")
    if tensor.sparsity is not None:
        return dense(_elements(tensor.data, dtype, None, what), shape, tensor.sparsity)
    return _elements(tensor.data, dtype, count, what).reshape(shape)


def _elements(data: np.ndarray, dtype: DType, count: int | None, what: str) -> np.ndarray:
    """Elements of less than a byte are stored from the lowest bits on."""
    if dtype.bits < 8:
        per_byte = 8 // dtype.bits
        count = data.size * per_byte if count is None else count
        _require_bytes(data, -(-count // per_byte), what)
        parts = (data[:, None] >> (np.arange(per_byte, dtype=np.uint8) * dtype.bits)) & (
            (1 << dtype.bits) - 1
        )
        numbers = parts.reshape(-1)[:count].astype(np.int8)
        if dtype.kind == "int":
            numbers = np.where(numbers >> (dtype.bits - 1), numbers - (1 << dtype.bits), numbers)
        return numbers.astype(dtype.storage)
    width = dtype.storage.itemsize
    count = data.size // width if count is None else count
    _require_bytes(data, count * width, what)
    if dtype.kind == "bool":
        return data != 0
    found = data.view(dtype.storage) if data.ctypes.data % width == 0 else np.array(data).view(dtype.storage)
    return found


def _require_bytes(data: np.ndarray, wanted: int, what: str) -> None:
    if data.size != wanted:
        raise ModelError(
            f"{what} has {data.size} bytes, not {wanted}", hint="the file is truncated or damaged"
        )


def dequantized(x: Value, how: QuantizedAs, name: str, axis: int | None = None) -> Value:
    """The floats that a quantised tensor stands for; `axis` is where the axis of its scales lies now."""
    scale, zero = _parameters(x, how, name, how.axis if axis is None else axis)
    return quant.dequantize_linear(x, scale, zero, dtype=dt.f32)


def quantized(x: Value, how: QuantizedAs, dtype: DType, name: str) -> Value:
    """The integers that stand for floats: rounded, and saturated."""
    scale, zero = _parameters(x, how, name, how.axis, dtype)
    return quant.quantize_linear(x, scale, zero, dtype=dtype)


def _parameters(
    x: Value, how: QuantizedAs, name: str, axis: int, dtype: DType | None = None
) -> tuple[Value, Value]:
    kind, shape = dtype or dtype_of(x), shape_of(x)
    limits = np.iinfo(kind.storage) if kind.bits >= 8 else None
    if limits is not None and not limits.min <= how.zeros.min() <= how.zeros.max() <= limits.max:
        raise ModelError(f"the tensor '{shown(name)}' has a zero point that is no {kind}")
    scales, zeros = how.scales.astype(np.float32), how.zeros.astype(kind.storage)
    if how.scales.size == 1:
        return constant(scales.reshape(()), f"{name}.scale"), constant(zeros.reshape(()), f"{name}.zero")
    if not 0 <= axis < len(shape) or (shape[axis].is_const and shape[axis] != how.scales.size):
        raise ModelError(
            f"the tensor '{shown(name)}' has {how.scales.size} scales for axis {axis} of {x.type}"
        )
    lanes = tuple(-1 if k == axis else 1 for k in range(len(shape)))
    return constant(scales.reshape(lanes), f"{name}.scale"), constant(zeros.reshape(lanes), f"{name}.zero")


def float_bias(array: np.ndarray, how: QuantizedAs) -> np.ndarray:
    """A bias of wide integers, as floats: they were rounded to steps that floats of 24 digits hold well enough. Some
    files say of its only axis that it is the last one of the filters."""
    axis = how.axis if array.ndim > 1 else 0
    lanes = [-1 if k == axis else 1 for k in range(array.ndim)] if how.scales.size > 1 else []
    steps = array.astype(np.float64) - how.zeros.reshape(lanes)
    return np.asarray(steps * how.scales.astype(np.float64).reshape(lanes)).astype(np.float32)
