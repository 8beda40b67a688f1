"""Operators between quantised tensors: what they do in floats, with conversions around it."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.adapters import quant as standard
from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft, of_columns, require_ranks
from tilewright.frontends.onnx.adapters.pool import average_pool_of, max_pool_of
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.dtype import DType
from tilewright.ops import activation as act
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops.composites.products import matrix_product
from tilewright.ops.norm import softmax
from tilewright.ops.reduce import dtype_of, reduce_mean, reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import concat, flatten, reshape, shape_of, transpose

microsoft("QuantizeLinear")(standard.quantize_linear)
microsoft("DequantizeLinear")(standard.dequantize_linear)


def _zero(node: Node, k: int, dtype: DType) -> Value:
    return full(value=0, dtype=dtype, shape=()) if node.optional(k) is None else node.scalar(k)


def _dequantized(node: Node, k: int) -> Value:
    """Operand `k` as f32; its scale and zero point follow it."""
    x, scale, zero = node.input(k), node.scalar(k + 1), _zero(node, k + 2, node.dtype(k))
    return quant.dequantize_linear(x, scale, zero, dtype=dt.f32)


def _quantized(node: Node, x: Value, k: int) -> Value:
    """x quantised with the scale and zero point that are operands `k` and `k + 1`, to the type of operand 0 where there
    is no zero point."""
    dtype = node.dtype(0) if node.optional(k + 1) is None else node.dtype(k + 1)
    return quant.quantize_linear(x, node.scalar(k), _zero(node, k + 1, dtype), dtype=dtype)


@microsoft("QLinearAdd", "QLinearMul")
def qlinear_binary(node: Node) -> Value:
    operator = ew.add if node.op == "QLinearAdd" else ew.mul
    return _quantized(node, operator(_dequantized(node, 0), _dequantized(node, 3)), 6)


_UNARY: dict[str, Callable[[Node, Value], Value]] = {
    "QLinearSigmoid": lambda node, x: ew.sigmoid(x),
    "QLinearLeakyRelu": lambda node, x: act.leaky_relu(x, alpha=node.attr("alpha", 0.01)),
    "QLinearSoftmax": lambda node, x: _softmax(node, x),
    "QLinearGlobalAveragePool": lambda node, x: _global_average(node, x),
    "QLinearAveragePool": lambda node, x: _average_pool(node, x),
    "QLinearReduceMean": lambda node, x: _mean(node, x),
}


@microsoft(*_UNARY)
def qlinear_unary(node: Node) -> Value:
    return _quantized(node, _UNARY[node.op](node, _dequantized(node, 0)), 3)


def _softmax(node: Node, x: Value) -> Value:
    """Before opset 13 of the standard over all axes from `axis` on."""
    axis = node.axis(node.attr("axis", -1))
    if node.attr("opset") >= 13 or axis == node.rank(0) - 1:
        return softmax(x, axis=axis)
    return reshape(softmax(flatten(x, axis=axis), axis=1), shape=shape_of(x))


def channels_first(x: Value) -> Value:
    rank = len(shape_of(x))
    return transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))


def channels_last(x: Value) -> Value:
    return transpose(x, perm=(0, *range(2, len(shape_of(x))), 1))


def _global_average(node: Node, x: Value) -> Value:
    last, rank = node.flag("channels_last", 0), node.rank(0)
    if rank < 3:
        raise ModelError(f"{node.op} takes a tensor of three or more axes, not {node.type(0)}")
    return reduce_mean(x, axes=tuple(range(1, rank - 1) if last else range(2, rank)), keepdims=True)


def _average_pool(node: Node, x: Value) -> Value:
    last = node.flag("channels_last", 0)
    result = average_pool_of(node, channels_first(x) if last else x)
    return channels_last(result) if last else result


def _mean(node: Node, x: Value) -> Value:
    return reduce_mean(x, axes=node.checked_axes(node.attr("axes")), keepdims=node.flag("keepdims"))


@microsoft("QLinearConcat")
def qlinear_concat(node: Node) -> Value:
    """Operands are scale and zero point of the result, then for each part its elements, scale and zero point."""
    if len(node.inputs) < 5 or len(node.inputs) % 3 != 2:
        raise ModelError(f"QLinearConcat has {len(node.inputs)} operands")
    axis = node.axis(node.attr("axis"), node.rank(2))
    parts = [_dequantized(node, k) for k in range(2, len(node.inputs), 3)]
    result = concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
    return quant.quantize_linear(result, node.scalar(0), node.scalar(1), dtype=node.dtype(1))


@microsoft("QLinearWhere")
def qlinear_where(node: Node) -> Value:
    chosen = ew.select(node.input(0), _dequantized(node, 1), _dequantized(node, 4))
    return quant.quantize_linear(chosen, node.scalar(7), node.scalar(8), dtype=node.dtype(8))


@microsoft("QLinearConv")
def qlinear_conv(node: Node) -> Value:
    if not node.flag("channels_last", 0):
        return standard.qlinear_conv(node)
    return channels_last(standard.qlinear_conv_of(node, channels_first(node.input(0))))


@microsoft("QGemm")
def qgemm(node: Node) -> Value:
    """alpha * A' B' + C in the scale of the product; floats where no scale of the result is given."""
    require_ranks(node, input0=2, input3=2)
    a, b = (
        transpose(node.input(k), perm=(1, 0)) if node.flag(f"trans{x}", 0) else node.input(k)
        for k, x in ((0, "A"), (3, "B"))
    )
    b_zero = full(value=0, dtype=node.dtype(3), shape=()) if node.optional(5) is None else of_columns(node, 5)
    sums = quant.matmul_integer(a, b, _zero(node, 2, node.dtype(0)), b_zero)
    if (added := node.optional(6)) is not None:
        sums = ew.add(sums, added)
    scale = ew.mul(ew.mul(node.scalar(1), of_columns(node, 4)), node.attr("alpha", 1.0))
    if node.optional(7) is None:
        return ew.mul(ew.cast(sums, dtype=dt.f32), scale)
    dtype = node.dtype(0) if node.optional(8) is None else node.dtype(8)
    return quant.requantize(sums, ew.div(scale, node.scalar(7)), _zero(node, 8, dtype), dtype=dtype)


@microsoft("DynamicQuantizeMatMul")
def dynamic_quantize_matmul(node: Node) -> Value:
    a, scale, zero = quant.dynamic_quantize_linear(node.input(0))
    b_zero = full(value=0, dtype=node.dtype(1), shape=()) if node.optional(3) is None else of_columns(node, 3)
    sums = standard.integer_product(a, node.input(1), zero, b_zero)
    return _in_floats(node, sums, ew.mul(scale, of_columns(node, 2)), 4)


@microsoft("MatMulIntegerToFloat")
def matmul_integer_to_float(node: Node) -> Value:
    zeros = [
        full(value=0, dtype=node.dtype(k), shape=()) if node.optional(4 + k) is None else zero_point(node, 4 + k)
        for k, zero_point in enumerate((Node.scalar, of_columns))
    ]
    sums = standard.integer_product(node.input(0), node.input(1), *zeros)
    return _in_floats(node, sums, ew.mul(node.scalar(2), of_columns(node, 3)), 6)


def _in_floats(node: Node, sums: Value, scale: Value, bias: int) -> Value:
    """i32 sums times their scale, plus operand `bias`, in the scale's dtype."""
    result = ew.mul(ew.cast(sums, dtype=dt.f32), ew.cast(scale, dtype=dt.f32))
    if (added := node.optional(bias)) is not None:
        columns = shape_of(sums)[-1] if shape_of(sums) else s.ONE
        message = f"{node.op}: input {bias} is {node.type(bias)} for {columns} columns"
        require(node.translation, s.eq(node.type(bias).size, columns), message)
        result = ew.add(result, ew.cast(added, dtype=dt.f32))
    return ew.cast(result, dtype=dtype_of(scale))


@microsoft("NhwcMaxPool")
def nhwc_max_pool(node: Node) -> Value:
    return channels_last(max_pool_of(node, channels_first(node.input(0))))


@microsoft("MatMulInteger16")
def matmul_integer16(node: Node) -> Value:
    return matrix_product(*[ew.cast(x, dtype=dt.i32) for x in node.operands])


@microsoft("MulInteger")
def mul_integer(node: Node) -> Value:
    return ew.mul(
        *[
            ew.sub(
                ew.cast(node.input(k), dtype=dt.i32), ew.cast(_zero(node, k + 1, node.dtype(k)), dtype=dt.i32)
            )
            for k in (0, 2)
        ]
    )


@microsoft("ReduceSumInteger")
def reduce_sum_integer(node: Node) -> Value:
    axes = node.checked_axes(node.attr("axes"))
    return reduce_sum(ew.cast(node.input(0), dtype=dt.i32), axes=axes, keepdims=node.flag("keepdims"))
