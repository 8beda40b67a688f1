"""Quantisation and integer products."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.onnx.adapters.window import window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, binds
from tilewright.ir import dtype as dt
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.dtype import DType
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops.composites.products import matrix_product, with_bias
from tilewright.ops.define import constant
from tilewright.ops.view import reshape, shape_of


@adapter("QuantizeLinear", since=10)
def quantize_linear(node: Node) -> Value:
    dtype = node.dtype_attr("output_dtype", dt.u8) if node.optional(2) is None else node.dtype(2)
    _require_quantised(dtype)
    scale, zero = _parameters(node, dtype)
    return quant.quantize_linear(node.input(0), scale, zero, dtype=dtype, saturate=node.flag("saturate", 1))


@adapter("DequantizeLinear", since=10)
def dequantize_linear(node: Node) -> Value:
    dtype = node.dtype_attr("output_dtype", node.dtype(1))
    _require_quantised(node.dtype(0))
    scale, zero = _parameters(node, node.dtype(0))
    return quant.dequantize_linear(node.input(0), scale, zero, dtype=dtype)


def _require_quantised(dtype: DType) -> None:
    if not quant.is_quantised(dtype):
        raise UnsupportedError(f"quantisation to {dtype} is not supported")


def _parameters(node: Node, dtype: DType) -> tuple[Value, Value]:
    """Scale and zero point, laid out so that they broadcast against operand 0."""
    return _laid_out(node, 1), _zero(node, 2, dtype) if node.optional(2) is None else _laid_out(node, 2)


def _laid_out(node: Node, k: int) -> Value:
    """Per tensor, per axis or per block of an axis."""
    value, shape, own = node.input(k), node.shape(0), node.shape(k)
    block = node.attr("block_size", 0)
    if not own or (len(own) == 1 and own[0] == 1 and not block):
        return reshape(value, shape=()) if own else value
    if len(own) == 1 and not own[0].is_const and not block and not -len(shape) <= node.attr("axis", 1) < len(shape):
        return node.scalar(k)  # there is no such axis, which is an error of calls with another length only
    axis = node.axis(node.attr("axis", 1))
    if not block:
        node.demand_shape(k, (shape[axis],), f"input {k} is {node.type(k)} for axis {axis} of {node.type(0)}")
        return quant.along_axis(value, axis, len(shape))
    if len(own) != len(shape) or block < 0:
        raise ModelError(f"{node.op}: input {k} is {node.type(k)} for blocks of {node.type(0)}")
    return quant.spread(value, axis, block, shape[axis])


binds({"DynamicQuantizeLinear": quant.dynamic_quantize_linear}, since=11)


def _zero(node: Node, k: int, dtype: DType) -> Value:
    return constant(np.zeros((), dtype.storage), "zero") if node.optional(k) is None else node.input(k)


def _for_columns(zero: Value) -> Value:
    """A zero point or scale of the right operand of a product: one for each column, or one number."""
    return reshape(zero, shape=()) if shape_of(zero) == (1,) else zero


def _for_rows(zero: Value) -> Value:
    """The same of the left operand: one for each row."""
    zero = _for_columns(zero)
    return reshape(zero, shape=(*shape_of(zero), 1)) if len(shape_of(zero)) == 1 else zero


def _centred(x: Value, zero: Value) -> Value:
    return ew.sub(ew.cast(x, dtype=dt.i32), ew.cast(zero, dtype=dt.i32))


@adapter("MatMulInteger", since=10)
def matmul_integer(node: Node) -> Value:
    a_zero = _for_rows(_zero(node, 2, node.dtype(0)))
    b_zero = _for_columns(_zero(node, 3, node.dtype(1)))
    return integer_product(node.input(0), node.input(1), a_zero, b_zero)


def integer_product(a: Value, b: Value, a_zero: Value, b_zero: Value) -> Value:
    """(a - a_zero) @ (b - b_zero) in i32, of matrices, vectors or stacks of matrices."""
    if min(len(shape_of(a)), len(shape_of(b))) < 2:
        return matrix_product(_centred(a, a_zero), _centred(b, b_zero))
    return quant.matmul_integer(a, b, a_zero, b_zero)


@adapter("QLinearMatMul", since=10)
def qlinear_matmul(node: Node) -> Value:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.operands
    sums = integer_product(a, b, _for_rows(a_zero), _for_columns(b_zero))
    scales = ew.mul(_single(_for_rows(a_scale)), _single(_for_columns(b_scale)))
    factor = ew.div(scales, _single(_for_rows(y_scale)))
    return quant.requantize(sums, factor, _for_rows(y_zero), dtype=node.dtype(7))


def _single(x: Value) -> Value:
    return ew.cast(x, dtype=dt.f32)


@adapter("ConvInteger", since=10)
def conv_integer(node: Node) -> Value:
    x_zero = _for_columns(_zero(node, 2, node.dtype(0)))
    return _integer_conv(node, node.input(0), node.input(1), x_zero, _zero(node, 3, node.dtype(1)))


def _integer_conv(node: Node, x: Value, w: Value, x_zero: Value, w_zero: Value) -> Value:
    rank = len(shape_of(w))
    window = window_of(node, shape_of(w)[2:], shape_of(x)[2:])
    zero = _for_filters(w_zero, rank)
    return quant.conv_integer(x, w, x_zero, zero, **window.sliding, groups=node.attr("group", 1))


def _for_filters(x: Value, rank: int) -> Value:
    """One number for all filters, or one for each (axis 0)."""
    shape = shape_of(x)
    if not shape or shape[0] == 1:
        return reshape(x, shape=())
    return quant.along_axis(x, 0, rank)


@adapter("QLinearConv", since=10)
def qlinear_conv(node: Node) -> Value:
    return qlinear_conv_of(node, node.input(0))


def qlinear_conv_of(node: Node, x: Value) -> Value:
    """The convolution of x, which is operand 0 with its channels in axis 1."""
    x_scale, y_scale = (_single(node.scalar(k)) for k in (1, 6))
    w_scale = _single(_for_filters(node.input(4), node.rank(0) - 1))
    x_zero = node.scalar(2)
    sums = _integer_conv(node, x, node.input(3), x_zero, node.input(5))
    sums = with_bias(sums, node.optional(8))
    factor = ew.div(ew.mul(x_scale, w_scale), y_scale)
    y_zero = node.scalar(7)
    return quant.requantize(sums, factor, y_zero, dtype=node.dtype(7))
