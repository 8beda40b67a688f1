"""Convolutions and products of matrices."""

from __future__ import annotations

from tilewright.frontends.tflite.adapters.window import channels_first, channels_last, window_of
from tilewright.frontends.tflite.node import OperatorNode
from tilewright.frontends.tflite.registry import binds, tflite
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym
from tilewright.ir.types import product
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.products import with_bias
from tilewright.ops.view import reshape, shape_of


@tflite("CONV_2D")
def conv_2d(node: OperatorNode) -> Value:
    """Filters are [o, h, w, c / groups]."""
    node.require_rank(0, 4)
    return _convolution(node, node.permuted(1, (0, 3, 1, 2)), node.shape(0)[3])


@tflite("DEPTHWISE_CONV_2D")
def depthwise_conv_2d(node: OperatorNode) -> Value:
    """Filters are [1, h, w, c * multiplier]."""
    node.require_rank(0, 4)
    w = node.permuted(1, (3, 0, 1, 2))
    if shape_of(w)[1] != 1:
        raise ModelError(f"DEPTHWISE_CONV_2D with filters {node.type(1)}")
    return _convolution(node, w, node.shape(0)[3])


@tflite("CONV_3D")
def conv_3d(node: OperatorNode) -> Value:
    """Filters are [d, h, w, c / groups, o]."""
    node.require_rank(0, 5)
    return _convolution(node, node.permuted(1, (4, 3, 0, 1, 2)), node.shape(0)[4])


def _convolution(node: OperatorNode, w: Value, channels: Sym) -> Value:
    per_group = shape_of(w)[1]
    if (
        not channels.is_const
        or not per_group.is_const
        or not per_group.value
        or channels.value % per_group.value
    ):
        raise ModelError(f"{node.op} of {channels} channels with filters of {per_group}")
    x = channels_first(node.input(0))
    window = window_of(node, shape_of(w)[2:], shape_of(x)[2:])
    y = contract.conv(x, w, **window.sliding, groups=channels.value // per_group.value)
    return channels_last(node.activated(with_bias(y, node.optional(2))))


@tflite("TRANSPOSE_CONV", "CONV_3D_TRANSPOSE")
def transpose_conv(node: OperatorNode) -> Value:
    """The shape of the result is operand 0; filters are [o, h, w, c], in three dimensions [d, h, w, o, c]."""
    flat = node.op == "TRANSPOSE_CONV"
    rank = 4 if flat else 5
    node.require_rank(2, rank)
    wanted = node.symbols(0)
    if len(wanted) != rank:
        raise ModelError(f"{node.op} gives a tensor of {rank} axes, not {len(wanted)}")
    w = node.permuted(1, (3, 0, 1, 2) if flat else (4, 3, 0, 1, 2))
    x, kernel = channels_first(node.input(2)), shape_of(w)[2:]
    window = window_of(node, kernel, wanted[1:-1])
    end, more = [], []
    for k, (size, out) in enumerate(zip(shape_of(x)[2:], wanted[1:-1], strict=True)):
        beyond = (size - 1) * window.strides[k] + window.reach(k) - window.pads_begin[k] - out
        end.append(s.maximum(beyond, 0))
        more.append(s.maximum(-beyond, 0))
    y = contract.conv_transpose(
        x,
        w,
        strides=window.strides,
        pads_begin=window.pads_begin,
        pads_end=tuple(end),
        output_padding=tuple(more),
        dilations=window.dilations,
    )
    return channels_last(node.activated(with_bias(y, node.optional(3))))


@tflite("FULLY_CONNECTED")
def fully_connected(node: OperatorNode) -> Value:
    """Weights are [o, c]; the data are rows of c elements."""
    if node.integer("weights_format"):
        raise node.refuse("shuffled weights")
    node.require_rank(1, 2)
    x, w, shape = node.input(0), node.input(1), node.shape(0)
    width = shape_of(w)[1]
    if not node.flag("keep_num_dims") or shape[-1:] != (width,):
        total = product(shape)
        if not width.is_const or width.value < 1 or (total.is_const and total.value % width.value):
            raise ModelError(f"FULLY_CONNECTED of {node.type(0)} with weights {node.type(1)}")
        x = reshape(x, shape=(s.floordiv(total, width), width))
    y = contract.matmul(x, w, transpose_b=True)
    bias = node.optional(2)
    return node.activated(y if bias is None else ew.add(y, reshape(bias, shape=(shape_of(w)[0],))))


binds({"BATCH_MATMUL": contract.matmul}, transpose_a="adj_x", transpose_b="adj_y")
