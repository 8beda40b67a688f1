"""Matrix products, convolutions and Einsum."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontends.onnx.adapters.einsum import einsum_of
from tilewright.frontends.onnx.adapters.window import Window, window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.view import reshape, shape_of, transpose


@adapter("MatMul")
def matmul(node: Node) -> Value:
    return matrix_product(node.input(0), node.input(1))


def matrix_product(a: Value, b: Value) -> Value:
    """NumPy's matmul: vectors become a row or a column for the time of the product."""
    shape_a, shape_b = shape_of(a), shape_of(b)
    if not shape_a or not shape_b:
        raise ModelError("MatMul takes no scalars")
    wide_a = reshape(a, shape=(sym(1), *shape_a)) if len(shape_a) == 1 else a
    wide_b = reshape(b, shape=(*shape_b, sym(1))) if len(shape_b) == 1 else b
    product = contract.matmul(wide_a, wide_b)
    shape = list(shape_of(product))
    if len(shape_b) == 1:
        del shape[-1]
    if len(shape_a) == 1:
        del shape[-1 if len(shape_b) == 1 else -2]
    return product if len(shape_a) > 1 and len(shape_b) > 1 else reshape(product, shape=tuple(shape))


@adapter("Gemm", since=7)
def gemm(node: Node) -> Value:
    """alpha * A' * B' + beta * C, where ' may transpose."""
    if node.rank(0) != 2 or node.rank(1) != 2:
        raise ModelError(f"Gemm takes matrices, not {node.type(0)} and {node.type(1)}")
    flags = {"transpose_a": bool(node.attr("transA", 0)), "transpose_b": bool(node.attr("transB", 0))}
    product = _scaled(contract.matmul(node.input(0), node.input(1), **flags), node.attr("alpha", 1.0), node)
    added, beta = node.optional(2), node.attr("beta", 1.0)
    return product if added is None or beta == 0.0 else ew.add(product, _scaled(added, beta, node))


def _scaled(x: Value, factor: float, node: Node) -> Value:
    return x if factor == 1.0 else ew.mul(x, factor if node.dtype(0).is_float else int(factor))


@adapter("Conv")
def conv(node: Node) -> Value:
    x, w = node.input(0), node.input(1)
    _check_filters(node, group=node.attr("group", 1))
    window = window_of(node, shape_of(w)[2:])
    result = contract.conv(
        x, w, strides=window.strides, pads_begin=window.pads_begin, pads_end=window.pads_end,
        dilations=window.dilations, groups=node.attr("group", 1),
    )  # fmt: skip
    return with_bias(result, node.optional(2))


def _check_filters(node: Node, group: int) -> None:
    rank = node.rank(0)
    if rank < 3 or node.rank(1) != rank:
        raise ModelError(
            f"{node.op} of {node.type(0)} with filters {node.type(1)}: both need the same axes, 3 or more"
        )
    if not 1 <= group <= 2**20:
        raise ModelError(f"{node.op}: {group} groups are not possible")


def with_bias(x: Value, bias: Value | None) -> Value:
    """x plus one number for each channel (axis 1)."""
    if bias is None:
        return x
    shape = shape_of(x)
    (channels,) = shape_of(bias) if len(shape_of(bias)) == 1 else (sym(-1),)
    if channels.is_const and shape[1].is_const and channels != shape[1]:
        raise ModelError(f"the bias has {channels} elements for {shape[1]} channels")
    return ew.add(x, reshape(bias, shape=(channels, *[sym(1)] * (len(shape) - 2))))


@adapter("ConvTranspose")
def conv_transpose(node: Node) -> Value:
    x, w = node.input(0), node.input(1)
    group = node.attr("group", 1)
    _check_filters(node, group)
    spatial = node.rank(0) - 2
    kernel = shape_of(w)[2:]
    window = window_of(node, kernel, transposed=True)
    extra = node.attr("output_padding", (0,) * spatial)
    if len(extra) != spatial or any(e < 0 for e in extra):
        raise ModelError(f"output_padding {list(extra)} does not fit {spatial} spatial axes")
    if node.has("output_shape"):
        window = _for_output(node, window, kernel, extra, node.attr("output_shape"))
    elif node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [d * k for d, k in zip(node.shape(0)[2:], window.strides, strict=True)]
        window = _for_output(node, window, kernel, extra, sizes)
    result = contract.conv_transpose(
        x, w, strides=window.strides, pads_begin=window.pads_begin, pads_end=window.pads_end,
        output_padding=extra, dilations=window.dilations, groups=group,
    )  # fmt: skip
    return with_bias(result, node.optional(2))


def _for_output(
    node: Node, window: Window, kernel: Sequence[Sym], extra: Sequence[int], wanted: Sequence[Sym | int]
) -> Window:
    """The pads that give spatial sizes `wanted`; an odd one goes to the begin, with SAME_UPPER to the end."""
    sizes = [sym(d) for d in wanted][-len(kernel) :]
    begin, end = [], []
    for k, size in enumerate(sizes):
        full = window.strides[k] * (node.shape(0)[2 + k] - 1) + window.dilations[k] * (kernel[k] - 1) + 1
        total = full + extra[k] - size
        half = s.maximum(total, 0) // 2
        upper = node.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        first = half if upper else s.maximum(total, 0) - half
        begin.append(first)
        end.append(total - first)
    return Window(window.kernel, window.strides, tuple(begin), tuple(end), window.dilations)


@adapter("Einsum", since=12)
def einsum(node: Node) -> Value:
    return einsum_of(node.attr("equation"), [node.input(k) for k in range(len(node.inputs))])


def swapped(x: Value, a: int, b: int) -> Value:
    """x with two axes exchanged."""
    order = list(range(len(shape_of(x))))
    order[a], order[b] = order[b], order[a]
    return transpose(x, perm=tuple(order))
