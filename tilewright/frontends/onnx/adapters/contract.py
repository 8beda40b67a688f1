"""Matrix products, determinants, convolutions and Einsum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.frontends.onnx.adapters.window import window_of
from tilewright.frontends.onnx.node import Node
from tilewright.frontends.onnx.registry import adapter, binds
from tilewright.ir import sym as s
from tilewright.ir.core import Value
from tilewright.ir.diag import ModelError
from tilewright.ir.sym import Sym, sym
from tilewright.ops import contract
from tilewright.ops import elementwise as ew
from tilewright.ops.composites.products import einsum_of, matrix_product, with_bias
from tilewright.ops.composites.windows import WindowAttributes
from tilewright.ops.linalg import determinant
from tilewright.ops.reduce import as_dtype, dtype_of, widened
from tilewright.ops.view import shape_of

binds({"MatMul": matrix_product, "Det": lambda x: as_dtype(determinant(widened(x)), dtype_of(x))})


@adapter("Gemm")
def gemm(node: Node) -> Value:
    """alpha * A' * B' + beta * C, where ' may transpose."""
    if node.rank(0) != 2 or node.rank(1) != 2:
        raise ModelError(f"Gemm takes matrices, not {node.type(0)} and {node.type(1)}")
    transposed = {"transpose_a": node.flag("transA"), "transpose_b": node.flag("transB")}
    product = contract.matmul(node.input(0), node.input(1), **transposed)
    product, added, beta = scaled(product, node.attr("alpha"), node), node.optional(2), node.attr("beta")
    if added is None or beta == 0.0:
        return product
    require_to_be_added(node, product)
    return ew.add(product, scaled(added, beta, node))


def require_to_be_added(node: Node, product: Value) -> None:
    """Input 2 is broadcast to the product, and not the product to it."""
    shape = shape_of(product)
    listed = ", ".join(map(str, shape))
    node.require_to_fit(2, shape, f"{node.op} cannot add {node.type(2)} to a product of [{listed}]")


def scaled(x: Value, factor: float, node: Node) -> Value:
    """x times `factor`, a number of the node's dtype."""
    return x if factor == 1.0 else ew.mul(x, factor if node.dtype(0).is_float else int(factor))


@adapter("Conv")
def conv(node: Node) -> Value:
    group, window = group_of(node), window_of(node, node.shape(1)[2:])
    result = contract.conv(node.input(0), node.input(1), **window.sliding, groups=group)
    return with_bias(result, node.optional(2))


def group_of(node: Node) -> int:
    """The number of groups; ModelError where the filters do not fit."""
    rank = node.rank(0)
    if rank < 3 or node.rank(1) != rank:
        raise ModelError(
            f"{node.op} of {node.type(0)} with filters {node.type(1)}: both need the same axes, 3 or more"
        )
    group: int = node.attr("group", 1)
    if not 1 <= group <= 2**20:
        raise ModelError(f"{node.op}: {group} groups are not possible")
    return group


@adapter("ConvTranspose")
def conv_transpose(node: Node) -> Value:
    group, kernel = group_of(node), node.shape(1)[2:]
    window = window_of(node, kernel, transposed=True)
    extra = node.attr("output_padding", (0,) * len(kernel))
    if len(extra) != len(kernel) or any(e < 0 for e in extra):
        raise ModelError(f"output_padding {list(extra)} does not fit {len(kernel)} spatial axes")
    if node.has("output_shape"):
        window = _for_output(node, window, extra, node.attr("output_shape"))
    elif node.attr("auto_pad").startswith("SAME"):
        sizes = [d * k for d, k in zip(node.shape(0)[2:], window.strides, strict=True)]
        window = _for_output(node, window, extra, sizes)
    result = contract.conv_transpose(
        node.input(0), node.input(1), **window.sliding, output_padding=extra, groups=group
    )
    return with_bias(result, node.optional(2))


def _for_output(
    node: Node, window: WindowAttributes, extra: Sequence[int], wanted: Sequence[Sym | int]
) -> WindowAttributes:
    """The pads that give spatial sizes `wanted`; an odd one goes to the begin, with SAME_UPPER to the end. Sizes that
    no tap reaches need pads below 0, which all go to the end."""
    begin, end = [], []
    for k, size in enumerate([sym(d) for d in wanted][-len(window.kernel) :]):
        total = window.strides[k] * (node.shape(0)[2 + k] - 1) + window.reach(k) + extra[k] - size
        half = s.maximum(total, 0) // 2
        first = half if node.attr("auto_pad") == "SAME_UPPER" else s.maximum(total, 0) - half
        begin.append(first)
        end.append(total - first)
    return replace(window, pads_begin=tuple(begin), pads_end=tuple(end))


@adapter("Einsum")
def einsum(node: Node) -> Value:
    return einsum_of(node.attr("equation"), node.operands)
