"""Weights of few bits, in blocks that have a scale each."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.axes import require
from tilewright.frontends.onnx.adapters.microsoft.domain import microsoft
from tilewright.frontends.onnx.node import Node
from tilewright.ir import dtype as dt
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError, UnsupportedError
from tilewright.ir.sym import sym
from tilewright.ops import elementwise as ew
from tilewright.ops import quant
from tilewright.ops.contract import matmul
from tilewright.ops.define import constant
from tilewright.ops.index import gather
from tilewright.ops.quant import cut, spread
from tilewright.ops.reduce import as_dtype, dtype_of, widened
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, shape_of

_BITS = (2, 4, 8)


def _bits(node: Node) -> tuple[int, int]:
    """The bits of an element, and how many elements a block has."""
    bits, block = node.attr("bits", 4), node.attr("block_size", 128)
    if bits not in _BITS or block < 1:
        raise UnsupportedError(f"{node.op} with {bits} bits in blocks of {block} is not supported")
    return bits, block


def unpacked(node: Node, x: Value, bits: int, width: int | None = None, *, high_first: bool = False) -> Value:
    """Bytes as the elements of so many bits that they hold along the last axis, the lowest bits first, or the highest;
    of matrices the first `width` where it is given. It is done now where they are known: products read constants as
    they are."""
    mask, shifts = (1 << bits) - 1, range(0, 8, bits)[:: -1 if high_first else 1]
    known = node.translation.constant_of(x)
    if known is not None:
        parts = np.stack([(known >> shift) & mask for shift in shifts], -1)
        return constant(parts.reshape(*known.shape[:-1], -1)[..., :width], x.name or "w")
    *outer, size = shape_of(x)
    apart = [reshape(ew.and_(ew.shr(x, shift), mask), shape=(*outer, size, 1)) for shift in shifts]
    found = (
        x if bits == 8 else reshape(concat(*apart, axis=len(outer) + 1), shape=(*outer, size * len(shifts)))
    )
    return found if width is None else cut(found, len(outer), sym(width))


@microsoft("MatMulNBits")
def matmul_n_bits(node: Node) -> Value:
    """A times the transposed weights (q - zero_point) * scale; the accuracy that is asked for is reached in f32."""
    if node.attr("weight_prepacked", 0):
        raise UnsupportedError("MatMulNBits with weights in the order of a device is not supported")
    node.attr("accuracy_level", 0)
    bits, block = _bits(node)
    k, n = node.attr("K"), node.attr("N")
    blocks = -(-k // block)
    holds = s.eq(node.type(1).size, n * blocks * (block * bits // 8)) if node.rank(1) == 3 else s.ZERO
    require(node.translation, holds, f"MatMulNBits: {node.type(1)} does not hold {n} x {k} weights of {bits} bits")
    q = unpacked(node, reshape(node.input(1), shape=(n, blocks * block * bits // 8)), bits, k)
    scale = reshape(widened(node.input(2)), shape=(n, blocks))
    zero, groups = _block_zeros(node, n, blocks, bits), node.optional(4)
    scale, zero = (
        x if not shape_of(x) else spread(x, 1, block, sym(k)) if groups is None else gather(x, groups, axis=1)
        for x in (scale, zero)
    )
    if dtype_of(zero).is_float:
        weights = ew.mul(ew.sub(ew.cast(q, dtype=dt.f32), zero), scale)
    else:
        weights = quant.dequantize_linear(q, scale, zero, dtype=dt.f32)
    result = matmul(widened(node.input(0)), weights, transpose_b=True)
    if (bias := node.optional(5)) is not None:
        result = ew.add(result, widened(bias))
    return as_dtype(result, node.dtype(0))


def _block_zeros(node: Node, n: int, blocks: int, bits: int) -> Value:
    """The zero points [n, blocks] of MatMulNBits, packed as weights are or floats; one number where none are given."""
    zeros = node.optional(3)
    if zeros is None:
        return full(value=1 << (bits - 1), dtype=dt.u8, shape=())
    if dtype_of(zeros).is_float:
        return reshape(widened(zeros), shape=(n, blocks))
    return unpacked(node, reshape(zeros, shape=(n, -(-blocks * bits // 8))), bits, blocks)


_FLOATS_OF_4_BITS = (
    (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4),
    (
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ),
)  # fmt: skip
"""FP4 without its sign, and NF4: the quantiles of normally distributed numbers (Dettmers et al., 2023)."""


@microsoft("MatMulBnb4")
def matmul_bnb4(node: Node) -> Value:
    """A times the (transposed) weights, floats of 4 bits times the greatest of their block, the high bits first."""
    block, k, n = node.attr("block_size"), node.attr("K"), node.attr("N")
    kind = node.attr("quant_type")
    node.attr("training_mode", 0)
    blocks = -(-n * k // block) if block > 0 else 0
    wrong = f"MatMulBnb4: {node.type(1)} in {node.type(2)} blocks are not {n} x {k} weights of type {kind}"
    if kind not in (0, 1):
        raise ModelError(wrong)
    for operand, size in ((1, (n * k + 1) // 2), (2, blocks)):
        require(node.translation, s.eq(node.type(operand).size, size), wrong)
    positive = _FLOATS_OF_4_BITS[kind]
    levels = tuple(map(float, positive if kind else (*positive, *(-x for x in positive))))
    packed = reshape(node.input(1), shape=((n * k + 1) // 2,))
    codes = unpacked(node, packed, 4, n * k, high_first=True)
    known = node.translation.constant_of(codes)
    if known is not None:  # now, as above
        codes = constant(known.astype(dt.u4.storage).reshape(n, k), "w")
    else:
        codes = reshape(ew.cast(codes, dtype=dt.u4), shape=(n, k))
    scale = widened(node.input(2))
    if k % block:
        scale = reshape(spread(reshape(scale, shape=(blocks,)), 0, block, sym(n * k)), shape=(n, k))
    else:
        scale = spread(reshape(scale, shape=(n, k // block)), 1, block, sym(k))
    weights = ew.mul(ew.level(codes, levels=levels, dtype=dt.f32), scale)
    product = matmul(widened(node.input(0)), weights, transpose_b=node.flag("transB", 1))
    return as_dtype(product, node.dtype(0))


@microsoft("GatherBlockQuantized")
def gather_block_quantized(node: Node) -> Value:
    """Slices of quantised data, dequantised; an index that is out of range is an error."""
    bits, block = _bits(node)
    data, scale, zero = node.input(0), node.input(2), node.optional(3)
    rank = node.rank(0)
    at = node.axis(node.attr("gather_axis", 0))
    quantised = node.axis(node.attr("quantize_axis", 1))
    if at == quantised or not node.dtype(0).is_int:
        raise UnsupportedError(
            f"GatherBlockQuantized of {node.dtype(0)} along the axis of the blocks is not supported"
        )
    packs = node.dtype(0) == dt.u8
    moved = quantised if quantised < at else quantised + node.rank(1) - 1
    data, scale = (gather(x, node.input(1), axis=at) for x in (data, scale))
    if zero is not None:
        zero = gather(zero, node.input(1), axis=at)
    if packs:
        data = unpacked(node, data, bits)
        zero = (
            full(value=1 << (bits - 1), dtype=dt.u8, shape=()) if zero is None else unpacked(node, zero, bits)
        )
    if len(shape_of(scale)) != len(shape_of(data)) or len(shape_of(data)) != rank + node.rank(1) - 1:
        raise ModelError(f"GatherBlockQuantized: scales {node.type(2)} for data {node.type(0)}")
    size, dtype = shape_of(data)[moved], dtype_of(scale)
    if zero is None:
        zero = full(value=0, dtype=dtype_of(data), shape=())
    elif shape_of(zero):
        zero = spread(cut(zero, moved, shape_of(scale)[moved]), moved, block, size)
    return quant.dequantize_linear(data, spread(scale, moved, block, size), zero, dtype=dtype)
