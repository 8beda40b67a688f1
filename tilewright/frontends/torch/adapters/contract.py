"""Products, sums of products, and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.node import AtenNode, Number
from tilewright.frontends.torch.registry import aten
from tilewright.frontends.translation import type_of
from tilewright.frontends.unroll import element
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.sym import Sym
from tilewright.ops import contract, quant
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.products import einsum_of, matrix_product, with_bias
from tilewright.ops.define import constant
from tilewright.ops.reduce import reduce_sum
from tilewright.ops.source import full
from tilewright.ops.view import concat, reshape, shape_of, slice_, transpose


def product(a: Value, b: Value) -> Value:
    """The matrix product; products of small integers wrap in their own type, as PyTorch's do."""
    dtype = type_of(a).dtype
    found = matrix_product(a, b)
    return found if type_of(found).dtype is dtype else ew.cast(found, dtype=dtype)


@aten("mm", "bmm", "matmul", "mv", "dot", "vdot")
def matmul(node: AtenNode, self: Value, mat2: Value | None = None, other: Value | None = None,
           vec: Value | None = None, tensor: Value | None = None) -> Value:  # fmt: skip
    right = next(x for x in (mat2, other, vec, tensor) if x is not None)
    return product(*node.promoted(self, right))


@aten("_int_mm")
def int_mm(node: AtenNode, self: Value, mat2: Value) -> Value:
    """The product of bytes, in 32 bits."""
    zeros = (constant(np.zeros((), type_of(x).dtype.storage), "") for x in (self, mat2))
    return quant.matmul_integer(self, mat2, *zeros)


@aten("linear")
def linear(node: AtenNode, input: Value, weight: Value, bias: Value | None = None) -> Value:
    """input times the transposed weight, plus bias."""
    if len(shape_of(weight)) == 1:
        found = product(input, weight)
    elif len(shape_of(input)) == 1:
        found = product(input, transpose(weight, perm=(1, 0)))
    else:
        found = contract.matmul(input, weight, transpose_b=True)
    return found if bias is None else ew.add(found, bias)


@aten("addmm", "baddbmm", "addmv", "addbmm", "addr")
def product_and_sum(
    node: AtenNode,
    self: Value,
    mat1: Value | None = None,
    mat2: Value | None = None,
    batch1: Value | None = None,
    batch2: Value | None = None,
    mat: Value | None = None,
    vec: Value | None = None,
    vec1: Value | None = None,
    vec2: Value | None = None,
    beta: Number = 1,
    alpha: Number = 1,
) -> Value:
    """beta * self + alpha * product."""
    if vec1 is not None and vec2 is not None:
        a, b = node.promoted(vec1, vec2)
        found = ew.mul(reshape(a, shape=(*shape_of(a), 1)), b)
    else:
        left = next(x for x in (mat1, batch1, mat) if x is not None)
        right = next(x for x in (mat2, batch2, vec) if x is not None)
        found = product(*node.promoted(left, right))
        if node.op.startswith("aten.addbmm"):
            found = reduce_sum(found, axes=(0,), keepdims=False)
    if alpha != 1:
        found = ew.mul(found, node.value(alpha, node.dtype))
    if beta == 0:
        return found
    added = node.value(self, node.dtype)
    return ew.add(found, added if beta == 1 else ew.mul(added, node.value(beta, node.dtype)))


@aten("_trilinear")
def trilinear(
    node: AtenNode, i1: Value, i2: Value, i3: Value, expand1: Sequence[int], expand2: Sequence[int],
    expand3: Sequence[int], sumdim: Sequence[int], unroll_dim: int = 1,
) -> Value:  # fmt: skip
    """The sums over some axes of the product of three operands, each with axes of 1 put in."""
    letters = "abcdefgh"[: len(shape_of(i1)) + len(expand1)]
    terms = ["".join(c for k, c in enumerate(letters) if k not in axes) for axes in (expand1, expand2, expand3)]
    result = "".join(c for k, c in enumerate(letters) if k not in sumdim)
    return einsum_of(f"{','.join(terms)}->{result}", node.promoted(i1, i2, i3))


@aten("einsum")
def einsum(node: AtenNode, equation: str, tensors: Sequence[Value], path: object = None) -> Value:
    return einsum_of(equation, node.promoted(*tensors))


def _listed(values: Sequence[Number] | Number, count: int) -> tuple[Any, ...]:
    """One number for each spatial axis."""
    listed = tuple(values) if isinstance(values, tuple | list) else (values,)
    return listed * count if len(listed) == 1 else listed


@aten("convolution", "_convolution", "convolution_overrideable")
def convolution(
    node: AtenNode,
    input: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[Sym],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[Sym],
    groups: int,
    **how: object,
) -> Value:
    space = len(shape_of(weight)) - 2
    batched = len(shape_of(input)) == space + 2
    x = input if batched else reshape(input, shape=(1, *shape_of(input)))
    window = {
        "strides": _listed(stride, space),
        "pads_begin": _listed(padding, space),
        "pads_end": _listed(padding, space),
        "dilations": _listed(dilation, space),
        "groups": int(groups),
    }
    if transposed:
        found = contract.conv_transpose(x, weight, **window, output_padding=_listed(output_padding, space))
    else:
        found = contract.conv(x, weight, **window)
    found = with_bias(found, bias)
    return found if batched else reshape(found, shape=shape_of(found)[1:])


@aten("conv1d", "conv2d", "conv3d")
def conv(
    node: AtenNode,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] | str = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Value:
    space = len(shape_of(weight)) - 2
    if isinstance(padding, str):
        batched = len(shape_of(input)) == space + 2
        x = input if batched else reshape(input, shape=(1, *shape_of(input)))
        found = _conv_same(x, weight, padding, _listed(stride, space), _listed(dilation, space), groups)
        found = with_bias(found, bias)
        return found if batched else reshape(found, shape=shape_of(found)[1:])
    return convolution(node, input, weight, bias, stride, padding, dilation, False, (0,), groups)


def _conv_same(
    x: Value, weight: Value, padding: str, strides: tuple[int, ...], dilations: tuple[int, ...], groups: int
) -> Value:
    """Padding "valid" is none, "same" keeps the size; an odd element goes to the end."""
    kernel = shape_of(weight)[2:]
    total = [(k - 1) * d if padding == "same" else s.sym(0) for k, d in zip(kernel, dilations, strict=True)]
    begin = tuple(t // 2 for t in total)
    end = tuple(t - b for t, b in zip(total, begin, strict=True))
    return contract.conv(
        x, weight, strides=strides, pads_begin=begin, pads_end=end, dilations=dilations, groups=groups
    )


@aten("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    node: AtenNode,
    input: Value,
    weight: Value,
    bias: Value | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Value:
    return convolution(node, input, weight, bias, stride, padding, dilation, True, output_padding, groups)


@aten("_grouped_mm")
def grouped_mm(
    node: AtenNode,
    self: Value,
    mat2: Value,
    offs: Value | None = None,
    bias: Value | None = None,
    out_dtype: object = None,
) -> Value:
    """Rows up to offs[0] times the first matrix, those up to offs[1] times the second, ..."""
    if offs is None and bias is None:
        return node.value(product(self, mat2), node.dtype)
    if offs is None or bias is not None or (len(shape_of(self)), len(shape_of(mat2))) != (2, 3):
        raise node.refuse("groups of columns, of batches, or with a bias")
    return node.value(product_of_groups(node, self, mat2, offs), node.dtype)


@aten("grouped_mm_fallback", namespace="transformers")
def grouped_mm_fallback(node: AtenNode, input: Value, weight: Value, offs: Value) -> Value:
    """The same, as the Transformers library computes it in Python."""
    return product_of_groups(node, input, weight, offs)


def product_of_groups(node: AtenNode, rows: Value, matrices: Value, ends: Value) -> Value:
    """Rows [n, inner] up to ends[k] times matrices[k] [inner, columns]; zeros for rows that are after all ends."""
    (count, inner), (groups, _, columns) = shape_of(rows), shape_of(matrices)
    parts, begin = [], s.sym(0)
    ends = slice_(ends, starts=(0,), sizes=(groups,), steps=(1,))  # data may decide how many there are
    for k, end in enumerate(node.symbols(ends)):
        own = slice_(rows, starts=(begin, s.sym(0)), sizes=(end - begin, inner), steps=(1, 1))
        parts.append(product(own, element(matrices, 0, k)))
        begin = end
    parts.append(full(value=0, dtype=type_of(rows).dtype, shape=(count - begin, columns)))
    return concat(*parts, axis=0)
